"""Filters over what graders' samples gave: pass rates, two passes, majorities against a reference, variance, traces, weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollbook.tasks.curation.filters import Equal, Filtered, Helpers, by_reason
from rollbook.tasks.curation.rows import HEAVIEST, Candidate
from rollbook.tasks.errors import TaskError

NAMED = {"two_to_five_of_eight": (2, 5, 8)}      # Qwen2.5-Math (2409.12122 section 3.2)
TOGETHER = 10_000                                 # rows whose answers are compared at one time: memory stays bounded
LARGEST = 1e100                                   # of a score: its square is still a number
DISTINCT = 8                                      # different answers of one task that are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """Samples `samples` answers per row by a grader and writes them into the row, with what the verifier says of each.

    Rows that already have the grader's grade keep it.
    """

    grader: str
    samples: int

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        solve: Any = helpers.need("solve", "Grade")
        todo = [row for row in rows if self.grader not in row.grades]
        graded = dict(zip((row.number for row in todo), solve(self.grader, todo, self.samples), strict=True))
        done = Filtered(kept=[replace(row, grades={**row.grades, self.grader: graded[row.number]}) if row.number in graded
                              else row
                              for row in rows])
        done.changed["graded"] = len(todo)
        for grade in graded.values():
            for why, count in grade.get("unscored", {}).items():
                done.changed[f"samples without a verdict: {why}"] += count
        return done


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """Keeps rows that the grader's samples pass between `low` and `high` times of `of`, both inclusive; or `rule` by name."""

    grader: str
    low: int | None = None
    high: int | None = None
    of: int | None = None
    rule: str | None = None

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        low, high, of = self.bounds()
        return by_reason(rows, lambda row: out_of_bounds(passes(row, self.grader), low, high, of))

    def bounds(self) -> tuple[int, int, int]:
        if self.rule is not None:
            if self.rule not in NAMED or not (self.low is self.high is self.of is None):
                raise TaskError("a named pass-rate rule stands alone", got=f"{self.rule}",
                                fix=f"one of {', '.join(NAMED)}, without bounds")
            return NAMED[self.rule]
        if self.low is None or self.high is None or self.of is None or not 0 <= self.low <= self.high <= self.of:
            raise TaskError("pass-rate bounds must satisfy 0 <= low <= high <= of", got=f"{self.low}, {self.high}, {self.of}")
        return self.low, self.high, self.of


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPass:
    """Magistral's two passes (2506.10910 section 4): the second, stronger grader decides over all rows, so that what the first
    one could not solve is not lost. The notes say how many rows the second grader rescued."""

    first: str
    second: str
    low: int
    high: int
    of: int

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        low, high, of = PassRate(grader=self.second, low=self.low, high=self.high, of=self.of).bounds()
        done = by_reason(rows, lambda row: out_of_bounds(passes(row, self.second), low, high, of))
        firsts = {row.number: out_of_bounds(passes(row, self.first), low, high, of) for row in rows}
        kept = {row.number for row in done.kept}
        done.notes["rescued by the second grader"] = sum(firsts[number] == "too hard" for number in kept)
        done.notes["too easy for the second alone"] = sum(why == "too easy" and firsts[number] is None
                                                          for number, why in done.rejected.items())
        return done


