"""Trace tables: traces, verdicts and outcomes to Parquet rows, to be read back with the same content ids."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from rollbook.ledger import columns
from rollbook.ledger.encoding import refuse_whole_floats
from rollbook.ledger.kinds import TraceTable
from rollbook.ledger.tables import ids_root, open_table, save
from rollbook.ledger.trace_ids import trace_ids
from rollbook.records import (
    Outcome,
    RecordError,
    Scored,
    Trace,
    TraceId,
    Unscored,
    Verdict,
    VerifierStamp,
    content_id,
    encode,
)
from rollbook.records.codec import nearest

Row = tuple[Trace, Verdict | None, Outcome]
Identified = tuple[TraceId, Row]        # a row with the content id of its trace, which is computed once
BATCH_ROWS = 512
GROUP_TOKENS = 2**20
GROUP_ROWS = 8192


def write_rows(root: Path, path: str, name: str, identified: Sequence[Identified]) -> TraceTable:
    """Commits the rows to a table file and returns the record of it, to be logged by the caller."""
    ids, rows = [identity for identity, _ in identified], [row for _, row in identified]
    table = _table(ids, rows)
    tokens = sum(segment.count for trace, _, _ in rows for segment in trace.segments)
    group_rows = max(1, min(GROUP_ROWS, GROUP_TOKENS * max(len(rows), 1) // max(tokens, 1)))
    observed = save(root, path, table, use_dictionary=columns.REPETITIVE, use_byte_stream_split=["logps.list.element"],
                    row_group_size=group_rows)
    return TraceTable(name=name, rows=len(rows), tokens=tokens, root=rows_root(ids, rows), observed=observed)


def rows_root(ids: Sequence[str], rows: Sequence[Row]) -> str:
    """One hash for the ids of the traces, verdicts (`-` where there is none) and outcomes, row by row."""
    return ids_root(item for identity, (_, verdict, outcome) in zip(ids, rows, strict=True)
                    for item in (identity, "-" if verdict is None else content_id(verdict), content_id(outcome)))


def match(traces: Sequence[Trace], verdicts: Sequence[Verdict], outcomes: Sequence[Outcome]) -> list[Identified]:
    """Each trace with its verdict (by trace id, None where there is none) and its one outcome (by attempt)."""
    verdict_of = _unique("verdict", [(verdict.trace, verdict) for verdict in verdicts])
    outcome_of = _unique("outcome", [(outcome.attempt, outcome) for outcome in outcomes])
    _unique("trace", [(trace.attempt, trace) for trace in traces])
    rows: list[Identified] = []
    for trace, identity in zip(traces, trace_ids(traces), strict=True):
        outcome = outcome_of.pop(trace.attempt, None)
        if outcome is None:
            raise RecordError(f"attempt {trace.attempt} has a trace but no outcome", why="every attempt ends with exactly one",
                              fix="give an outcome for each trace")
        rows.append((identity, (trace, verdict_of.pop(identity, None), outcome)))
    for kind, left, fix in (("verdict", verdict_of, "give the trace it judges in the same table"),
                            ("outcome", outcome_of, "append the outcome of an attempt without a trace as a record of its own")):
        if left:
            raise RecordError(f"{len(left)} {kind}s have no trace in this table", got=", ".join(list(left)[:3]), fix=fix)
    return rows


def _unique(what: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RecordError(f"{key} has more than one {what}", why="exactly one is final")
        found[key] = value
    return found


def _table(ids: Sequence[str], rows: Sequence[Row]) -> pa.Table:
    traces = [trace for trace, _, _ in rows]
    token_ids, logps, spans = _token_columns(traces)
    data: dict[str, Any] = {
        "id": ids, "token_ids": token_ids, "logps": logps, "spans": spans,
        "observed": [list(trace.observed.items()) for trace in traces],
        **{name: [getattr(trace, name) for trace in traces]
           for name in ("attempt", "task", "group", "envelope", "stop_reason", "text", "sampled")},
        "family": [outcome.family for _, _, outcome in rows],
        "outcome": [outcome.code for _, _, outcome in rows],
        "outcome_detail": [outcome.detail for _, _, outcome in rows],
    }
    verdicts = [_verdict_columns(verdict) for _, verdict, _ in rows]
    data |= {name: [verdict.get(name) for verdict in verdicts] for name, _ in columns.VERDICT}
    more = [_more(trace) for trace in traces]
    schema = columns.SCHEMA
    if any(more):
        data["episode"], schema = more, columns.WITH_EPISODES
    try:
        return pa.table(data, schema=schema)
    except (pa.ArrowException, UnicodeEncodeError, OverflowError) as error:
        raise RecordError("a trace, verdict or outcome has a value that its column cannot hold", got=str(error)[:200],
                          why="text must be valid Unicode and integers fit in 32 bits", fix="mend it where it is made") from error


def _more(trace: Trace) -> str | None:
    """The episode, the other contexts and what was kept of a trace as one JSON document; None for a plain single answer."""
    if trace.episode is None and not trace.parts and trace.kept is None:
        return None
    held = {name: getattr(trace, name) for name in columns.MORE} | ({} if trace.kept is None else {"kept": trace.kept})
    return json.dumps(encode(held), sort_keys=True, separators=(",", ":"))


def _token_columns(traces: Sequence[Trace]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Token ids, log-probs (null where nobody sampled or a host did not show them) and owner spans, one list per trace."""
    ids, logps, sampled = array("i"), array("f"), bytearray()
    unseen: list[tuple[int, int]] = []
    owners: list[str] = []
    lengths, versions = array("i"), []
    token_ends, span_ends = array("i", [0]), array("i", [0])
    for trace in traces:
        for segment in trace.segments:
            count = segment.count
            if segment.hidden:
                unseen.append((len(ids), len(ids) + count))
            ids.extend(array("i", bytes(4 * count)) if segment.hidden else _integers(segment.token_ids, trace))
            known = isinstance(segment.logps, tuple)
            logps.extend(_float32(segment.logps, trace) if isinstance(segment.logps, tuple) else bytes(count))
            sampled += (b"\1" if known else b"\0") * count
            owners.append(segment.owner)
            lengths.append(count)
            versions.append(segment.version)
        token_ends.append(len(ids))
        span_ends.append(len(owners))
    values = pa.Array.from_buffers(pa.float32(), len(logps), [_valid(sampled), pa.py_buffer(logps)])
    tokens = pa.Array.from_buffers(pa.int32(), len(ids), [_seen(len(ids), unseen), pa.py_buffer(ids)])
    parts = [pa.array(owners, pa.string()), _flat(pa.int32(), lengths), pa.array(versions, pa.int32())]
    spans = pa.StructArray.from_arrays(parts, fields=list(columns.SPAN))
    offsets = _flat(pa.int32(), token_ends)
    return (pa.ListArray.from_arrays(offsets, tokens, type=pa.list_(pa.int32())),
            pa.ListArray.from_arrays(offsets, values, type=pa.list_(pa.float32())),
            pa.ListArray.from_arrays(_flat(pa.int32(), span_ends), spans, type=pa.list_(columns.SPAN)))


