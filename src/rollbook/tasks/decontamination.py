"""Stage 1's silent failure: is an evaluation item, or something much like it, among the training tasks?

Three methods, from certain to likely: equal text, a shared run of n words, near-duplicates by MinHash. Runs of words that many
tasks of both sides share are their template, not their content, and do not count. Between two procedural sources likeness of the
surface says nothing (12 + 34 and 12 + 35 are other problems): there equal text counts here and the split unit counts in stage 3.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rollbook.records import Decontamination, Message, Overlap, RawTask, Task, canonical, digest
from rollbook.tasks.units import procedural

Words = tuple[str, ...]
Method = Literal["exact", "ngram", "minhash"]
Found = tuple[int, int, Method, float]
WORD = re.compile(r"\w+|[^\w\s]")
HASHES, BANDS = 128, 32            # 32 bands of 4 hashes: half of the pairs at Jaccard 0.42 are candidates, nearly all at 0.8
PRIME = (1 << 61) - 1
SHORTEST = 5                       # words: a shorter run is shared by accident


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """Thresholds: words per n-gram, Jaccard index of word shingles (3 words) from which two tasks are near-duplicates, and the
    share of a side's tasks above which a run of 5 words is boilerplate.

    Example: Likeness(ngram=13, jaccard=0.8, boilerplate=0.05)
    """

    ngram: int
    jaccard: float
    boilerplate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Tasks with the raw tasks they were made from."""

    tasks: tuple[Task, ...]
    raws: tuple[RawTask, ...]

    @property
    def procedural(self) -> bool:
        return all(procedural(raw) for raw in self.raws)


def decontaminate(train: Side, protected: Side, *, protocol: str, likeness: Likeness) -> Decontamination:
    """Compares every training task with every protected one; what to do about what is found is the caller's choice."""
    shown, kept = [asked(task.prompt) for task in train.tasks], [asked(task.prompt) for task in protected.tasks]
    skipped: dict[str, str] = {}
    if told_by_start([*shown, *kept], [task.initial_state for side in (train, protected) for task in side.tasks]):
        why = "every task is asked in the same words, and where each starts tells them apart; stage 3 compares their units"
        found, skipped = [], dict.fromkeys(("exact", "ngram", "minhash"), why)
    else:
        found = list(_exact(shown, kept))
    if not skipped and train.procedural and protected.procedural:
        why = "both sides are procedural: likeness of the surface does not make two problems one; stage 3 compares their units"
        skipped = dict.fromkeys(("ngram", "minhash"), why)
    elif not skipped:
        contents = _contents(shown, kept, likeness.boilerplate)
        found += _ngrams(*contents, likeness.ngram)
        found += _near(*contents, likeness.jaccard)
    names = [task.id for task in train.tasks], [task.id for task in protected.tasks]
    overlaps = tuple(Overlap(train=names[0][t], protected=names[1][p], method=method, score=score)
                     for t, p, method, score in sorted(set(found)))
    return Decontamination(
        protocol=protocol, protected=ids_hash(names[1]), protected_count=len(names[1]), train=ids_hash(names[0]),
        train_count=len(names[0]), ngram=likeness.ngram, jaccard=likeness.jaccard, boilerplate=likeness.boilerplate,
        found=overlaps, skipped=skipped)


def ids_hash(names: Sequence[str]) -> str:
    """Hash of an ordered list of task ids."""
    return digest(canonical(list(names)))


def asked(messages: Iterable[Message]) -> Words:
    """The words of what is asked, without case and typography; what comes from the recipe is the same for all tasks."""
    return _words(" ".join(message.content for message in messages if message.origin != "recipe"))


def told_by_start(texts: Sequence[object], starts: Sequence[str]) -> bool:
    """Whether all tasks have one text and each begins in a state of its own, as the seeds of an environment do: their texts say
    nothing of whether two of them are one.

    Example: told_by_start(("Guess.", "Guess."), ('{"seed": 0}', '{"seed": 1}')) is True
    """
    return len(texts) > 1 and len(set(texts)) == 1 and "" not in starts and len(set(starts)) == len(starts)


