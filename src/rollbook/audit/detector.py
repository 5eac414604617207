"""A detector watches one stage of the chain while a run is read once, in order, and ends with one row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rollbook.audit.index import RunIndex
from rollbook.records import AuditRow, Batch, Credit, Outcome, Trace, TraceId, Update, Verdict
from rollbook.records.rollout import UNSAMPLED

KEPT = 20       # failures a detector keeps in words; the rest are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One thing that is wrong: the record it was found in, what was found, what to do."""

    record: str
    evidence: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trajectory as it is stored."""

    id: TraceId
    trace: Trace
    verdict: Verdict | None
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStep:
    """One optimizer step as it is stored: the records with their ids, and their tensors as numpy arrays.

    `given` are the batch's tensors (names: see `records.Batch`), `found` the update's (see `records.Update`).
    """

    batch_id: str
    batch: Batch
    given: Mapping[str, np.ndarray]
    credit_id: str | None
    credit: Credit | None
    update_id: str
    update: Update
    found: Mapping[str, np.ndarray]

    @property
    def sampled_T(self) -> np.ndarray:
        """Which of the tokens a policy sampled; all of them where no versions are stored."""
        version_T = self.given.get("version")
        return np.ones(self.given["seq"].shape, dtype=bool) if version_T is None else version_T != UNSAMPLED


class Detector:
    """Sees every record, trajectory and optimizer step of a run in log order; overrides what it needs.

    `run` holds what was read before (tasks, envelopes, versions, recent trajectories ...). A detector keeps bounded state.
    It must call `checked` for what it examined, `fail` for what is wrong, `note` for numbers a person should see.
    """

    stage: ClassVar[int]
    name: ClassVar[str]
    absent: ClassVar[str]       # why the stage is not applicable when nothing was checked

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self.failed = 0
        self.examined = 0
        self.notes: list[str] = []

    def record(self, run: RunIndex, identity: str, record: object) -> None:
        """One record with its content id; the rows of record tables come one by one."""

    def row(self, run: RunIndex, row: Row) -> None:
        """One trajectory."""

    def step(self, run: RunIndex, step: StoredStep) -> None:
        """One optimizer step of a policy stage, when its update is read."""

    def finish(self, run: RunIndex) -> None:
        """After the last record; `run.complete` says whether the run had ended."""

    def checked(self, count: int = 1) -> None:
        """Counts what was examined."""
        self.examined += count

    def fail(self, record: str, evidence: str, remedy: str) -> None:
        """Something is wrong in this record (an id, or an event's position)."""
        self.failed += 1
        if len(self.failures) < KEPT:
            self.failures.append(Failure(record=record, evidence=evidence, remedy=remedy))

    def note(self, text: str) -> None:
        """A finding that is no failure, shown beside the result."""
        self.notes.append(text)

    def result(self) -> AuditRow:
        """The stage's row: failed, passed, or not applicable with the reason."""
        notes = "; ".join(self.notes)
        if self.failures:
            first = self.failures[0]
            more = f" ({self.failed} findings in all)" if self.failed > 1 else ""
            return AuditRow(stage=self.stage, name=self.name, result="fail", record=first.record, evidence=first.evidence + more,
                            remedy=first.remedy)
        if not self.examined:
            return AuditRow(stage=self.stage, name=self.name, result="not_applicable", record=None,
                            evidence=notes or self.absent, remedy=None)
        return AuditRow(stage=self.stage, name=self.name, result="pass", record=None,
                        evidence=f"{self.examined} checked" + (f"; {notes}" if notes else ""), remedy=None)
