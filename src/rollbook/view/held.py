"""Runs that are looked at: read again when their log has grown, whole or up to the damage."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.ledger import Ledger, TraceTable
from rollbook.records import (
    Batch,
    EvaluationProtocol,
    EvaluationResult,
    ResolvedRecipe,
    RollbookError,
    RunEnd,
    Task,
    Update,
)
from rollbook.report.alerts import Alert, alerts
from rollbook.report.facts import Facts, read_facts
from rollbook.report.tokens import TokenTexts, token_texts
from rollbook.view.rows import MANY, Rows

FRESH_S = 1.0       # a run is not read again sooner


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Where a trajectory went: the batches that hold it, with the update each led to; hashes of their tensors."""

    scope: str
    batch: str
    tensors: str
    sequence: int
    update: str | None
    update_tensors: str | None


class HeldRun:
    """One run under a name of its own. Reading never changes the folder; a live run is read again as it grows."""

    def __init__(self, key: str, root: Path):
        self.key, self.root = key, root
        self._mutex = threading.RLock()
        self._read_at, self._size = 0.0, (-1, -1, -1)
        self._facts: Facts | None = None
        self._rows, self._rows_read = Rows(), False
        self._tasks: dict[str, Task] = {}
        self._batches: dict[str, list[Steps]] = {}
        self._texts: TokenTexts | None = None
        self._made: dict[str, Any] = {}
        self._alerts: tuple[Alert, ...] = ()

    def refresh(self) -> HeldRun:
        """Takes in what was logged since; the same object."""
        with self._mutex:
            now = time.monotonic()
            if self._facts is None or now - self._read_at > FRESH_S:
                size = (*log_size(self.root), _begun(self.root))
                if self._facts is None or size != self._size:
                    self._load()
                    self._size = size
                self._read_at = now
        return self

    def _load(self) -> None:
        facts = read_facts(self.root)
        self._rows_read = False
        self._tasks, self._batches, self._made = {}, {}, {}
        self._texts = None
        self._facts, self._alerts = facts, alerts(facts)

    @property
    def facts(self) -> Facts:
        if self._facts is None:
            self.refresh()
        assert self._facts is not None
        return self._facts

    @property
    def rows(self) -> Rows:
        """The trajectories, read when they are first asked for and when the log has grown since."""
        with self._mutex:
            ledger = self.facts.ledger
            if not self._rows_read:
                self._rows, self._rows_read = self._rows.after(ledger, self.facts.entries(TraceTable)), True
            return self._rows

    @property
    def trajectories(self) -> int:
        """How many the log counts."""
        return sum(table.rows for table in self.facts.all(TraceTable))

    @property
    def unread(self) -> tuple[str, ...]:
        """Tables that could not be read, as far as that was tried."""
        return self._rows.faults

    @property
    def alerts(self) -> tuple[Alert, ...]:
        return self._alerts

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def live(self) -> bool:
        return self.facts.last(RunEnd) is None

    @property
    def texts(self) -> TokenTexts:
        """Token texts from the newest checkpoint."""
        with self._mutex:
            if self._texts is None:
                self._texts = token_texts(self.facts)
            return self._texts

    def task(self, identity: str) -> Task | None:
        """A task's contract, None where no table holds it."""
        with self._mutex:
            if not self._tasks:
                try:
                    self._tasks = {task.id: task for task in self.facts.ledger.records(Task)}
                except (RollbookError, OSError):
                    return None
            return self._tasks.get(identity)

    def steps_of(self, trace: str) -> Sequence[Steps]:
        """Every batch that a trajectory was trained in."""
        with self._mutex:
            if not self._batches:
                self._batches = _batches(self.facts.ledger)
            return self._batches.get(trace, ())

    @property
    def protocol(self) -> EvaluationProtocol | None:
        """The protocol of an evaluation that is no part of a training run; None for a run."""
        return self.facts.last(EvaluationProtocol) if self.facts.last(ResolvedRecipe) is None else None

    def evaluations(self) -> tuple[tuple[EvaluationProtocol, EvaluationResult], ...]:
        """Results of evaluations outside a training run, with their protocol."""
        protocols = {entry.id: entry.record for entry in self.facts.entries(EvaluationProtocol)}
        return tuple((protocols[result.protocol], result) for result in self.facts.all(EvaluationResult)
                     if result.protocol in protocols)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` gives, made again only when the log has grown."""
        with self._mutex:
            if name not in self._made:
                self._made[name] = make()
            return self._made[name]

    def record(self, identity: str) -> Any:
        """The log entry with this id, None where there is none."""
        return next((event for event in _readable(self.facts.ledger) if event.id == identity), None)


def keep_columns(root: Path) -> None:
    """Keeps what lists need of a run that has just ended, so that its first page need not read many tables. A run that cannot be
    read keeps nothing: its pages say why."""
    with contextlib.suppress(RollbookError, OSError):
        run = HeldRun("run", root).refresh()
        if len(run.facts.entries(TraceTable)) >= MANY:
            run.rows.keep(run.facts.ledger.genesis)


def log_size(root: Path) -> tuple[int, int]:
    """Files and bytes of the log: what grows when something is recorded."""
    try:
        files = [path.stat().st_size for path in (root / "events").iterdir()]
    except OSError:
        return (0, 0)
    return len(files), sum(files)


def _begun(root: Path) -> int:
    """When the manifest was written: another run in the same place has another one."""
    try:
        return (root / "manifest.json").stat().st_mtime_ns
    except OSError:
        return 0


def _readable(ledger: Ledger, kind: str | None = None) -> list[Any]:
    """The events, all or of one kind, up to the first damage."""
    found: list[Any] = []
    with contextlib.suppress(RollbookError):
        found.extend(ledger.events(kind))
    return found


def _batches(ledger: Ledger) -> dict[str, list[Steps]]:
    held: dict[str, Batch] = {}
    updates: dict[str, tuple[str, Update]] = {}
    for event in (*_readable(ledger, "Batch"), *_readable(ledger, "Update")):
        try:
            record = event.record()
        except RollbookError:
            continue
        if isinstance(record, Batch):
            held[event.id] = record
        elif isinstance(record, Update):
            updates[record.batch] = (event.id, record)
    found: dict[str, list[Steps]] = {}
    for identity, batch in held.items():
        update = updates.get(identity)
        for sequence, trace in enumerate(batch.traces):
            found.setdefault(trace, []).append(Steps(
                scope=batch.scope, batch=identity, tensors=batch.tensors, sequence=sequence,
                update=update[0] if update else None, update_tensors=update[1].tensors if update else None))
    return found