def near_duplicates(train: Sequence[str], protected: Sequence[str], likeness: Likeness) -> Iterator[tuple[int, int, float]]:
    """Places of texts on the two sides that are equal or near-duplicates, with their likeness."""
    sides = [_words(text) for text in train], [_words(text) for text in protected]
    near = _near(*_contents(*sides, likeness.boilerplate), likeness.jaccard)
    found = {(one, other): score for one, other, _, score in (*near, *_exact(*sides))}
    yield from ((*pair, score) for pair, score in sorted(found.items()))


def _words(text: str) -> Words:
    return tuple(WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def _exact(train: Sequence[Words], protected: Sequence[Words]) -> Iterator[Found]:
    places: dict[Words, list[int]] = defaultdict(list)
    for index, words in enumerate(protected):
        places[words].append(index)
    for index, words in enumerate(train):
        yield from ((index, other, "exact", 1.0) for other in places.get(words, ()))


def _grams(words: Words, size: int) -> set[Words]:
    """Runs of `size` words; a shorter text is one run, a very short one none."""
    if len(words) < min(size, SHORTEST):
        return set()
    return {words[i:i + size] for i in range(max(1, len(words) - size + 1))}


def _boilerplate(side: Sequence[Words], size: int, share: float) -> set[Words]:
    counts = Counter(gram for words in side for gram in _grams(words, size))
    return {gram for gram, count in counts.items() if count > max(2, share * len(side))}


def _contents(train: Sequence[Words], protected: Sequence[Words], share: float) -> tuple[list[Words], list[Words]]:
    """The texts of both sides without the words that stand in a run which is boilerplate on both."""
    common = _boilerplate(train, SHORTEST, share) & _boilerplate(protected, SHORTEST, share)
    return [_content(words, common) for words in train], [_content(words, common) for words in protected]


def _content(words: Words, common: set[Words]) -> Words:
    starts = (i for i in range(len(words) - SHORTEST + 1) if words[i:i + SHORTEST] in common)
    covered = {i + offset for i in starts for offset in range(SHORTEST)}
    return tuple(word for i, word in enumerate(words) if i not in covered)


def _ngrams(train: Sequence[Words], protected: Sequence[Words], ngram: int) -> Iterator[Found]:
    places: dict[Words, list[int]] = defaultdict(list)
    for index, words in enumerate(protected):
        for gram in _grams(words, ngram):
            places[gram].append(index)
    sizes = sorted({len(gram) for gram in places})
    for index, words in enumerate(train):
        shared = {other for size in sizes for gram in _grams(words, size) for other in places.get(gram, ())}
        yield from ((index, other, "ngram", 1.0) for other in shared)


def _near(train: Sequence[Words], protected: Sequence[Words], jaccard: float) -> Iterator[Found]:
    sets = [_grams(words, 3) for words in train], [_grams(words, 3) for words in protected]
    buckets: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for index, signature in _signatures(sets[1]):
        for band, part in enumerate(np.split(signature, BANDS)):
            buckets[band, part.tobytes()].append(index)
    for index, signature in _signatures(sets[0]):
        bands = enumerate(np.split(signature, BANDS))
        near = {other for band, part in bands for other in buckets.get((band, part.tobytes()), ())}
        for other in near:
            a, b = sets[0][index], sets[1][other]
            score = len(a & b) / len(a | b)
            if score >= jaccard:
                yield index, other, "minhash", score


def _signatures(sets: Sequence[set[Words]]) -> Iterator[tuple[int, np.ndarray]]:
    """MinHash signatures of the sets that are not empty."""
    rng = np.random.default_rng(13)
    factor, shift = rng.integers(1, 1 << 31, HASHES, dtype=np.uint64), rng.integers(0, 1 << 31, HASHES, dtype=np.uint64)
    for index, grams in enumerate(sets):
        if grams:
            keys = np.array([int(digest(" ".join(gram).encode())[:7], 16) for gram in grams], dtype=np.uint64)
            yield index, ((keys[:, None] * factor + shift) % np.uint64(PRIME)).min(axis=0)
