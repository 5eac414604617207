"""The run folder: one writer, any number of readers, everything in it covered by one chain of hashes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rollbook.ledger.chain import Event, is_void, read_event, read_events, read_some, scan, void_ranges
from rollbook.ledger.genesis import read_manifest, write_manifest
from rollbook.ledger.kinds import HOUSEKEEPING, TABLES, RecordTable, Rollback, TraceTable, known_kind, loggable
from rollbook.ledger.layout import FOLDERS, LOCK, MANIFEST, refusing, sync_folder, table_file, table_path
from rollbook.ledger.lock import WriteLock
from rollbook.ledger.log import EventLog, entry, log_end
from rollbook.ledger.manifest import machine
from rollbook.ledger.objects import file_digest, get_object, put_object
from rollbook.ledger.repair import mend, tail_of
from rollbook.ledger.verify import VerifyReport, verify_run
from rollbook.records import LedgerError, Outcome, Scored, Trace, TraceId, Unscored, Verdict

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
ROW_PARTS = {Trace: 0, Scored: 1, Unscored: 1, Outcome: 2}


class Ledger:
    """A run on the record. Use as a context manager, or call `close()`.

    Every writing method is durable before it returns and thread-safe; a raised error means that nothing was recorded.

    Example:
        with Ledger.create("runs/a", manifest) as ledger:
            ledger.append(recipe)
            ledger.write_traces("rl/000001", traces, verdicts, outcomes)
    """

    def __init__(self, root: Path, manifest: Mapping[str, Any], genesis: str):
        self.root, self.manifest, self.genesis = root, manifest, genesis
        self._mutex = threading.RLock()
        self._lock: WriteLock | None = None
        self._log: EventLog | None = None
        self._tables: set[Path] = set()
        self._trusted: dict[Path, str] = {}

    @classmethod
    def create(cls, path: str | os.PathLike[str], manifest: Mapping[str, Any]) -> Self:
        """A new run, open for writing; refuses an existing run and a folder that is not empty, and leaves nothing half-made."""
        root = Path(path).absolute()
        with refusing(f"the run folder {path} could not be created"):
            _refuse_occupied(root, path)
            root.parent.mkdir(parents=True, exist_ok=True)
            draft = root.parent / f".{root.name}.{uuid.uuid4().hex[:8]}"
            try:
                draft.mkdir()
                for folder in FOLDERS:
                    (draft / folder).mkdir()
                write_manifest(draft, manifest)
                sync_folder(draft)
                os.rename(draft, root)
                sync_folder(root.parent)
            except BaseException:
                _remove_draft(draft)
                raise
        return cls.open(root)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, write: bool = True) -> Self:
        """An existing run. Writing takes the run's lock, verifies the whole chain and mends what a killed process left behind.

        Reading never changes anything and works beside a writer: it sees what was complete when each iteration began.
        """
        root = Path(path).absolute()
        manifest, genesis = read_manifest(root)
        ledger = cls(root, manifest, genesis)
        if write:
            ledger._lock = WriteLock(root / LOCK)
            try:
                ledger._take_over()
            except BaseException:
                ledger.close()
                raise
        return ledger

    def _take_over(self) -> None:
        tail = tail_of(self.root, self.genesis)
        self._tables = set(tail.tables)
        self._log = EventLog(self.root, log_end(self.root, self.genesis, tail.last))
        for repair, act in mend(self.root, tail):
            self._log.append([entry(repair)])
            act()

    def append(self, record: Any, *, observed: Mapping[str, Any] | None = None) -> str:
        """Logs a record with its body inline; the content id. `observed` is noted beside it, outside the id."""
        return self._append([entry(record, observed)])[0]

    def append_many(self, records: Iterable[Any]) -> list[str]:
        """Logs records with one wait for the disk; their ids. After a kill a prefix of them may stand."""
        return self._append(map(entry, tuple(records)))

    def _append(self, entries: Iterable[Any]) -> list[str]:
        with self._mutex:
            return self._writer().append(entries)

    def put(self, data: bytes) -> str:
        """Stores a blob; its hex SHA-256."""
        self._writer()
        return put_object(self.root, data)

    def get(self, name: str) -> bytes:
        """The blob with this hex SHA-256, verified."""
        return get_object(self.root, name)

    def write_traces(self, name: str, traces: Sequence[Trace], verdicts: Sequence[Verdict], outcomes: Sequence[Outcome]) -> str:
        """Commits trajectories as one table, matched by trace id and attempt; the id of its `TraceTable` record.

        A trace without a verdict is fine; every trace needs one outcome; log-probs must be float32 values.
        """
        from rollbook.ledger.traces import match, write_rows

        with self._mutex:
            path = self._free(table_path("traces", name))
            return self._commit(write_rows(self.root, path, name, match(traces, verdicts, outcomes)))

    def write_table(self, name: str, records: Sequence[Any]) -> str:
        """Commits records of one kind as one table; the id of its `RecordTable` record."""
        from rollbook.ledger.tables import write_records

        with self._mutex:
            path = self._free(table_path("tables", name))
            return self._commit(write_records(self.root, path, name, records))

    def _free(self, path: str) -> str:
        self._writer()
        if self.root / path in self._tables:
            raise LedgerError(f"the table {path} is already in the log", why="a committed table never changes",
                              fix="choose another name")
        return path

    def _commit(self, table: TraceTable | RecordTable) -> str:
        path = self.root / str(table.observed["path"])
        try:
            identity = self._append([entry(table)])[0]
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise
        self._tables.add(path)
        self._trusted[path] = str(table.observed["sha256"])
        return identity

    def holds(self, table: TraceTable | RecordTable) -> None:
        """Remembers a table that was appended with its file, so that its name is taken."""
        self._tables.add(self.root / str(table.observed["path"]))

    def rollback(self, after: int, reason: str) -> int:
        """Declares every event after sequence number `after` void, for a step that was not finished; how many there were.

        The events stay in the log, iteration leaves them out, their tables are removed and their names are free again. The
        machine is noted beside the rollback: on the same one what is made again comes out the same.
        """
        with self._mutex:
            last = self._writer().end.seq
            void = [event for event in self.events() if event.seq > after and event.kind not in HOUSEKEEPING]
            if void:
                self._append([entry(Rollback(first=after + 1, last=last, reason=reason), {"machine": machine()})])
                for event in (event for event in void if event.kind in TABLES):
                    path = table_file(self.root, event.record().observed.get("path"), event.position)
                    self._tables.discard(path)
                    with refusing(f"the void table {path.name} could not be removed"):
                        path.unlink(missing_ok=True)
            return len(void)

    @property
    def last_seq(self) -> int:
        """Sequence number of the last event, 0 for none; the run must be open for writing."""
        return self._writer().end.seq

    def events(self, kind: str | None = None) -> Iterator[Event]:
        """The standing events in order, all or of one kind; the chain is verified along the way."""
        return read_events(self.root, self.genesis, None if kind is None else {loggable(kind)})

    def times(self, kinds: Collection[str]) -> Iterator[tuple[float, Event | None]]:
        """Of every standing event its time, and the event where it is of these kinds; the chain is verified along the way."""
        return read_some(self.root, self.genesis, {loggable(kind) for kind in kinds})

    def void_events(self) -> Iterator[Event]:
        """The events that a rollback took back, in order: what was done and then made again. Their tables are gone."""
        ranges = void_ranges(self.root, self.genesis)
        for link in scan(self.root, self.genesis) if ranges else ():
            event = read_event(link)
            if is_void(event, ranges):
                yield event

    def records(self, cls: type[T]) -> Iterator[T]:
        """Every standing record of a class in log order: logged alone, in a table, or in the rows of a trace table."""
        in_rows = ROW_PARTS.get(cls)
        kinds = {loggable(cls.__name__), "RecordTable", *(() if in_rows is None else ("TraceTable",))}
        for event in read_events(self.root, self.genesis, kinds):
            if event.kind == cls.__name__:
                yield event.record()
            elif event.kind == "RecordTable":
                table = event.record()
                if table.of == cls.__name__:
                    yield from self._table_rows(table, cls, event.position)
            elif in_rows is not None:
                parts = (row[in_rows] for row in self._trace_rows(event))
                yield from (part for part in parts if isinstance(part, cls))

    def _table_rows(self, table: RecordTable, cls: type[T], position: str) -> Iterator[T]:
        from rollbook.ledger.tables import read_records

        known_kind(table.of, table.schema, position)
        return read_records(self._verified(table, position), cls, f"{position}, table {table.name}")

    def traces(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All trajectories as Arrow batches (ledger.columns names the columns), in log order and bounded memory."""
        from rollbook.ledger.traces import read_batches

        for event in self.events("TraceTable"):
            file = self._verified(event.record(), event.position)
            yield from read_batches(file, f"{event.position}, table {file.name}", columns)

    def read_traces(self, name: str | None = None) -> Iterator[tuple[Trace, Verdict | None, Outcome]]:
        """All trajectories, or those of one table, as the records that were written, with the same ids; bounded memory."""
        found = name is None
        for event in self.events("TraceTable"):
            if name is None or event.body["name"] == name:
                found = True
                yield from self._trace_rows(event)
        if not found:
            raise LedgerError("the run has no trace table of this name", got=repr(name),
                              fix="read_traces() without a name reads all")

    def rows(self, event: Event) -> Iterator[tuple[TraceId, tuple[Trace, Verdict | None, Outcome]]]:
        """The trajectories of a `TraceTable` event with their ids; bounded memory."""
        from rollbook.ledger.trace_rows import read_identified

        file = self._verified(event.record(), event.position)
        return read_identified(file, f"{event.position}, table {file.name}")

    def table_records(self, event: Event) -> Iterator[Any]:
        """The records of a `RecordTable` event."""
        table = event.record()
        return self._table_rows(table, known_kind(table.of, table.schema, event.position), event.position)

    def table_path(self, event: Event) -> Path:
        """The Parquet file of a `TraceTable` or `RecordTable` event, its hash compared with the log."""
        return self.table_file(event.record(), event.position)

    def table_file(self, table: TraceTable | RecordTable, position: str) -> Path:
        """The same of a record that was read; `position` says where in the log it stands."""
        return self._verified(table, position)

    def _trace_rows(self, event: Event) -> Iterator[tuple[Trace, Verdict | None, Outcome]]:
        from rollbook.ledger.trace_rows import read_rows

        file = self._verified(event.record(), event.position)
        return read_rows(file, f"{event.position}, table {file.name}")

    def _verified(self, table: TraceTable | RecordTable, position: str) -> Path:
        """The table's file, its hash compared with the log once per opening of the run."""
        path = table_file(self.root, table.observed.get("path"), position)
        stated = str(table.observed.get("sha256"))
        if self._trusted.get(path) != stated:
            relative = path.relative_to(self.root)
            if not path.is_file():
                raise LedgerError(f"table {relative} is missing", why=f"{position} refers to it",
                                  fix="restore it from a copy of the run")
            if file_digest(path) != stated:
                raise LedgerError(f"table {relative} is damaged", got=f"content with another hash than {position} states",
                                  fix="restore it from a copy of the run")
            self._trusted[path] = stated
        return path

    def verify(self) -> VerifyReport:
        """What the chain, the tables and the objects say about themselves; never raises for damage, names its first position."""
        return verify_run(self.root)

    def semantic_hash(self) -> str:
        """Hash over the kinds and ids of the standing events in order: equal for runs that did the same."""
        hasher = hashlib.sha256()
        for event in self.events():
            if event.kind not in HOUSEKEEPING:
                hasher.update(f"{event.kind} {event.id}\n".encode())
        return hasher.hexdigest()

    def close(self) -> None:
        """Gives the lock back; reading goes on working."""
        with self._mutex:
            if self._log is not None:
                self._log.close()
                self._log = None
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _writer(self) -> EventLog:
        if self._log is None or self._lock is None or not self._lock.held:
            raise LedgerError("this ledger is not open for writing", fix="use Ledger.open(path, write=True)")
        return self._log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refuse_occupied(root: Path, path: str | os.PathLike[str]) -> None:
    if (root / MANIFEST).exists():
        raise LedgerError(f"{path} already holds a run", got=MANIFEST, why="a run is written once",
                          fix="choose another folder, or resume this one")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise LedgerError(f"{path} is not an empty folder", got="other files there", why="a run owns its folder",
                          fix="choose another folder")


def _remove_draft(draft: Path) -> None:
    """Removes a run folder that could not be finished; only what `create` itself made can be in it."""
    with contextlib.suppress(OSError):
        (draft / MANIFEST).unlink(missing_ok=True)
        for folder in FOLDERS:
            with contextlib.suppress(FileNotFoundError):
                (draft / folder).rmdir()
        draft.rmdir()
