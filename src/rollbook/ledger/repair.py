"""What a killed process can leave behind, found and mended when the run is opened for writing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rollbook.ledger.chain import Link, is_void, kind_mark, read_event, scan, void_ranges
from rollbook.ledger.kinds import TABLES, Repair
from rollbook.ledger.layout import refusing, segments, table_file, unfinished
from rollbook.records import LedgerError, digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The last complete event, the bytes after it that are no event, and the paths of all committed tables."""

    last: Link | None
    position: str
    torn: bytes
    tables: frozenset[Path]


def tail_of(root: Path, genesis: str) -> Tail:
    """The end of the log after the whole chain was verified; refuses a table that two events claim."""
    ranges = void_ranges(root, genesis)
    marks = tuple(kind_mark(kind) for kind in TABLES)
    last: Link | None = None
    tables: set[Path] = set()
    for last in scan(root, genesis):
        if any(mark in last.raw for mark in marks):
            event = read_event(last)
            if event.kind in TABLES and not is_void(event, ranges):
                path = table_file(root, event.record().observed.get("path"), event.position)
                if path in tables:
                    raise LedgerError(f"{last.position} commits {path.name} a second time", why="a committed table never changes",
                                      fix="restore the run folder from a copy")
                tables.add(path)
    paths = segments(root)
    start = last.end if last is not None and paths[-1] == last.segment else 0
    torn = b""
    if paths:
        with paths[-1].open("rb") as file:
            file.seek(start)
            torn = file.read()
    position = f"events/{paths[-1].name} byte {start}" if paths else "events"
    return Tail(last=last, position=position, torn=torn, tables=frozenset(tables))


def mend(root: Path, tail: Tail) -> Iterator[tuple[Repair, Callable[[], None]]]:
    """Each repair to log, and what to do once it is logged. Logging the first one overwrites the torn bytes."""
    if tail.torn:
        yield (Repair(fault="torn_tail", position=tail.position, bytes=len(tail.torn), digest=digest(tail.torn), removed=()),
               _nothing)
    stray = [path for folder in ("traces", "tables") for path in sorted((root / folder).glob("*.parquet"))
             if path not in tail.tables]
    stray += unfinished(root)
    if stray:
        names = tuple(str(path.relative_to(root)) for path in stray)
        size = sum(path.stat().st_size for path in stray)
        yield (Repair(fault="uncommitted_files", position="files", bytes=size, digest=None, removed=names),
               functools.partial(_remove, stray))


def _nothing() -> None:
    return None


def _remove(paths: list[Path]) -> None:
    with refusing("files that no event committed could not be removed"):
        for path in paths:
            path.unlink(missing_ok=True)
