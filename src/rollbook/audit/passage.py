"""One passage over a run, in log order and bounded memory: every record goes once past every detector."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from safetensors.numpy import load

from rollbook.audit.detector import Detector, Row, StoredStep
from rollbook.audit.detectors import all_detectors
from rollbook.audit.index import RunIndex
from rollbook.ledger import Event, Ledger
from rollbook.ledger.trace_ids import trace_ids
from rollbook.ledger.traces import Identified
from rollbook.ledger.traces import Row as Trajectory
from rollbook.records import (
    AuditReport,
    AuditRow,
    Batch,
    Credit,
    HostRun,
    TraceId,
    Update,
    content_id,
    digest,
)
from rollbook.records.codec import OBSERVED, canonical

Told = Callable[[int], None]
TOGETHER = 512          # trajectories whose ids are computed together
MISNAMED = "is filed under an id that is not the hash of its content"


def audit_run(path: str | os.PathLike[str], *, sample: int = 0, told: Told = lambda _: None) -> AuditReport:
    """Fourteen findings about the run in this folder, from its artifacts alone.

    With a `sample` above 0 environments, models and gradients are run again on that many trajectories. `told` is called with the
    sequence number after every event. Raises LedgerError with the position where the chain of hashes, a table or an object is
    broken: nothing can be said about a run that was altered after it was written.
    """
    ledger = Ledger.open(Path(path), write=False)
    ledger.verify().require("an audit")
    detectors = all_detectors()
    run = read(ledger, detectors, told)
    rows = tuple(_row(run, detector) for detector in detectors)
    return AuditReport(run=str(Path(path).name), rows=_deepened(path, rows, sample) if sample else rows)


def _deepened(path: str | os.PathLike[str], rows: Sequence[AuditRow], sample: int) -> tuple[AuditRow, ...]:
    """The rows with what running again on a sample showed: it can fail a row, never pass one."""
    from rollbook.audit.deep import deep_findings

    found = {row.stage: row for row in rows}
    for one in deep_findings(path, sample=sample):
        row = found[one.stage]
        words = "not run again" if one.result == "not_executed" else "run again"
        if one.result == "fail" and row.result != "fail":
            row = replace(row, result="fail", record=one.record, remedy=one.remedy)
        found[one.stage] = replace(row, evidence=f"{row.evidence}; {words}: {one.evidence}")
    return tuple(found[row.stage] for row in rows)


def _row(run: RunIndex, detector: Detector) -> AuditRow:
    """The detector's finding; of a stage that the host of a recorded run does not show, the host's own words why."""
    host = run.host
    if detector.name == "update":               # the row that compares with the recipe
        for what in run.contradictions:
            detector.fail(what.partition(" ")[0], what, "record one recipe, the manifest's, or one host, before anything else")
    if host is not None and detector.name in host.unseen:
        return AuditRow(stage=detector.stage, name=detector.name, result="not_applicable", record=None, remedy=None,
                        evidence=f"{host.host} {host.version}: {host.unseen[detector.name]}")
    detector.finish(run)
    if host is not None and detector.name in host.partly:
        detector.note(f"{host.host} {host.version}: {host.partly[detector.name]}")
    return detector.result()


def read(ledger: Ledger, detectors: Sequence[Detector], told: Told = lambda _: None) -> RunIndex:
    """Shows every standing record, trajectory and optimizer step to the detectors; returns what was indexed.

    A detector of a stage that the host of a recorded run does not show sees nothing of that run.
    """
    run, steps, detectors = RunIndex(ledger), _Steps(ledger), list(detectors)
    for event in ledger.events():
        run.seq, run.position = event.seq, event.position
        if event.kind == "TraceTable":
            _trajectories(run, event, detectors)
        elif event.kind == "RecordTable":
            run.table = str(event.body["name"])
            _named(run, event)
            for record in ledger.table_records(event):
                _show(run, content_id(record), record, detectors)
        else:
            run.table = None
            record = event.record()
            _named(run, event)
            if isinstance(record, HostRun) and run.recipe is None:
                detectors = [detector for detector in detectors if detector.name not in record.unseen]
            _show(run, event.id, record, detectors)
            step = steps.take(event.id, record) if run.host is None else None       # a host has no optimizer batches
            if step is not None:
                for detector in detectors:
                    detector.step(run, step)
        told(event.seq)
    return run


def _show(run: RunIndex, identity: str, record: object, detectors: Sequence[Detector]) -> None:
    run.take(identity, record)
    for detector in detectors:
        detector.record(run, identity, record)


def _trajectories(run: RunIndex, event: Event, detectors: Sequence[Detector]) -> None:
    """The table's record, then its rows."""
    run.table = str(event.body["name"])
    _named(run, event)
    _show(run, event.id, event.record(), detectors)
    for identity, (trace, verdict, outcome), own in named_rows(run.ledger.rows(event)):
        if identity != own:
            run.contradictions.append(f"{identity} {MISNAMED}: {trace.attempt} in {run.table} is {own[:18]}")
        run.recent.add(identity, trace, verdict)
        row = Row(id=identity, trace=trace, verdict=verdict, outcome=outcome)
        for detector in detectors:
            detector.row(run, row)


def _named(run: RunIndex, event: Event) -> None:
    """A record's id is the hash of its content; whoever files it under another one says that it is something else."""
    content = {name: value for name, value in event.body.items() if name != OBSERVED}
    own = f"{event.kind}:{digest(canonical(content))}"
    if event.id != own:
        run.contradictions.append(f"{event.id} {MISNAMED}, {own[:40]} ({event.position})")


def named_rows(rows: Iterable[Identified]) -> Iterator[tuple[TraceId, Trajectory, TraceId]]:
    """Trajectories with the id they are filed under and that of their content, in bounded memory."""
    held = iter(rows)
    while part := list(islice(held, TOGETHER)):
        own = trace_ids([trace for _, (trace, _, _) in part])
        yield from ((identity, row, name) for (identity, row), name in zip(part, own, strict=True))


class _Steps:
    """Joins credit, batch and update of one optimizer step as they come by."""

    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        self.credits: dict[str, tuple[str, Credit]] = {}
        self.batches: dict[str, Batch] = {}

    def take(self, identity: str, record: object) -> StoredStep | None:
        """The whole step when this record is its update."""
        if isinstance(record, Credit):
            self.credits[record.scope] = (identity, record)
        elif isinstance(record, Batch):
            self.batches[identity] = record
        elif isinstance(record, Update) and record.batch in self.batches:
            batch = self.batches.pop(record.batch)
            credit_id, credit = self.credits.pop(batch.scope, (None, None))
            return StoredStep(batch_id=record.batch, batch=batch, given=load(self.ledger.get(batch.tensors)), credit_id=credit_id,
                              credit=credit, update_id=identity, update=record, found=load(self.ledger.get(record.tensors)))
        return None
