"""The columns that lists need, kept between two starts of the viewer: a run of many small tables is then not read anew.

One file for each run below the user's cache, never in the run's folder. A part of it is used only for a table whose hash,
scope and place in the log are those it was made of; the table's own file is compared with its hash as ever. A file that was
cut, changed, or made by another version of this program is not read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa

from rollbook.view import parts
from rollbook.view.parts import SCHEMA

HELD = b"rollbook.view"         # key of the schema's metadata
FILES = 32                      # runs that are kept; the one that was not looked at longest goes first
SUM = hashlib.sha256().digest_size
Place = tuple[int, str, str]    # of a table: number in the log, scope, hash of its file


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What lists need of one table, as `Part` makes it."""

    base: pa.Table
    components: tuple[str, ...]


def folder() -> Path:
    """Where runs are kept: ROLLBOOK_CACHE, else the user's cache."""
    own = os.environ.get("ROLLBOOK_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollbook" / "view"


def load(genesis: str) -> Mapping[Place, Kept]:
    """What is kept of a run, by table; nothing where there is none that can be trusted."""
    path = _path(genesis)
    try:
        data = path.read_bytes()
        held, stated = memoryview(data)[:-SUM], data[-SUM:]
        if hashlib.sha256(held).digest() != stated:
            return {}
        with pa.ipc.open_file(pa.py_buffer(held)) as reader:
            table = reader.read_all()
        listed = json.loads(table.schema.metadata[HELD])
        table = table.replace_schema_metadata(None)
        if table.schema != SCHEMA or sum(rows for _, _, _, rows, _ in listed) != table.num_rows:
            return {}
        found, start = {}, 0
        for seq, scope, digest, rows, components in listed:
            found[seq, scope, digest] = Kept(base=table.slice(start, rows), components=tuple(components))
            start += rows
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return {}
    with contextlib.suppress(OSError):
        os.utime(path)
    return found


def save(genesis: str, held: Sequence[tuple[Place, Kept]]) -> bool:
    """Keeps the tables of a run, whole or not at all; whether it could. Nothing is lost where it could not."""
    table = pa.concat_tables([one.base for _, one in held] or [SCHEMA.empty_table()])
    listed = [[*place, one.base.num_rows, list(one.components)] for place, one in held]
    sink = pa.BufferOutputStream()
    table = table.combine_chunks().replace_schema_metadata({HELD: json.dumps(listed).encode()})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    path = _path(genesis)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=".part-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.write(hashlib.sha256(data).digest())
            os.replace(part, path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
        _forget(path.parent)
    except OSError:
        return False
    return True


def _forget(place: Path) -> None:
    """Removes the files that were not read longest."""
    files = sorted(place.glob("*.arrow"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[FILES:]:
        file.unlink(missing_ok=True)


def _path(genesis: str) -> Path:
    return folder() / f"{hashlib.sha256(genesis.encode()).hexdigest()[:32]}-{_maker()}.arrow"


@cache
def _maker() -> str:
    """Which program makes columns of tables: another one may make others of the same table."""
    made = b"\0".join([Path(parts.__file__).read_bytes(), Path(__file__).read_bytes(), pa.__version__.encode()])
    return hashlib.sha256(made).hexdigest()[:16]
