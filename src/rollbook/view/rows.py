"""All trajectories of a run as columns in memory: filters and full-text search over a hundred thousand take milliseconds.

Token ids and log-probs stay in the Parquet files until one trajectory is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollbook.ledger import Ledger
from rollbook.ledger.scopes import place_of
from rollbook.records import RollbookError

READ = ("id", "attempt", "task", "group", "stop_reason", "text", "verdict", "total", "accuracy", "components", "failure_code",
        "family", "outcome", "spans")
FACETS = ("stage", "family", "outcome", "verdict", "failure_code", "stop_reason")
SORTS = {"newest": ("place", "descending"), "oldest": ("place", "ascending"), "highest reward": ("total", "descending"),
         "lowest reward": ("total", "ascending"), "longest": ("tokens", "descending"), "shortest": ("tokens", "ascending")}
PAGE = 50
NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What is asked for: exact values by facet, a version, a component's range, text; and the order and page.

    Example: Filters(facets={"stage": "rl"}, version=4, component="format", most=0.05, text="gcd", sort="newest", page=1)
    """

    facets: Mapping[str, str] = field(default_factory=dict)
    task: str | None = None
    version: int | None = None
    component: str | None = None
    least: float | None = None
    most: float | None = None
    text: str = ""
    sort: str = "newest"
    page: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One page of matching rows, how many match, of how many."""

    rows: tuple[Mapping[str, Any], ...]
    count: int
    total: int
    page: int
    pages: int


class Rows:
    """The columns; `refresh` takes in tables that were committed since. `faults` names tables that could not be read."""

    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        self.faults: list[str] = []
        self._parts: dict[int, pa.Table] = {}
        self._files: dict[int, Path] = {}
        self.table: pa.Table = _empty()
        self.components: dict[str, np.ndarray] = {}
        self._facets: dict[str, list[tuple[str, int]]] | None = None

    def refresh(self, events: Iterable[Any]) -> None:
        """Reads the tables that stand in the log now and drops those that do not any more."""
        wanted = {event.seq: event for event in events}
        changed = set(self._parts) != set(wanted)
        for seq in set(self._parts) - set(wanted):
            del self._parts[seq], self._files[seq]
        for seq, event in wanted.items():
            if seq not in self._parts:
                self._read(seq, event)
        if changed:
            self._join()

    def _read(self, seq: int, event: Any) -> None:
        try:
            file = self.ledger.table_path(event)
            part = _columns(pq.read_table(file, columns=list(READ), memory_map=True), str(event.body["name"]), seq)
        except (RollbookError, OSError, pa.ArrowException) as error:
            self.faults.append(str(error).splitlines()[0])
            part, file = _empty(), Path()
        self._parts[seq], self._files[seq] = part, file

    def _join(self) -> None:
        table = pa.concat_tables([self._parts[seq] for seq in sorted(self._parts)]) if self._parts else _empty()
        self.table = table.append_column("place", pa.array(np.arange(table.num_rows), pa.int64())).combine_chunks()
        self.components = _component_values(self.table["components"])
        self.table = self.table.drop_columns(["components"])
        self._facets = None

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def facets(self) -> dict[str, list[tuple[str, int]]]:
        """Values of each facet with their numbers of rows, most frequent first; absent is `none`."""
        if self._facets is not None:
            return self._facets
        found = {}
        for name in FACETS:
            counted = pc.value_counts(pc.fill_null(self.table[name], NONE)).to_pylist() if len(self) else []
            pairs = [(str(one["values"]), int(one["counts"])) for one in counted]
            found[name] = sorted(pairs, key=lambda item: (-item[1], item[0]))
        self._facets = found
        return found

    def versions(self) -> tuple[int, int] | None:
        """Least and greatest policy version that sampled, None where none is known."""
        limits = pc.min_max(self.table["version"]).as_py()
        return None if limits["min"] is None else (limits["min"], limits["max"])

    def find(self, wanted: Filters) -> Found:
        """A page of the rows that pass every filter."""
        mask = self._mask(wanted)
        places = np.arange(len(self)) if mask is None else np.flatnonzero(mask.to_numpy())
        key, order = SORTS.get(wanted.sort, SORTS["newest"])
        pages = max(1, -(-len(places) // PAGE))
        page = min(max(1, wanted.page), pages)
        if key != "place":
            values = np.asarray(self.table[key].to_numpy(), float)[places]
            places = places[np.argsort(values if order == "ascending" else -values, kind="stable")]     # absent comes last
        elif order == "descending":
            places = places[::-1]
        rows = self.table.take(pa.array(places[(page - 1) * PAGE:page * PAGE]))
        return Found(rows=tuple(rows.to_pylist()), count=len(places), total=len(self), page=page, pages=pages)

    def _mask(self, wanted: Filters) -> Any:
        parts = []
        for name, value in wanted.facets.items():
            if name in FACETS and value:
                parts.append(pc.equal(pc.fill_null(self.table[name], NONE), value))
        if wanted.task:
            parts.append(pc.starts_with(self.table["task"], wanted.task))
        if wanted.version is not None:
            parts.append(pc.fill_null(pc.equal(self.table["version"], wanted.version), False))
        if wanted.component and wanted.component in self.components:
            values = self.components[wanted.component]
            kept = ~np.isnan(values)
            if wanted.least is not None:
                kept &= values >= wanted.least
            if wanted.most is not None:
                kept &= values <= wanted.most
            parts.append(pa.chunked_array([pa.array(kept)]))
        elif wanted.component:
            parts.append(pa.chunked_array([pa.array(np.zeros(len(self), bool))]))
        if wanted.text:
            parts.append(pc.fill_null(pc.match_substring(self.table["text"], wanted.text, ignore_case=True), False))
        mask = None
        for part in parts:
            mask = part if mask is None else pc.and_(mask, part)
        return mask

    def where(self, column: str, value: str, limit: int = 200) -> list[Mapping[str, Any]]:
        """The rows with this value, in log order."""
        return list(self.table.filter(pc.equal(self.table[column], value)).slice(0, limit).to_pylist())

    def place_of(self, identity: str) -> int | None:
        """Where a trajectory stands among all, None where it is not."""
        found = int(pc.index(self.table["id"], pa.scalar(identity, pa.string())).as_py()) if len(self) else -1
        return None if found < 0 else found

    def row(self, place: int) -> Mapping[str, Any]:
        return dict(self.table.slice(place, 1).to_pylist()[0])

    def whole(self, place: int) -> Mapping[str, Any]:
        """Everything that the file holds of a trajectory, token ids and log-probs among it."""
        row = self.row(place)
        file = pq.ParquetFile(self._files[row["seq"]], memory_map=True)
        at = int(row["row"])
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if at < size:
                return dict(file.read_row_group(group).slice(at, 1).to_pylist()[0]) | row
            at -= size
        raise IndexError(place)


def _columns(table: pa.Table, scope: str, seq: int) -> pa.Table:
    """A table's columns with stage, step, version and counts of tokens."""
    stage, step, _ = place_of(scope)
    spans = table["spans"].combine_chunks()
    flat = spans.flatten()
    owned = pc.equal(flat.field("owner"), "policy")
    lengths = pc.if_else(owned, flat.field("length"), 0)
    parents = spans.value_parent_indices()
    tokens = np.bincount(np.asarray(parents), weights=np.asarray(pc.fill_null(lengths, 0)), minlength=table.num_rows)
    versions = np.full(table.num_rows, -1, np.int64)
    sampled = np.asarray(pc.fill_null(pc.and_(owned, pc.is_valid(flat.field("version"))), False))
    at = np.asarray(parents)[sampled]
    versions[at[::-1]] = np.asarray(pc.fill_null(flat.field("version"), -1))[sampled][::-1]
    count = table.num_rows
    turns = np.bincount(np.asarray(parents)[np.asarray(owned)], minlength=count)
    made = {"scope": pa.array([scope] * count, pa.string()), "stage": pa.array([stage] * count, pa.string()),
            "step": pa.array([step] * count, pa.int64()), "seq": pa.array([seq] * count, pa.int64()),
            "row": pa.array(np.arange(count), pa.int64()), "tokens": pa.array(tokens.astype(np.int64)),
            "version": pa.array(versions, pa.int64(), mask=versions < 0), "turns": pa.array(turns.astype(np.int64))}
    kept = {name: table[name].combine_chunks() for name in READ if name != "spans"}
    return pa.table({**kept, **made}).select(SCHEMA.names).cast(SCHEMA)


