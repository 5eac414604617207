"""Which of the issued trajectories were trained on: by family, length and latency; 20 bytes are kept per trajectory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollbook.records import LedgerError

FIFTHS = 5
HASH_DIGITS = 16        # of a trace's id: 64 bits tell a run's trajectories apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of a stage's trajectories: how many were issued and how many of them trained on.

    Example: Slice(name="chain_sum", low=None, high=None, issued=64, trained=16)
    """

    name: str
    low: float | None
    high: float | None
    issued: int
    trained: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """What a stage issued and what it trained on, side by side: by family, by fifths of length in the policy's tokens, by
    fifths of latency in seconds. `families` count attempts, `lengths` and `latencies` the trajectories they left; `no_latency`
    counts trajectories that state none and are in no latency slice."""

    stage: str
    issued: int
    trajectories: int
    trained: int
    families: tuple[Slice, ...]
    lengths: tuple[Slice, ...]
    latencies: tuple[Slice, ...]
    no_latency: int


class Trajectories:
    """Length, latency, family and stage of every trajectory, and which were in an optimizer batch."""

    def __init__(self) -> None:
        self._ids: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        self._latencies: list[np.ndarray] = []
        self._families: list[np.ndarray] = []
        self._stages: list[np.ndarray] = []
        self._trained: list[np.ndarray] = []
        self._family_names: dict[str, int] = {}
        self._stage_names: dict[str, int] = {}

    def add(self, stage: str, rows: pa.Table, position: str) -> None:
        """The rows (columns id, family, spans, observed) of one trace table."""
        self._ids.append(_hashes(rows.column("id"), position))
        self._lengths.append(_policy_tokens(rows.column("spans")))
        self._latencies.append(_latency(rows.column("observed")))
        coded = pc.dictionary_encode(_whole(rows.column("family")))
        numbers = [self._family_names.setdefault(str(name), len(self._family_names)) for name in coded.dictionary.to_pylist()]
        self._families.append(np.array(numbers, np.int16)[coded.indices.to_numpy()])
        number = self._stage_names.setdefault(stage, len(self._stage_names))
        self._stages.append(np.full(rows.num_rows, number, np.int16))

    def train(self, traces: Sequence[str], position: str) -> None:
        """The trajectories of one optimizer batch."""
        self._trained.append(_hashes(pa.chunked_array([pa.array(traces, pa.string())]), position))

    def shifts(self) -> Iterator[Shift]:
        """One for each stage whose trajectories were trained on, in order of appearance."""
        if not self._ids or not self._trained:
            return
        stages, trained = np.concatenate(self._stages), np.isin(np.concatenate(self._ids), np.concatenate(self._trained))
        lengths, latencies = np.concatenate(self._lengths), np.concatenate(self._latencies)
        families = np.concatenate(self._families)
        for name, number in self._stage_names.items():
            mine = stages == number
            used = trained[mine]
            if used.any():
                known = ~np.isnan(latencies[mine])
                yield Shift(stage=name, issued=int(mine.sum()), trajectories=int(mine.sum()), trained=int(used.sum()),
                            families=tuple(self._by_family(families[mine], used)), lengths=tuple(fifths(lengths[mine], used)),
                            latencies=tuple(fifths(latencies[mine][known], used[known])), no_latency=int((~known).sum()))

    def strangers(self) -> int:
        """How many trajectories were trained on that stand in no trace table."""
        if not self._trained:
            return 0
        trained = np.unique(np.concatenate(self._trained))
        return int((~np.isin(trained, np.concatenate(self._ids))).sum()) if self._ids else len(trained)

    def _by_family(self, families: np.ndarray, used: np.ndarray) -> Iterator[Slice]:
        for name, number in sorted(self._family_names.items()):
            mine = families == number
            if mine.any():
                yield Slice(name=name, low=None, high=None, issued=int(mine.sum()), trained=int(used[mine].sum()))


def fifths(values: np.ndarray, used: np.ndarray) -> Iterator[Slice]:
    """Slices between the fifths of the values; equal values stay together, so there may be fewer than five."""
    if not len(values):
        return
    edges = np.unique(np.quantile(values, np.linspace(0, 1, FIFTHS + 1)[1:], method="inverted_cdf"))
    place = np.searchsorted(edges, values, side="left")
    for number in range(len(edges)):
        mine = place == number
        low, high = float(values[mine].min()), float(values[mine].max())
        yield Slice(name=_number(low) if low == high else f"{_number(low)} to {_number(high)}", low=low, high=high,
                    issued=int(mine.sum()), trained=int(used[mine].sum()))


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _whole(column: pa.ChunkedArray) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _hashes(ids: pa.ChunkedArray, position: str) -> np.ndarray:
    """The first 64 bits of each id's hash."""
    start = len("Trace:")
    digits = pc.utf8_slice_codeunits(ids, start, start + HASH_DIGITS)
    try:
        values = np.frombuffer(bytes.fromhex("".join(digits.to_pylist())), ">u8")
    except (ValueError, TypeError) as error:
        raise LedgerError(f"{position} names a trajectory by something that is no id", got=str(error)) from error
    if len(values) != len(ids):
        raise LedgerError(f"{position} names a trajectory by something that is no id", got="an id that is too short")
    return values.astype(np.uint64)


def _policy_tokens(column: pa.ChunkedArray) -> np.ndarray:
    """Tokens that the policy sampled, per trajectory."""
    spans = _whole(column)
    flat = spans.flatten()
    counted = pc.if_else(pc.equal(flat.field("owner"), "policy"), flat.field("length"), 0)
    return np.bincount(pc.list_parent_indices(spans).to_numpy(), weights=counted.to_numpy(zero_copy_only=False),
                       minlength=len(spans)).astype(np.int32)


def _latency(column: pa.ChunkedArray) -> np.ndarray:
    """Seconds per trajectory, NaN where it states none."""
    found = pc.map_lookup(_whole(column), "latency_s", "first")
    return np.asarray(pc.fill_null(found, float("nan")), np.float32)
