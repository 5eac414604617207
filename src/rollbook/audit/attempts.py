"""Attempts as they were issued and what became of them; what was trained against what was issued.

An attempt is named `scope/place/task/sample` (see `records.Dispatch`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollbook.records import Dispatch

PER_DECADE = 20         # latency classes per factor of ten: 12% wide


@dataclass(frozen=True, slots=True)
class Place:
    """Where an attempt stands: its dispatch's scope, the place of its task there, the task, the sample."""

    scope: str
    place: int
    task: str
    sample: int


def parse(attempt: str) -> Place | None:
    """The parts of an attempt's name, None where it is no such name."""
    parts = attempt.rsplit("/", 3)
    if len(parts) != 4 or not (parts[1].isdecimal() and parts[3].isdecimal()):
        return None
    place, sample = int(parts[1]), int(parts[3])
    return Place(parts[0], place, parts[2], sample) if f"{place}" == parts[1] and f"{sample}" == parts[3] else None


@dataclass(slots=True)
class Issued:
    """One dispatch: which of its attempts have ended (a byte each) and how often with which (family, code)."""

    identity: str
    dispatch: Dispatch
    families: tuple[str, ...]
    seq: int
    ended: bytearray = field(default_factory=bytearray)
    codes: Counter[tuple[str, str]] = field(default_factory=Counter)
    table: str | None = None

    def __post_init__(self) -> None:
        self.ended = bytearray(len(self.dispatch.tasks) * self.dispatch.samples)

    def end(self, at: Place) -> str | None:
        """Notes an outcome; what is wrong with it, None if nothing."""
        if at.place >= len(self.dispatch.tasks) or at.sample >= self.dispatch.samples or self.dispatch.tasks[at.place] != at.task:
            return "was never issued"
        index = at.place * self.dispatch.samples + at.sample
        if self.ended[index]:
            return "has more than one outcome"
        self.ended[index] = 1
        return None

    @property
    def missing(self) -> int:
        """Attempts without an outcome."""
        return len(self.ended) - sum(self.ended)

    def issued(self) -> Counter[str]:
        """Attempts per family."""
        return Counter({family: count * self.dispatch.samples for family, count in Counter(self.families).items()})

    def flying(self) -> Counter[str]:
        """Attempts without an outcome, per family."""
        found: Counter[str] = Counter()
        for place, family in enumerate(self.families):
            here = self.ended[place * self.dispatch.samples:(place + 1) * self.dispatch.samples]
            found[family] += len(here) - sum(here)
        return +found


@dataclass(slots=True)
class Distribution:
    """Counts of trajectories by family, by length in tokens and by latency class."""

    families: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    latencies: Counter[int] = field(default_factory=Counter)

    def add(self, family: str, length: int, latency: int | None) -> None:
        self.families[family] += 1
        self.lengths[length] += 1
        if latency is not None:
            self.latencies[latency] += 1


def latency_class(observed: Mapping[str, float]) -> int | None:
    """The class of a trajectory's latency, None where none was noted."""
    seconds = observed.get("latency_s")
    return None if seconds is None or seconds <= 0 else math.floor(PER_DECADE * math.log10(seconds))


def compared(issued: Distribution, trained: Distribution) -> str:
    """The trained distribution beside the issued one, in words: families, quarters of length and of latency."""
    total, kept = sum(issued.families.values()), sum(trained.families.values())
    if not total:
        return ""
    parts = [f"trained {kept} of {total} issued ({kept / total:.0%})"]
    if len(issued.families) > 1:
        parts.append("by family " + ", ".join(f"{name} {trained.families[name]}/{count}"
                                              for name, count in sorted(issued.families.items())))
    for what, mine, theirs in (("length", issued.lengths, trained.lengths), ("latency", issued.latencies, trained.latencies)):
        if mine:
            parts.append(f"by quarter of {what}, short to long, " + ", ".join(
                f"{a}/{b}" for a, b in zip(_quarters(mine, theirs), _quarters(mine, mine), strict=True)))
    return "; ".join(parts)


def _quarters(bounds: Counter[int], counted: Counter[int]) -> list[int]:
    """How many of `counted` lie in each quarter of `bounds`; equal values share a quarter."""
    total, seen = sum(bounds.values()), 0
    found = [0, 0, 0, 0]
    for value in sorted(bounds):
        found[min(3, 4 * seen // total)] += counted[value]
        seen += bounds[value]
    return found
