"""What the research-audit checklist reads of a run, and how a fact is written down."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from rollbook.evidence.registry import Registry
from rollbook.ledger import RecordTable
from rollbook.records import (
    Batch,
    Credit,
    Dispatch,
    EnvironmentImage,
    ProtocolBundle,
    ResolvedRecipe,
    RollbookError,
    SamplingEnvelope,
    content_id,
)
from rollbook.report.facts import Facts

LISTED = 6      # names of one kind before the rest is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One answer. `value` None means that the run does not show it, and `where` then says why.

    Example: Fact(what="trajectories", value="4,096", where="TraceTable")
    """

    what: str
    value: str | None
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question with its facts."""

    number: int
    question: str
    facts: tuple[Fact, ...]


@dataclass(slots=True, kw_only=True)
class Seen:
    """What is read of a run for the checklist, beyond what the report reads."""

    facts: Facts
    parts: Sequence[tuple[str, str]]
    registry: Registry
    batches: list[Batch] = field(default_factory=list)
    trained_tasks: set[str] = field(default_factory=set)
    issued: int = 0
    envelopes: list[SamplingEnvelope] = field(default_factory=list)
    protocols: dict[str, ProtocolBundle] = field(default_factory=dict)
    images: list[EnvironmentImage] = field(default_factory=list)

    @property
    def recipe(self) -> ResolvedRecipe | None:
        return self.facts.last(ResolvedRecipe)

    def read(self) -> None:
        """One pass over the log. A damaged log is read up to the damage, which the facts name."""
        try:
            for event in self.facts.ledger.events():
                if event.kind in _READ:
                    self._take(event.record())
        except RollbookError:
            return

    def _take(self, record: Any) -> None:
        match record:
            case Batch():
                self.batches.append(record)
            case Credit():
                self.trained_tasks |= {group.rpartition("/")[2] for group in record.group_of}
            case Dispatch():
                self.issued += len(record.tasks) * record.samples
            case SamplingEnvelope():
                self.envelopes.append(record)
            case ProtocolBundle():
                self.protocols[content_id(record)] = record
            case EnvironmentImage():
                self.images.append(record)

    def owners(self) -> list[str]:
        """Who wrote the tokens of the trajectories: policy, user, tool, subagent and so on."""
        found: set[str] = set()
        for batch in self.facts.ledger.traces(["spans"]):
            found |= set(pc.struct_field(pc.list_flatten(batch.column("spans")), "owner").unique().to_pylist())
        return sorted(found)

    def rows(self, name: str) -> int | None:
        """Rows of the newest table of this name."""
        found = [table.rows for table in self.facts.all(RecordTable) if table.name == name]
        return found[-1] if found else None


_READ = frozenset(cls.__name__ for cls in (Batch, Credit, Dispatch, SamplingEnvelope, ProtocolBundle, EnvironmentImage))


def stored(folder: Path) -> tuple[int, int]:
    """Tensors of a checkpoint's safetensors files and their elements, read from the headers alone."""
    tensors = elements = 0
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError("no safetensors")
    for file in files:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(length))
        for name, about in header.items():
            if name != "__metadata__":
                size = 1
                for extent in about["shape"]:
                    size *= extent
                tensors, elements = tensors + 1, elements + size
    return tensors, elements


def stated(what: str, value: str | None, where: str, why: str) -> Fact:
    """The fact, or that the run does not show it and why."""
    return Fact(what=what, value=value, where=where if value is not None else why)


def listed(names: Sequence[str]) -> str:
    """How many and the first names; "none" for none."""
    if not names:
        return "none"
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{len(names)}: {', '.join(names[:LISTED])}{more}"
