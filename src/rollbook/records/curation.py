"""Curation on record: what every filter saw, kept, changed and threw away, and the immutable set that came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from rollbook.records.errors import RecordError

Scalar = str | bool | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurationStage:
    """One stage of a curation: `count_in` = `count_out` + all of `rejected` - `added`.

    `before` and `after` hash the rows that went in and came out, in order; `settings` hashes the stage's settings and the code
    that ran it. `changed` counts rows that came out different, by reason; `notes` holds numbers of the stage's own.

    Example: CurationStage(number=3, kind="ExactDuplicates", settings="5d..", before="a1..", after="b2..", count_in=100,
        count_out=97, rejected={"duplicate": 3}, added=0, changed={}, notes={})
    """

    SCHEMA: ClassVar[int] = 1
    number: int
    kind: str
    settings: str
    before: str
    after: str
    count_in: int
    count_out: int
    rejected: Mapping[str, int]
    added: int
    changed: Mapping[str, int]
    notes: Mapping[str, Scalar]
    observed: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count_in + self.added != self.count_out + sum(self.rejected.values()):
            raise RecordError(f"the counts of curation stage {self.number} ({self.kind}) do not close",
                              got=f"{self.count_in} in, {self.added} added, {self.count_out} out, {sum(self.rejected.values())} "
                                  "rejected", why="a row was lost or counted twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class CuratedSet:
    """An immutable set of tasks: the hash of its file, its rows by side, and the stages that made it.

    `sources` maps an input file's name to its SHA-256; `unread` counts rows that could not be read, by reason.

    Example: CuratedSet(name="sums", tasks="9c..", rows=97, sides={"train": 90, "heldout": 7}, stages=("CurationStage:1f..",),
        sources={"raw.jsonl": "77.."}, unread={"not JSON": 1}, pipeline="3b..")
    """

    SCHEMA: ClassVar[int] = 1
    name: str
    tasks: str
    rows: int
    sides: Mapping[str, int]
    stages: tuple[str, ...]
    sources: Mapping[str, str]
    unread: Mapping[str, int]
    pipeline: str