def _component_values(column: pa.ChunkedArray) -> dict[str, np.ndarray]:
    """For each component its value per row, NaN where it did not run."""
    joined = column.combine_chunks()
    if isinstance(joined, pa.ChunkedArray):
        joined = joined.chunk(0) if joined.num_chunks else pa.array([], joined.type)
    flat = joined.flatten()
    names, values = flat.field("name"), np.asarray(flat.field("value").to_numpy(zero_copy_only=False), float)
    parents = np.asarray(joined.value_parent_indices())
    found = {}
    for name in pc.unique(names).to_pylist():
        mine = np.asarray(pc.equal(names, name).to_numpy(zero_copy_only=False))
        held = np.full(len(joined), np.nan)
        held[parents[mine]] = values[mine]
        found[str(name)] = held
    return dict(sorted(found.items()))


def _component_type() -> Any:
    from rollbook.ledger import columns
    return columns.SCHEMA.field("components").type


SCHEMA = pa.schema([*((name, pa.float64() if name in ("total", "accuracy") else pa.string())
                      for name in READ if name not in ("spans", "components")), ("components", _component_type()),
                    ("scope", pa.string()), ("stage", pa.string()), ("step", pa.int64()), ("seq", pa.int64()),
                    ("row", pa.int64()), ("tokens", pa.int64()), ("version", pa.int64()), ("turns", pa.int64())])


def _empty() -> pa.Table:
    return SCHEMA.empty_table()

