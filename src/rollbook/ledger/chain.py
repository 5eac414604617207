"""Reading the log: each line is an event, its hash covers the line, and its `prev` is the hash of the line before."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rollbook.ledger.kinds import HOUSEKEEPING, known_kind
from rollbook.ledger.layout import refusing, segment_path, segments
from rollbook.records import CodecError, LedgerError, decode

HASH_START = b',"hash":"'
HASH_BYTES = len(HASH_START) + 64 + len(b'"}')
TAIL = re.compile(rb',"prev":"([0-9a-f]{64})","schema":(\d+),"seq":(\d+),"time":([-+.0-9e]+),"hash":"([0-9a-f]{64})"\}')
KEYS = {"body", "hash", "id", "kind", "observed", "prev", "schema", "seq", "time"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One verified line of the log. `offset` and `end` are bytes in its segment; `end` is past the newline."""

    segment: Path
    line: int
    offset: int
    end: int
    seq: int
    hash: str
    raw: bytes

    @property
    def position(self) -> str:
        return f"events/{self.segment.name} line {self.line} (seq {self.seq}, byte {self.offset})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of the log: `seq` counts from 1, `time` is the wall clock as read (it may go backwards; `seq` is the order).

    `body` is the record's document, its own `observed` included; `observed` is what the caller noted beside it.
    """

    seq: int
    time: float
    kind: str
    schema: int
    id: str
    body: Mapping[str, Any]
    observed: Mapping[str, Any] | None
    prev: str
    hash: str
    position: str

    def record(self) -> Any:
        """The frozen record; refuses unknown kinds, other schema versions and unknown keys with the position."""
        try:
            return decode(known_kind(self.kind, self.schema, self.position), self.body, self.kind)
        except CodecError as error:
            raise LedgerError(f"{self.position} does not decode: {error.what}", got=error.got, why=error.why,
                              fix=error.fix) from error


class Entry(NamedTuple):                # no dataclass: thousands are made for one write
    """What one log line is made of, before its place in the chain is known. `body` and `observed` are canonical bytes."""

    kind: str
    id: str
    schema: int
    body: bytes
    observed: bytes


def log_line(entry: Entry, prev: str, seq: int, time: float) -> tuple[bytes, str]:
    """The line (canonical JSON, `hash` last, newline) and its hash: SHA-256 of the canonical event without `hash`."""
    content = b'{"body":%b,"id":"%b","kind":"%b","observed":%b,"prev":"%b","schema":%d,"seq":%d,"time":%b}' % (
        entry.body, entry.id.encode(), entry.kind.encode(), entry.observed, prev.encode(), entry.schema, seq, repr(time).encode())
    value = hashlib.sha256(content).hexdigest()
    return b'%b,"hash":"%b"}\n' % (content[:-1], value.encode()), value


def scan(root: Path, genesis: str) -> Iterator[Link]:
    """Every complete line of the log, verified against the chain that starts at `genesis`; LedgerError at the first bad one.

    An unterminated last line is not an event: it was never acknowledged, or is being written now.
    """
    prev, seq = genesis, 0
    paths = segments(root)
    for number, path in enumerate(paths, 1):
        if path != segment_path(root, number):
            raise broken(f"events/{segment_path(root, number).name}", "the segment is missing")
        offset = 0
        with refusing("the event log could not be read"), path.open("rb") as file:
            for line, raw in enumerate(file, 1):
                position = f"events/{path.name} line {line} (seq {seq + 1}, byte {offset})"
                if not raw.endswith(b"\n"):
                    if path != paths[-1] or _fault(raw[:-1], prev, seq + 1) is None:
                        raise broken(position, "its line end is damaged")
                    return
                fault = _fault(raw[:-1], prev, seq + 1)
                if fault:
                    raise broken(position, fault)
                seq, prev = seq + 1, raw[-67:-3].decode()
                yield Link(segment=path, line=line, offset=offset, end=offset + len(raw), seq=seq, hash=prev, raw=raw[:-1])
                offset += len(raw)


def broken(position: str, fault: str) -> LedgerError:
    """The refusal of a damaged log, with the position."""
    return LedgerError(f"the log is broken at {position}", got=fault, why="the chain of hashes does not hold there",
                       fix="restore the run folder from a copy; nothing from this point on can be believed")


def _fault(raw: bytes, prev: str, seq: int) -> str | None:
    """What is wrong with a line that should follow `prev` as number `seq`; None when it fits."""
    tail = TAIL.fullmatch(raw, max(raw.rfind(b',"prev":"'), 0))
    if tail is None:
        return "not a log line"
    hasher = hashlib.sha256(memoryview(raw)[:-HASH_BYTES])
    hasher.update(b"}")
    if hasher.hexdigest().encode() != tail[5]:
        return "its hash is not the hash of its content"
    if tail[1] != prev.encode():
        return f"it follows {tail[1].decode()[:12]}, the line before is {prev[:12]}"
    if int(tail[3]) != seq:
        return f"it is number {int(tail[3])}"
    return None


def read_event(link: Link) -> Event:
    """The event of a verified line; refuses keys that this version does not know."""
    try:
        document = json.loads(link.raw)
    except ValueError as error:
        raise broken(link.position, f"no JSON document ({error})") from error
    if not isinstance(document, dict) or set(document) != KEYS:
        extra = sorted(set(document) ^ KEYS)
        raise LedgerError(f"{link.position} is not an event of this format", got=f"missing or unknown keys {extra}",
                          why="a newer or another program wrote it", fix="read it with the rollbook version that wrote it")
    return Event(**document, position=link.position)


def void_ranges(root: Path, genesis: str) -> list[tuple[int, int]]:
    """The sequence ranges that rollbacks declared void, both ends included; verifies the chain if there may be any."""
    mark = kind_mark("Rollback")
    if not any(_holds(path, mark) for path in segments(root)):
        return []
    events = (read_event(link) for link in scan(root, genesis) if mark in link.raw)
    rollbacks = [event.record() for event in events if event.kind == "Rollback"]
    return [(rollback.first, rollback.last) for rollback in rollbacks]


def kind_mark(kind: str) -> bytes:
    """Bytes that every line of this kind has; lines of other kinds may have them too."""
    return f'"kind":"{kind}","observed":'.encode()


def _holds(path: Path, mark: bytes) -> bool:
    with refusing("the event log could not be read"), path.open("rb") as file:
        return any(mark in line for line in file)


def is_void(event: Event, ranges: Collection[tuple[int, int]]) -> bool:
    """Whether a rollback took the event back; repairs and rollbacks themselves always stand."""
    return event.kind not in HOUSEKEEPING and any(first <= event.seq <= last for first, last in ranges)


def read_events(root: Path, genesis: str, kinds: Collection[str] | None = None) -> Iterator[Event]:
    """The standing events in order, of these kinds or of all; the chain is verified along the way."""
    ranges = void_ranges(root, genesis)
    marks = None if kinds is None else [kind_mark(kind) for kind in kinds]
    for link in scan(root, genesis):
        if marks is not None and not any(mark in link.raw for mark in marks):
            continue
        event = read_event(link)
        if (kinds is None or event.kind in kinds) and not is_void(event, ranges):
            yield event


def read_some(root: Path, genesis: str, kinds: Collection[str]) -> Iterator[tuple[float, Event | None]]:
    """Of every standing event its time, and the event itself where it is of these kinds; others are verified and not decoded."""
    ranges = void_ranges(root, genesis)
    marks = [kind_mark(kind) for kind in {*kinds, *HOUSEKEEPING}]
    for link in scan(root, genesis):
        event = read_event(link) if any(mark in link.raw for mark in marks) else None
        void = any(first <= link.seq <= last for first, last in ranges) if event is None else is_void(event, ranges)
        tail = TAIL.fullmatch(link.raw, max(link.raw.rfind(b',"prev":"'), 0))
        if not void and tail is not None:
            yield float(tail[4]), event if event is not None and event.kind in kinds else None