def _seen(count: int, unseen: Sequence[tuple[int, int]]) -> Any:
    """What of the tokens has an id; None where all have one."""
    flags = bytearray(b"\1" * count) if unseen else bytearray()
    for start, end in unseen:
        flags[start:end] = bytes(end - start)
    return _valid(flags) if unseen else None


def _valid(flags: bytearray) -> Any:
    """One bit for each byte, as Arrow marks what is not null."""
    return _flat(pa.uint8(), flags).cast(pa.bool_()).buffers()[1]


def _flat(kind: pa.DataType, values: Any) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _integers(values: tuple[int, ...], trace: Trace) -> array[int]:
    try:
        return array("i", values)
    except (OverflowError, TypeError) as error:
        raise RecordError(f"a token id of the trace of attempt {trace.attempt} is not a 32-bit integer",
                          got=str(error)) from error


def _float32(values: tuple[float, ...], trace: Trace) -> array[float]:
    """The values as float32, refused unless they are the same numbers."""
    if not all(issubclass(kind, float) for kind in set(map(type, values))):
        raise RecordError(f"a log-prob of the trace of attempt {trace.attempt} is not a float",
                          why="it would come back as another JSON number and the trace with another id")
    narrow = array("f", values)
    if narrow.tolist() != list(values):
        index = next(i for i, (a, b) in enumerate(zip(narrow, values, strict=True)) if a != b)
        raise RecordError(f"log-prob {index} of the trace of attempt {trace.attempt} is not a float32 value",
                          got=repr(values[index]),
                          why="engines report float32; a longer number was computed elsewhere and would not survive the table",
                          fix="record the engine's own number")
    return narrow


def _verdict_columns(verdict: Verdict | None) -> dict[str, Any]:
    match verdict:
        case None:
            return {}
        case Unscored():
            return {"verdict": "Unscored", "failure_code": verdict.code, "failure_detail": verdict.detail,
                    "failure_verifier": _stamp(verdict.verifier), "verdict_observed": list(verdict.observed.items())}
        case Scored():
            vector = verdict.vector
            refuse_whole_floats(verdict)
            return {"verdict": "Scored", "total": vector.total, "accuracy": vector.accuracy, "composition": vector.composition,
                    "composition_digest": vector.composition_digest, "hidden_test_access": vector.hidden_test_access,
                    "components": [{"name": part.name, "value": part.value, "confidence": part.confidence, "detail": part.detail,
                                    "verifier": _stamp(part.verifier)} for part in vector.components],
                    "absent": [{"name": part.name, "reason": part.reason} for part in vector.absent],
                    "verdict_observed": list(verdict.observed.items())}


def _stamp(stamp: VerifierStamp) -> dict[str, str]:
    return {"name": stamp.name, "version": stamp.version, "digest": stamp.digest}


def read_batches(path: Path, position: str, names: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """The table as Arrow batches of these columns, or all, in order and in bounded memory."""
    unknown = [name for name in names or () if name not in columns.WITH_EPISODES.names]
    if unknown:
        raise RecordError("a trace table has no such column", got=unknown[0],
                          fix=f"nearest names: {nearest(unknown[0], columns.WITH_EPISODES.names)}")
    with open_table(path, columns.SCHEMA, position, columns.OLDER, wider=columns.WITH_EPISODES) as file:
        yield from file.iter_batches(batch_size=BATCH_ROWS, columns=names)
