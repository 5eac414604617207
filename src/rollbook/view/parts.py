"""The trajectories of one table as columns: what every list needs is read at once, the rest when somebody asks for it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollbook.ledger import columns
from rollbook.ledger.scopes import place_of

STORED = ("task", "stop_reason", "verdict", "total", "accuracy", "failure_code", "family", "outcome")
LATER = ("id", "attempt", "group", "text", "components")
NAMES = "components.list.element.name"
SCHEMA = pa.schema([*((name, pa.float64() if name in ("total", "accuracy") else pa.string()) for name in STORED),
                    ("answer", pa.string()), ("stage", pa.string()), ("step", pa.int64()), ("seq", pa.int64()),
                    ("row", pa.int64()), ("tokens", pa.int64()), ("version", pa.int64()), ("turns", pa.int64())])


class Part:
    """One table; `digest` is the hash of its file. `stored` is what `read` took of it, until `bases` makes `base`, the columns of
    `SCHEMA`, of it. A part that was kept has its base from the beginning.

    Thread-safe.
    """

    def __init__(self, file: Path, place: tuple[int, str, str], base: pa.Table | None = None, components: tuple[str, ...] = ()):
        self.file, (self.seq, self.scope, self.digest) = file, place
        self._later: dict[str, pa.Array] = {}
        self._lock = threading.Lock()
        self._metadata: Any = None
        self.stored: pa.Table | None = None
        self.base: pa.Table = SCHEMA.empty_table() if base is None else base
        self.components, self.kept = components, base is not None

    @classmethod
    def read(cls, file: Path, place: tuple[int, str, str]) -> Part:
        """With what lists need, from the file."""
        made = cls(file, place)
        with pq.ParquetFile(file, memory_map=True) as opened:
            made._metadata = opened.metadata
            made.stored = opened.read(columns=[*STORED, "spans", NAMES], use_threads=False)
        return made

    def column(self, name: str) -> pa.Array:
        """One of `LATER`, whole; kept once it was read."""
        with self._lock:
            if name not in self._later:
                self._later[name] = _one(self._opened().read(columns=[name], use_threads=False)[name])
            return self._later[name]

    def rows(self, places: Sequence[int]) -> list[dict[str, Any]]:
        """What `LATER` holds of the rows in these places."""
        with self._lock:
            known = dict(self._later)
        missing = [name for name in LATER if name not in known]
        found: list[dict[str, Any]] = [{} for _ in places]
        for name, held in known.items():
            for row, value in zip(found, held.take(pa.array(places, pa.int64())).to_pylist(), strict=True):
                row[name] = value
        for at, inside, group in self._groups(places) if missing else ():
            table = self._opened().read_row_group(group, columns=missing, use_threads=False)
            for index, row in zip(at, table.take(pa.array(inside, pa.int64())).to_pylist(), strict=True):
                found[index] |= row
        return found

    def whole(self, place: int) -> dict[str, Any]:
        """Everything that the file holds of one row, token ids and log-probs among it."""
        for _, (inside,), group in self._groups([place]):
            return dict(self._opened().read_row_group(group).slice(inside, 1).to_pylist()[0])
        raise IndexError(place)

    def _groups(self, places: Sequence[int]) -> Iterable[tuple[list[int], list[int], int]]:
        """(which of the places, where in the row group, row group) for each group that holds some."""
        start = 0
        if self._metadata is None:
            self._opened()
        for group in range(self._metadata.num_row_groups):
            end = start + self._metadata.row_group(group).num_rows
            held = [(at, place - start) for at, place in enumerate(places) if start <= place < end]
            if held:
                yield [at for at, _ in held], [inside for _, inside in held], group
            start = end

    def _opened(self) -> pq.ParquetFile:
        opened = pq.ParquetFile(self.file, memory_map=True, metadata=self._metadata)
        self._metadata = opened.metadata
        return opened


def bases(parts: Sequence[Part]) -> None:
    """Gives every part its base: all of them in one go, because most tables are small."""
    if not parts:
        return
    sizes = [part.stored.num_rows for part in parts if part.stored is not None]
    table = pa.concat_tables([part.stored for part in parts if part.stored is not None])
    made = _base(table, [(part.scope, part.seq) for part in parts], sizes)
    named = _one(table["components"]).flatten().field("name")
    names = tuple(str(name) for name in pc.unique(named).to_pylist())
    start = 0
    for part, size in zip(parts, sizes, strict=True):
        part.base, part.components, part.stored = made.slice(start, size), names, None
        start += size


def _base(table: pa.Table, places: Sequence[tuple[str, int]], sizes: Sequence[int]) -> pa.Table:
    """The stored columns of tables with stage, step, version and counts of tokens and turns."""
    found = [place_of(scope) for scope, _ in places]
    count = table.num_rows
    spans = _one(table["spans"])
    flat = spans.flatten()
    owned = pc.equal(flat.field("owner"), "policy")
    parents = np.asarray(spans.value_parent_indices())
    lengths = np.asarray(pc.fill_null(pc.if_else(owned, flat.field("length"), 0), 0))
    tokens = np.bincount(parents, weights=lengths, minlength=count)
    versions = np.full(count, -1, np.int64)
    sampled = np.asarray(pc.fill_null(pc.and_(owned, pc.is_valid(flat.field("version"))), False))
    versions[parents[sampled][::-1]] = np.asarray(pc.fill_null(flat.field("version"), -1))[sampled][::-1]
    turns = np.bincount(parents[np.asarray(owned)], minlength=count)
    at = pa.array(np.repeat(np.arange(len(sizes)), sizes))
    made = {"answer": _answer(_one(table["accuracy"])), "stage": pa.array([stage for stage, _, _ in found], pa.string()).take(at),
            "step": pa.array([step for _, step, _ in found], pa.int64()).take(at),
            "seq": pa.array([seq for _, seq in places], pa.int64()).take(at),
            "row": pa.array(np.concatenate([np.arange(size) for size in sizes]), pa.int64()),
            "tokens": pa.array(tokens.astype(np.int64)), "turns": pa.array(turns.astype(np.int64)),
            "version": pa.array(versions, pa.int64(), mask=versions < 0)}
    return pa.table({**{name: _one(table[name]) for name in STORED}, **made}).select(SCHEMA.names).cast(SCHEMA)


def _answer(accuracy: pa.Array) -> pa.Array:
    """`right`, `wrong` or `partly`; null without a verdict."""
    whole = pc.if_else(pc.equal(accuracy, 1.0), "right", pc.if_else(pc.equal(accuracy, 0.0), "wrong", "partly"))
    return whole.cast(pa.string())


def _one(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks or [pa.array([], column.type)])


def empty(name: str) -> pa.Array:
    """No value of one of `LATER`."""
    return pa.array([], columns.SCHEMA.field(name).type)


def component_values(parts: Sequence[pa.Array]) -> Mapping[str, np.ndarray]:
    """For each reward component its value per row, NaN where it did not run."""
    found: dict[str, np.ndarray] = {}
    total, start = sum(map(len, parts)), 0
    for part in parts:
        flat = part.flatten()
        names, values = flat.field("name"), np.asarray(flat.field("value").to_numpy(zero_copy_only=False), float)
        parents = np.asarray(part.value_parent_indices())
        for name in pc.unique(names).to_pylist():
            mine = np.asarray(pc.equal(names, name).to_numpy(zero_copy_only=False))
            found.setdefault(str(name), np.full(total, np.nan))[start + parents[mine]] = values[mine]
        start += len(part)
    return found
