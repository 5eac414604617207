"""Filters that look at one row, or at one row beside another: completeness, verifiability, duplicates, contamination."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rollbook.records import ChatModel
from rollbook.records.curation import Scalar
from rollbook.records.sandbox import SolutionRunner
from rollbook.tasks.curation.rows import Candidate, read_candidates
from rollbook.tasks.curation.words import Corpus, Joined, candidate_groups, corpus, grams, quantities, shingles, signatures
from rollbook.tasks.errors import TaskError

Equal = Callable[[Sequence[tuple[str, str]]], Sequence[bool | str]]     # (answer, reference) -> equal, or why that is unknown
PROOF = re.compile(r"\b(?:prove|show|demonstrate|verify) that\b|\bprove\b\s*:", re.IGNORECASE)
ASKED = re.compile(r"\?|\b(?:find|compute|calculate|determine|evaluate|what|how many|how much|solve|simplify)\b", re.IGNORECASE)
PARTS = re.compile(r"(?:^|\s)(?:\(a\).*\s\(b\)|a\).*\sb\)|\(i\).*\s\(ii\)|part \(?a\)?.*part \(?b\)?)\s",
                   re.IGNORECASE | re.DOTALL)
CUT = re.compile(r"(?:[,:;(\[{]|\b(?:the|a|an|and|or|of|to|is|are|if|with))\s*$", re.IGNORECASE)
FIGURE = re.compile(r"\b(?:figure|diagram|graph|picture|image|table) (?:below|above|shown)|"
                    r"\b(?:shown|as) in the (?:figure|diagram|picture)|\[asy\]|!\[[^\]]*\]\(|<img\b", re.IGNORECASE)
PROBE = r"\frac{7919}{7907}"       # an answer that hardly any reference has: what counts is whether it can be judged
NEAR_ROWS = 4               # 32 bands of 4: a pair at Jaccard 0.8 is a candidate with probability 0.9999999


@dataclass(slots=True, kw_only=True)
class Filtered:
    """What came out of a filter: rows kept in order, the reason of every row that was not, what was changed or added."""

    kept: list[Candidate]
    rejected: dict[int, str] = field(default_factory=dict)
    changed: Counter[str] = field(default_factory=Counter)
    added: int = 0
    notes: dict[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Helpers:
    """What filters are handed: equality of answers, a runner of solutions, an embedding, a chat model, a solver by grader's name.

    `folder` is where relative paths of a pipeline start, `registered` the problems of every registered evaluation protocol.
    `solve` takes a grader, rows and a number of samples and gives each row's answers with whether they passed (None: no verdict).
    """

    folder: Path
    registered: Mapping[str, Sequence[str]] = field(default_factory=dict)
    equal: Equal | None = None
    runner: SolutionRunner | None = None
    embed: Callable[[Sequence[str]], np.ndarray] | None = None
    chat: ChatModel | None = None
    solve: Callable[[str, Sequence[Candidate], int], Sequence[Mapping[str, Any]]] | None = None

    def need(self, name: str, kind: str) -> object:
        """The helper of that name; TaskError where it was not handed over."""
        found = getattr(self, name)
        if found is None:
            raise TaskError(f"the stage {kind} needs {name}, which was not handed over",
                            fix="see docs/curation.md for what it needs")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """Rejects what cannot be asked or has no one answer. `allow` names reasons that are not held against a row."""

    min_words: int = 3
    allow: tuple[str, ...] = ()

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        return by_reason(rows, lambda row: next((why for why in self._faults(row) if why not in self.allow), None))

    def _faults(self, row: Candidate) -> Iterator[str]:
        text = row.problem.strip()
        if not text:
            yield "empty problem"
        elif len(text.split()) < self.min_words and row.kind not in ("math", "general"):
            yield "too short"
        if row.kind in ("math", "choice", "text") and not (row.reference or "").strip():
            yield "missing reference"
        if row.kind == "code" and not row.more.get("tests") and not row.more.get("solutions"):
            yield "neither tests nor solutions"
        if row.kind == "choice" and len(row.more.get("options") or ()) < 2:
            yield "fewer than two options"
        if row.kind == "math" and PROOF.search(text) and not ASKED.search(PROOF.sub("", text)):
            yield "proof only"
        if row.kind in ("math", "choice") and PARTS.search(f"{text} "):
            yield "several parts"
        if CUT.search(text) or (text.count("$") % 2 and row.kind == "math" and "\\$" not in text):
            yield "cut off"
        if FIGURE.search(text):
            yield "refers to a figure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifiability:
    """Rejects rows whose reference the verifier cannot use: one it cannot read when an answer is held against it, a choice
    that is no option, tests that are no input and output."""

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        equal: Equal = helpers.need("equal", "Verifiability")           # type: ignore[assignment]
        asked = list(dict.fromkeys(row.reference for row in rows if row.kind == "math" and row.reference))
        found = dict(zip(asked, equal([(PROBE, reference) for reference in asked]), strict=True))
        return by_reason(rows, lambda row: _unverifiable(row, found))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactDuplicates:
    """Keeps the first of rows with equal words, whatever their case and typography."""

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        of = corpus([row.problem for row in rows])
        first: dict[bytes, int] = {}
        done = Filtered(kept=[])
        for place, row in enumerate(rows):
            key = of.words(place).tobytes() + of.numbers_N[place].tobytes()
            other = first.setdefault(key, place)
            if other == place:
                done.kept.append(row)
            else:
                same = rows[other].reference == row.reference
                done.rejected[row.number] = "duplicate" if same else "duplicate with another reference"
        return done


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramDuplicates:
    """Keeps the first of rows that share a run of `words` words and have the same numbers and operators in the same order."""

    words: int = 13

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        of = corpus([row.problem for row in rows], letters_only=True)
        run, owner = grams(of, self.words)
        with np.errstate(over="ignore"):
            key = run ^ (of.numbers_N[owner] * np.uint64(0x9E3779B97F4A7C15))
        order = np.lexsort((owner, key))
        same = np.flatnonzero(key[order][1:] == key[order][:-1])
        later = owner[order][same + 1]
        return _without(rows, {int(place) for place in later[later != owner[order][same]]}, f"shares {self.words} words")


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicates:
    """Keeps the first of rows that are alike: Jaccard index of their runs of `words` words at least `jaccard`, by MinHash,
    with the same numbers and operators in the same order (another number is another problem)."""

    jaccard: float = 0.8
    words: int = 3

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        of = corpus([row.problem for row in rows], letters_only=True)
        gone: set[int] = set()
        for one, other, _ in near_pairs(of, self.jaccard, self.words):
            if one not in gone:
                gone.add(other)
        return _without(rows, gone, "near duplicate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decontaminate:
    """Rejects rows that are, contain or resemble an item of a registered protocol: equal words, a shared run of `ngram` words
    that is no template of many rows, or likeness of at least `jaccard` at the same numbers. `protocols` maps a name to its
    file."""

    protocols: Mapping[str, str] = field(default_factory=dict)
    registered: bool = True
    ngram: int = 13
    jaccard: float = 0.8
    boilerplate: int = 5

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        reasons: dict[int, str] = {}
        notes: dict[str, Scalar] = {}
        protected = {name: self._items(name, file, helpers, notes) for name, file in self.protocols.items()}
        protected |= dict(helpers.registered) if self.registered else {}
        if not protected:
            raise TaskError("decontamination without a protocol protects nothing", got="none is named, none is registered",
                            fix="name a file under protocols, or register one with `rollbook protocol`")
        for name, items in protected.items():
            notes[f"{name} items"] = len(items)
            for place, how in leaked([row.problem for row in rows], items, self):
                reasons.setdefault(place, f"{name}: {how}")
        done = Filtered(kept=[row for place, row in enumerate(rows) if place not in reasons], notes=notes)
        done.rejected = {rows[place].number: why for place, why in reasons.items()}
        return done

    def _items(self, name: str, file: str, helpers: Helpers, notes: dict[str, Scalar]) -> list[str]:
        unread: Counter[str] = Counter()
        items = [row.problem for row in read_candidates([helpers.folder / file], unread)]
        if not items:
            raise TaskError(f"the protocol {name} has no readable item", why="nothing would be protected",
                            got=f"{file}, {sum(unread.values())} unreadable rows")
        notes |= {f"{name} unreadable: {why}": count for why, count in sorted(unread.items())}
        return items


def leaked(texts: Sequence[str], items: Sequence[str], rule: Decontaminate) -> Iterator[tuple[int, str]]:
    """Places of the texts that hold an item of a protocol, with how it was seen; a place may come more than once."""
    both = corpus([*texts, *items], letters_only=True)
    count = len(texts)
    first = {both.words(count + place).tobytes() + both.numbers_N[count + place].tobytes() for place in range(len(items))}
    yield from ((place, "equal") for place in range(count)
                if both.words(place).tobytes() + both.numbers_N[place].tobytes() in first)
    run, owner = grams(both, rule.ngram)
    mine = owner < count
    seen, times = np.unique(run[mine], return_counts=True)
    shared = np.intersect1d(seen[times <= rule.boilerplate], run[~mine])
    items_of: dict[int, set[int]] = {}
    for gram, item in zip(run[~mine].tolist(), (owner[~mine] - count).tolist(), strict=True):
        items_of.setdefault(gram, set()).add(item)
    holding: dict[int, set[int]] = {}
    hit = np.isin(run[mine], shared)
    for gram, place in zip(run[mine][hit].tolist(), owner[mine][hit].tolist(), strict=True):
        holding.setdefault(place, set()).update(items_of[gram])
    for place, found in sorted(holding.items()):
        if any(within(quantities(items[item]), quantities(texts[place])) for item in found):
            yield place, f"{rule.ngram} words"
    for one, other, score in near_pairs(both, rule.jaccard, 3, between=count):
        yield one if one < count else other, f"alike {score:.2f}"


def within(part: Sequence[str], whole: Sequence[str]) -> bool:
    """Whether a list stands in another, in one piece."""
    size = len(part)
    return any(list(whole[at:at + size]) == list(part) for at in range(len(whole) - size + 1))


def near_pairs(of: Corpus, jaccard: float, words: int, *, between: int | None = None,
               known: Joined | None = None) -> Iterator[tuple[int, int, float]]:
    """Pairs (earlier, later) of texts at least so alike with the same numbers; with `between` one of each side of it only.

    A pair that is `known` to be joined is not looked at again.
    """
    sets = list(shingles(of, words))
    signature = signatures(sets)
    for group in candidate_groups(signature, of.numbers_N, NEAR_ROWS):
        left = np.sort(group)
        for _ in range(LEADERS):
            leader, left = int(left[0]), left[1:]
            others = left if between is None else left[(left < between) != (leader < between)]
            close = others[(signature[others] == signature[leader]).mean(axis=1) >= jaccard - MARGIN]
            found = []
            for place in close.tolist():
                if known is not None and known.root(leader) == known.root(place):
                    found.append(place)
                    continue
                score = alike(sets[leader], sets[place])
                if score >= jaccard:
                    found.append(place)
                    yield leader, place, score
            if between is None:
                left = left[~np.isin(left, found)]
            if len(left) < 2:
                break


LEADERS = 48                # texts of one bucket that all others in it are compared with
MARGIN = 0.12               # more than three standard deviations of a likeness estimated from 128 hashes


def alike(one: np.ndarray, other: np.ndarray) -> float:
    """Jaccard index of two sets of hashes; two empty sets are not alike."""
    if not len(one) or not len(other):
        return 0.0
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / (len(one) + len(other) - both)


def by_reason(rows: Sequence[Candidate], reason: Callable[[Candidate], str | None]) -> Filtered:
    """The rows that have no reason against them."""
    done = Filtered(kept=[])
    for row in rows:
        why = reason(row)
        if why is None:
            done.kept.append(row)
        else:
            done.rejected[row.number] = why
    return done


def _without(rows: Sequence[Candidate], gone: set[int], why: str) -> Filtered:
    return Filtered(kept=[row for place, row in enumerate(rows) if place not in gone],
                    rejected={rows[place].number: why for place in gone})


def _unverifiable(row: Candidate, found: Mapping[str, bool | str]) -> str | None:
    if row.kind == "math":
        outcome = found.get(row.reference or "", "no_reference")
        return f"reference: {outcome}" if isinstance(outcome, str) else None
    if row.kind == "choice":
        letters = [chr(ord("A") + place) for place in range(len(row.more.get("options") or ()))]
        return None if (row.reference or "").strip().strip("().").upper() in letters else "reference: no option"
    if row.kind == "code":
        wanted = list if row.more.get("function") else str          # arguments of a call, or what is read
        tests = row.more.get("tests") or []
        sound = all(isinstance(test, Mapping) and isinstance(test.get("input"), wanted) for test in tests)
        return None if sound else "tests: no input that a program can be given"
    return None
