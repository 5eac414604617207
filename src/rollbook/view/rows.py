"""All trajectories of a run as columns in memory: filters and full-text search over a hundred thousand take milliseconds.

Token ids and log-probs stay in the Parquet files until one trajectory is opened.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollbook.ledger import Ledger
from rollbook.records import RollbookError
from rollbook.report.facts import Logged
from rollbook.view.kept import Kept, Place, load, save
from rollbook.view.parts import LATER, SCHEMA, Part, bases, component_values, empty

READERS = 2         # tables read at a time
MANY = 16           # tables from which on it is worth keeping what was read
FACETS = ("stage", "family", "answer", "outcome", "verdict", "failure_code", "stop_reason")
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
    """The trajectories of the tables that stood in the log; never changed once made. `unread` says, by event, why a table could
    not be read."""

    def __init__(self, parts: Sequence[Part] = (), unread: Mapping[int, str] | None = None):
        self.parts, self.unread = tuple(sorted(parts, key=lambda part: part.seq)), unread or {}
        self._starts = np.cumsum([0, *(part.base.num_rows for part in self.parts)])
        table = pa.concat_tables([part.base for part in self.parts]) if self.parts else SCHEMA.empty_table()
        self.table: pa.Table = table.append_column("place", pa.array(np.arange(table.num_rows), pa.int64())).combine_chunks()
        self.components = tuple(sorted({name for part in self.parts for name in part.components}))
        self._lock = threading.Lock()
        self._columns: dict[str, pa.ChunkedArray] = {}
        self._values: Mapping[str, np.ndarray] | None = None
        self._facets: dict[str, list[tuple[str, int]]] | None = None

    def after(self, ledger: Ledger, tables: Iterable[Logged]) -> Rows:
        """With the tables that stand in the log now: those committed since are read, those taken back are gone. A table is known
        by its hash: another run in the same place has the same numbers in its log."""
        wanted = {entry.seq: entry for entry in tables}
        kept = {part.seq: part for part in self.parts
                if part.seq in wanted and (part.seq, part.scope, part.digest) == _place(wanted[part.seq])}
        replaced = len(kept) < sum(part.seq in wanted for part in self.parts)
        unread = {} if replaced else {seq: why for seq, why in self.unread.items() if seq in wanted}
        new = [entry for seq, entry in wanted.items() if seq not in kept and seq not in unread]
        if not new and len(kept) == len(self.parts) and len(unread) == len(self.unread):
            return self
        known = load(ledger.genesis) if len(new) >= MANY else {}
        with ThreadPoolExecutor(READERS) as threads:
            read = list(zip(new, threads.map(lambda entry: _read(ledger, entry, known), new), strict=True))
        parts = [one for _, one in read if isinstance(one, Part)]
        bases([part for part in parts if part.stored is not None])
        return Rows([*kept.values(), *parts],
                    unread | {entry.seq: one for entry, one in read if isinstance(one, str)})

    @property
    def faults(self) -> tuple[str, ...]:
        """Why tables could not be read."""
        return tuple(self.unread.values())

    def warm(self) -> None:
        """Reads what lists do not need, so that the first search does not have to."""
        for name in LATER:
            self.column(name)

    def keep(self, genesis: str) -> None:
        """Keeps what lists need for the next start, where reading it anew would take a while."""
        if len(self.parts) >= MANY and not all(part.kept for part in self.parts):
            save(genesis, [((part.seq, part.scope, part.digest), Kept(base=part.base, components=part.components))
                           for part in self.parts])

    def column(self, name: str) -> Any:
        """A column of all rows."""
        if name not in LATER:
            return self.table[name]
        with self._lock:
            if name not in self._columns:
                with ThreadPoolExecutor(READERS) as threads:
                    held = list(threads.map(lambda part: part.column(name), self.parts))
                self._columns[name] = pa.chunked_array(held or [empty(name)])
            return self._columns[name]

    def values(self, component: str) -> np.ndarray:
        """A reward component's value per row, NaN where it did not run."""
        held = self.column("components").chunks
        with self._lock:
            if self._values is None:
                self._values = component_values(held)
            return self._values[component]

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
        rows = self.rows(places[(page - 1) * PAGE:page * PAGE])
        return Found(rows=tuple(rows), count=len(places), total=len(self), page=page, pages=pages)

    def rows(self, places: Any) -> list[Mapping[str, Any]]:
        """The rows in these places, in their order, without token ids."""
        found = self.table.take(pa.array(places, pa.int64())).to_pylist()
        own = np.searchsorted(self._starts, np.asarray(places), side="right") - 1
        for part in np.unique(own):
            at = np.flatnonzero(own == part).tolist()
            for index, more in zip(at, self.parts[part].rows([int(found[one]["row"]) for one in at]), strict=True):
                found[index] |= more
        return found

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
            values = self.values(wanted.component)
            kept = ~np.isnan(values)
            if wanted.least is not None:
                kept &= values >= wanted.least
            if wanted.most is not None:
                kept &= values <= wanted.most
            parts.append(pa.chunked_array([pa.array(kept)]))
        elif wanted.component:
            parts.append(pa.chunked_array([pa.array(np.zeros(len(self), bool))]))
        if wanted.text:
            parts.append(pc.fill_null(pc.match_substring(self.column("text"), wanted.text, ignore_case=True), False))
        mask = None
        for part in parts:
            mask = part if mask is None else pc.and_(mask, part)
        return mask

    def where(self, column: str, value: str, limit: int = 200) -> list[Mapping[str, Any]]:
        """The rows with this value, in log order."""
        held = np.asarray(pc.fill_null(pc.equal(self.column(column), value), False))
        return self.rows(np.flatnonzero(held)[:limit])

    def place_of(self, identity: str) -> int | None:
        """Where a trajectory stands among all, None where it is not."""
        found = int(pc.index(self.column("id"), pa.scalar(identity, pa.string())).as_py()) if len(self) else -1
        return None if found < 0 else found

    def row(self, place: int) -> Mapping[str, Any]:
        return self.rows([place])[0]

    def whole(self, place: int) -> Mapping[str, Any]:
        """Everything that the file holds of a trajectory, token ids and log-probs among it."""
        row = self.row(place)
        part = self.parts[int(np.searchsorted(self._starts, place, side="right")) - 1]
        return part.whole(int(row["row"])) | row


def _place(entry: Logged) -> Place:
    return entry.seq, entry.record.name, str(entry.record.observed.get("sha256"))


def _read(ledger: Ledger, entry: Logged, known: Mapping[Place, Kept]) -> Part | str:
    """The table that a record names, or why it could not be read. What is known of it is taken where its file has the hash that
    the log states."""
    try:
        file = ledger.table_file(entry.record, f"event {entry.seq}")
        place = _place(entry)
        held = known.get(place)
        if held is not None and held.base.num_rows == entry.record.rows:
            return Part(file, place, held.base, held.components)
        return Part.read(file, place)
    except (RollbookError, OSError, pa.ArrowException, KeyError) as error:
        return str(error).splitlines()[0]
