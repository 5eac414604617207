"""The rows of trace tables as the records that were written, with the same content ids.

Columns are taken apart as a whole, by Arrow: to ask it for one value after the other takes several times longer.
"""

from __future__ import annotations

import functools
import json
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from rollbook.ledger import columns
from rollbook.ledger.traces import Identified, Row, read_batches
from rollbook.records import (
    AbsentComponent,
    Component,
    Episode,
    Kept,
    LedgerError,
    NotExposed,
    Outcome,
    Part,
    RewardVector,
    Scored,
    Segment,
    Trace,
    TraceId,
    Unscored,
    Verdict,
    VerifierStamp,
    decode,
)


def read_rows(path: Path, position: str) -> Iterator[Row]:
    """The rows of a table file in order, with the content ids they were written with, in bounded memory."""
    return (row for _, row in read_identified(path, position))


def read_identified(path: Path, position: str) -> Iterator[Identified]:
    """The same rows, each with the content id of its trace."""
    for batch in read_batches(path, position, None):
        ids = [TraceId(name) for name in plain(batch.column("id"))]
        ends = zip(*(plain(batch.column(name)) for name, _ in columns.OUTCOME), strict=True)
        for trace, identity, verdict, (family, code, detail) in zip(
                _traces(batch, position), ids, _verdicts(batch, ids, position), ends, strict=True):
            yield identity, (trace, verdict, Outcome(attempt=trace.attempt, family=family, code=code, detail=detail))


def plain(column: pa.Array) -> list[Any]:
    """The values of a column of strings, numbers or truth values; None where it is null."""
    if pa.types.is_string(column.type):
        return cast(list[Any], column.to_numpy(zero_copy_only=False).tolist())
    if not column.null_count:
        return cast(list[Any], column.to_numpy(zero_copy_only=False).tolist())
    filled = column.fill_null(False if pa.types.is_boolean(column.type) else 0).to_numpy(zero_copy_only=False).tolist()
    known = column.is_valid().to_numpy(zero_copy_only=False).tolist()
    return [value if is_known else None for value, is_known in zip(filled, known, strict=True)]


def _listed(column: pa.ListArray, values: Sequence[Any]) -> list[Sequence[Any]]:
    """The values of every list."""
    return [values[start:end] for start, end in pairwise(column.offsets.to_numpy().tolist())]


def _structs(values: pa.StructArray) -> Iterator[tuple[Any, ...]]:
    """The plain fields of every struct."""
    return zip(*map(plain, values.flatten()), strict=True)


def _noted(column: pa.MapArray, position: str) -> list[dict[str, float]]:
    """Every map as it was written."""
    pairs = _listed(column, list(zip(plain(column.keys), plain(column.items), strict=True)))
    notes = [dict(one) for one in pairs]
    if any(len(note) != len(pair) for note, pair in zip(notes, pairs, strict=True)):
        raise LedgerError(f"{position} notes one name twice", why="whoever wrote it could not")
    return notes


def _traces(batch: pa.RecordBatch, position: str) -> Iterator[Trace]:
    cells = [plain(batch.column(name)) for name in ("attempt", "task", "group", "envelope", "stop_reason", "text")]
    sampled = batch.column("sampled")
    observed = _noted(batch.column("observed"), position)
    starts, ids = _values(batch.column("token_ids"), "i")
    logp_starts, logps = _values(batch.column("logps"), "f")
    if list(logp_starts) != list(starts):
        raise LedgerError("a trace table has another number of log-probs than of tokens", why="they stand side by side")
    spans = batch.column("spans")
    parts = _listed(spans, list(_structs(spans.values)))
    shown = batch.column("logps").values.is_valid().to_numpy(zero_copy_only=False).tolist()
    seen = batch.column("token_ids").values
    hidden = None if not seen.null_count else seen.is_null().to_numpy(zero_copy_only=False).tolist()
    more = plain(batch.column("episode")) if "episode" in batch.schema.names else [None] * len(parts)
    hashes = _listed(sampled, plain(sampled.values))
    for start, (attempt, task, group, envelope, stop_reason, text), made, notes, owned, document in zip(
            list(starts)[:-1], zip(*cells, strict=True), hashes, observed, parts, more, strict=True):
        segments, at = [], start
        for owner, length, version in owned:
            end = at + length
            known = None if owner != "policy" else tuple(logps[at:end]) if end == at or shown[at] else NotExposed()
            unseen = length if hidden is not None and end > at and hidden[at] else 0
            segments.append(Segment(owner=owner, token_ids=() if unseen else tuple(ids[at:end]), version=version, logps=known,
                                    hidden=unseen))
            at = end
        yield Trace(attempt=attempt, task=task, group=group, envelope=envelope, segments=tuple(segments),
                    stop_reason=stop_reason, text=text, sampled=tuple(made), observed=notes, **_read_more(document))


