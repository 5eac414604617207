"""Writing the log: whole events, durable before they are acknowledged, undone when they cannot be."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.ledger.chain import Entry, Link, log_line
from rollbook.ledger.encoding import body_and_id
from rollbook.ledger.kinds import KINDS
from rollbook.ledger.layout import refusing, segment_path, segments, sync_folder
from rollbook.records import LedgerError, RecordError
from rollbook.records.codec import dump

SEGMENT_BYTES = 64 * 2**20
CHUNK_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Where the next event goes: segment number, byte in it, and the number and hash of the last event."""

    segment: int
    offset: int
    seq: int
    prev: str


def entry(record: Any, observed: Mapping[str, Any] | None = None) -> Entry:
    """The log entry of a record; refuses what the strict reader could not read back."""
    kind = type(record).__name__
    if KINDS.get(kind) is not type(record):
        raise RecordError("only records of the chain can be logged", got=kind, why="the reader would refuse the kind",
                          fix="use a class of rollbook.records")
    body, identity = body_and_id(record)
    return Entry(kind=kind, id=identity, schema=type(record).SCHEMA, body=body,
                 observed=b"null" if observed is None else dump(observed))


def log_end(root: Path, genesis: str, last: Link | None) -> End:
    """The end of a verified log whose last complete line is `last`."""
    count = max(len(segments(root)), 1)
    if last is None:
        return End(segment=count, offset=0, seq=0, prev=genesis)
    in_last = last.segment == segment_path(root, count)
    return End(segment=count, offset=last.end if in_last else 0, seq=last.seq, prev=last.hash)


class EventLog:
    """The one writer of a run's events. Call with the run's lock held."""

    def __init__(self, root: Path, end: End):
        self.root, self.end = root, end
        self._descriptor = -1
        self._broken = False
        self._open(end.segment)

    def append(self, entries: Iterable[Entry]) -> list[str]:
        """The ids of the entries, all durable when it returns; when it raises none of them is in the log."""
        if self._broken:
            raise LedgerError("the log cannot take more events", why="an earlier failure could not be undone",
                              fix="open the run again; it repairs its tail")
        start, ids, pending = self.end, [], bytearray()
        seq, prev, now = start.seq, start.prev, round(time.time(), 6)
        try:
            with refusing("the event could not be written"):
                for item in entries:
                    if self.end.offset + len(pending) >= SEGMENT_BYTES:
                        self._write(pending, seq, prev)
                        self._rotate()
                    elif len(pending) >= CHUNK_BYTES:
                        self._write(pending, seq, prev)
                    seq += 1
                    line, prev = log_line(item, prev, seq, now)
                    pending += line
                    ids.append(item.id)
                self._write(pending, seq, prev)
                self._cut(self.end.offset)
                os.fsync(self._descriptor)
        except BaseException:
            self._undo(start)
            raise
        return ids

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self, number: int) -> None:
        self.close()
        with refusing("the event log could not be opened for writing"):
            path = segment_path(self.root, number)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            sync_folder(path.parent)

    def _write(self, pending: bytearray, seq: int, prev: str) -> None:
        """Writes at the end of the log, over whatever a torn tail left there, and moves the end to the event `seq`."""
        view, offset = memoryview(bytes(pending)), self.end.offset
        while view:
            count = os.pwrite(self._descriptor, view, offset)
            view, offset = view[count:], offset + count
        self.end = End(segment=self.end.segment, offset=offset, seq=seq, prev=prev)
        pending.clear()

    def _rotate(self) -> None:
        self._cut(self.end.offset)
        os.fsync(self._descriptor)
        self.end = End(segment=self.end.segment + 1, offset=0, seq=self.end.seq, prev=self.end.prev)
        self._open(self.end.segment)

    def _cut(self, offset: int) -> None:
        if os.fstat(self._descriptor).st_size > offset:
            os.ftruncate(self._descriptor, offset)

    def _undo(self, start: End) -> None:
        """Takes back everything since `start`; if even that fails, the next opening finds a torn tail and repairs it."""
        self._broken = True
        try:
            for number in range(self.end.segment, start.segment, -1):
                segment_path(self.root, number).unlink(missing_ok=True)
            if self.end.segment != start.segment:
                self._open(start.segment)
            self.end = start
            self._cut(start.offset)
            os.fsync(self._descriptor)
            self._broken = False
        except (OSError, LedgerError):
            return
