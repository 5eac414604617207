"""What the log of a run says, read once: the standing records by kind, and what could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rollbook.ledger import Ledger, RecordTable, Repair, Rollback, TraceTable
from rollbook.records import (
    AuditReport,
    Census,
    Comparison,
    CurriculumReport,
    EvalReport,
    EvaluationProtocol,
    EvaluationResult,
    GateDecision,
    HostRun,
    PolicyVersion,
    ResolvedRecipe,
    RollbookError,
    RunEnd,
    Selection,
    SftReport,
    SplitManifest,
    StageEnd,
    StepReport,
    TokenizerFile,
)

T = TypeVar("T")
FAULTS = 10     # refusals named one by one
READ = frozenset(cls.__name__ for cls in (
    AuditReport, Census, Comparison, CurriculumReport, EvalReport, EvaluationProtocol, EvaluationResult, GateDecision, HostRun,
    PolicyVersion, RecordTable, Repair, ResolvedRecipe, Rollback, RunEnd, Selection, SftReport, SplitManifest, StageEnd,
    StepReport, TokenizerFile, TraceTable))


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A record with its place in the log."""

    seq: int
    id: str
    record: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A run as its log tells it. `faults` are the refusals met while reading; `began` and `seen` the first and last time."""

    ledger: Ledger
    logged: Mapping[str, tuple[Logged, ...]]
    events: int
    began: float | None
    seen: float | None
    faults: tuple[str, ...]

    @property
    def root(self) -> Path:
        return self.ledger.root

    @property
    def manifest(self) -> Mapping[str, Any]:
        return self.ledger.manifest

    def entries(self, cls: type) -> tuple[Logged, ...]:
        """The records of a class in log order, with their places."""
        return self.logged.get(cls.__name__, ())

    def all(self, cls: type[T]) -> tuple[T, ...]:
        """The records of a class in log order."""
        return tuple(entry.record for entry in self.entries(cls))

    def last(self, cls: type[T]) -> T | None:
        """The newest record of a class, None when there is none."""
        found = self.entries(cls)
        return found[-1].record if found else None


def read_facts(run: Path) -> Facts:
    """Everything the report reads of the log. A damaged log is read up to the damage, which `faults` names."""
    ledger = Ledger.open(run, write=False)
    logged: dict[str, list[Logged]] = {}
    faults: list[str] = []
    times: list[float] = []
    try:
        for when, event in ledger.times(READ):
            times.append(when)
            if event is not None:
                try:
                    logged.setdefault(event.kind, []).append(Logged(seq=event.seq, id=event.id, record=event.record()))
                except RollbookError as error:
                    faults.append(str(error))
    except RollbookError as error:
        faults.append(str(error))
    if len(faults) > FAULTS:
        faults[FAULTS:] = [f"and {len(faults) - FAULTS} more records that do not decode"]
    return Facts(ledger=ledger, logged={kind: tuple(found) for kind, found in logged.items()}, events=len(times),
                 began=times[0] if times else None, seen=times[-1] if times else None, faults=tuple(faults))