def _read_more(document: str | None) -> dict[str, Any]:
    if document is None:
        return {}
    try:
        held = json.loads(document)
        episode, parts, kept = held["episode"], held["parts"], held.get("kept")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerError("the column `episode` of a trace table holds no document of episode, parts and what was kept",
                          got=f"{type(error).__name__}: {error}"[:200], why="whoever wrote it was another program") from error
    return {"episode": decode(Episode | None, episode, "episode"), "parts": decode(tuple[Part, ...], parts, "parts"),
            "kept": decode(Kept | None, kept, "kept")}


def _values(column: pa.ListArray, code: str) -> tuple[Sequence[int], list[Any]]:
    """Offsets of the lists and the plain values they point into (zero where null)."""
    values, offsets = column.values, column.offsets.to_numpy().tolist()
    if not len(values):
        return offsets, []
    raw = memoryview(values.buffers()[1])
    size = array(code).itemsize
    flat = raw[values.offset * size:(values.offset + len(values)) * size].cast("B").cast(cast(Any, code))
    return offsets, flat.tolist()


def _verdicts(batch: pa.RecordBatch, ids: Sequence[TraceId], position: str) -> Iterator[Verdict | None]:
    """The verdict of every row, None where there is none."""
    cells = zip(*(plain(batch.column(name)) for name in (
        "verdict", "total", "accuracy", "composition", "composition_digest", "hidden_test_access", "failure_code",
        "failure_detail")), strict=True)
    components, absent = batch.column("components"), batch.column("absent")
    *fields, verifiers = components.values.flatten()
    parts = _listed(components, [
        Component(name=name, value=value, confidence=confidence, detail=detail, verifier=_stamp(by))
        for name, value, confidence, detail, by in zip(*map(plain, fields), _structs(verifiers), strict=True)])
    lacking = _listed(absent, [AbsentComponent(name=name, reason=reason) for name, reason in _structs(absent.values)])
    notes = _noted(batch.column("verdict_observed"), position)
    failed = list(_structs(batch.column("failure_verifier")))
    for at, (identity, (kind, total, accuracy, composition, digest, hidden, code, detail)) in enumerate(
            zip(ids, cells, strict=True)):
        match kind:
            case None:
                yield None
            case "Unscored":
                yield Unscored(trace=identity, verifier=_stamp(failed[at]), code=code, detail=detail, observed=notes[at])
            case "Scored":
                vector = RewardVector(components=tuple(parts[at]), absent=tuple(lacking[at]), composition=composition,
                                      composition_digest=digest, total=total, accuracy=accuracy, hidden_test_access=hidden)
                yield Scored(trace=identity, vector=vector, observed=notes[at])
            case other:
                raise LedgerError(f"{position} holds a verdict of an unknown kind", got=repr(other))


@functools.lru_cache(maxsize=1024)
def _stamp(fields: tuple[str, str, str]) -> VerifierStamp:
    """The stamp of these fields, made once."""
    name, version, digest = fields
    return VerifierStamp(name=name, version=version, digest=digest)