@dataclass(frozen=True, slots=True, kw_only=True)
class MajorityDisagrees:
    """Rejects rows where at least `share` of the grader's answers agree with one another and not with the reference, and more
    of them than with the reference: it is probably wrong (2506.10910 section 4). Rows with fewer than `least` answers are left
    alone."""

    grader: str
    share: float = 0.5
    least: int = 4

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        equal: Equal = helpers.need("equal", "MajorityDisagrees")       # type: ignore[assignment]
        done = Filtered(kept=[])
        for start in range(0, len(rows), TOGETHER):
            part = self._part(rows[start:start + TOGETHER], equal)
            done.kept += part.kept
            done.rejected |= part.rejected
        return done

    def _part(self, rows: Sequence[Candidate], equal: Equal) -> Filtered:
        counts = {row.number: Counter(str(answer).strip() for answer in row.grades.get(self.grader, {}).get("answers") or ()
                                      if answer is not None and str(answer).strip())
                  for row in rows if row.kind in ("math", "choice") and row.reference}
        counts = {number: found for number, found in counts.items() if found.total() >= self.least}
        mine = {row.number: row.reference or "" for row in rows}
        asked = [(number, answer) for number, found in counts.items() for answer, _ in found.most_common(DISTINCT)]
        right = dict(zip(asked, equal([(answer, mine[number]) for number, answer in asked]), strict=True))
        wrong = {number: [answer for answer, _ in found.most_common(DISTINCT) if right[number, answer] is not True]
                 for number, found in counts.items()}
        again = [(number, answer, found[0]) for number, found in wrong.items() for answer in found]
        same = dict(zip(((number, answer) for number, answer, _ in again),
                        equal([(answer, top) for _, answer, top in again]), strict=True))

        def reason(row: Candidate) -> str | None:
            found = counts.get(row.number)
            if found is None or not wrong[row.number]:
                return None
            agreeing = sum(found[answer] for answer in wrong[row.number] if same[row.number, answer] is True)
            supporting = sum(found[answer] for answer, _ in found.most_common(DISTINCT) if right[row.number, answer] is True)
            condemned = agreeing >= self.share * found.total() and agreeing > supporting
            return "majority disagrees with the reference" if condemned else None
        return by_reason(rows, reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreVariance:
    """Orders rows by the variance of their `scores`, largest first, and keeps `keep` of them (None: all)."""

    keep: int | None = None

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        done = by_reason(rows, lambda row: _unspread(row.more.get("scores") or ()))
        ordered = sorted(done.kept, key=lambda row: (-(variance(row.more["scores"]) or 0.0), row.number))
        cut = len(ordered) if self.keep is None else self.keep
        done.rejected |= dict.fromkeys((row.number for row in ordered[cut:]), "low score variance")
        done.kept = ordered[:cut]
        return done


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCaps:
    """At most `most` traces per problem, the latest first; none of a step before `least_step` (early ones reason briefly), none
    that did not pass."""

    most: int
    least_step: int = 0

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        done = Filtered(kept=[])
        for row in rows:
            given = row.more.get("traces") or ()
            traces = [one for one in given if isinstance(one, Mapping) and type(one.get("step", 0)) is int]
            sound = [one for one in traces if one.get("passed") is not False
                     and one.get("step", self.least_step) >= self.least_step]
            kept = sorted(sound, key=lambda one: -one.get("step", 0))[:self.most]
            if len(traces) < len(given):
                done.changed["traces that cannot be read"] += len(given) - len(traces)
            done.changed["traces of early steps or failed"] += len(traces) - len(sound)
            done.changed["traces beyond the cap"] += len(sound) - len(kept)
            if not kept:
                done.rejected[row.number] = "no trace left"
            else:
                done.kept.append(replace(row, more={**row.more, "traces": kept}))
        return done


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsampleHard:
    """Gives rows a `weight` from 1 for an always solved problem to `most` for one that is hardly solved, linear in the pass
    rate: how often one pass over the set draws them. `most` is 1 to 100."""

    grader: str
    most: int

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        if not 1 <= self.most <= HEAVIEST:
            raise TaskError("UpsampleHard.most is how often the hardest row is drawn in one pass", got=str(self.most),
                            why=f"a row is drawn 1 to {HEAVIEST} times", fix=f"most: 1 .. {HEAVIEST}")
        done = Filtered(kept=[])
        for row in rows:
            found = passes(row, self.grader)
            if isinstance(found, str) or not found[1]:
                done.rejected[row.number] = found if isinstance(found, str) else "ungraded"
                continue
            weight = 1 + round((1 - found[0] / found[1]) * (self.most - 1))
            done.changed[f"weight {weight}"] += 1
            done.kept.append(replace(row, more={**row.more, "weight": weight}))
        return done


def passes(row: Candidate, grader: str) -> tuple[int, int] | str:
    """(passes, samples) of a grader, or why they are not known."""
    grade = row.grades.get(grader)
    if grade is None:
        return "ungraded"
    passed = grade.get("passed")
    if isinstance(passed, int) and not isinstance(passed, bool) and isinstance(grade.get("of"), int):
        return passed, grade["of"]
    if not isinstance(passed, list):
        return "ungraded"
    if any(not isinstance(one, bool) for one in passed):
        return "unscored sample"
    return sum(passed), len(passed)


def out_of_bounds(found: tuple[int, int] | str, low: int, high: int, of: int) -> str | None:
    """Why a pass count is not wanted; a grade over another number of samples is no grade here."""
    if isinstance(found, str):
        return found
    count, samples = found
    if samples != of:
        return "graded by another number of samples"
    return "too hard" if count < low else "too easy" if count > high else None


def _unspread(scores: Sequence[Any]) -> str | None:
    """Why scores have no variance; a null is a sample that was not scored."""
    known = [one for one in scores if one is not None]
    if any(isinstance(one, bool) or not isinstance(one, (int, float)) or abs(one) > LARGEST for one in known):
        return "a score that is no number"
    return None if len(known) > 1 else "fewer than two scores"


def variance(scores: Sequence[Any]) -> float | None:
    """Population variance; None for fewer than two numbers."""
    known = [float(one) for one in scores if one is not None]
    if len(known) < 2:
        return None
    mean = sum(known) / len(known)
    return sum((one - mean) ** 2 for one in known) / len(known)
