"""Parquet tables of records of one kind: an id and a JSON body per row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollbook.ledger.encoding import body_and_id
from rollbook.ledger.kinds import KINDS, RecordTable
from rollbook.ledger.layout import finished, refusing
from rollbook.ledger.objects import file_digest
from rollbook.records import CodecError, LedgerError, RecordError, decode

ROWS = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("body", pa.string(), nullable=False)])
BATCH_ROWS = 1024


def ids_root(ids: Iterable[str]) -> str:
    """One hash for a sequence of ids: SHA-256 over the ids, each followed by a newline."""
    hasher = hashlib.sha256()
    for item in ids:
        hasher.update(item.encode() + b"\n")
    return hasher.hexdigest()


def save(root: Path, path: str, table: pa.Table, **options: Any) -> dict[str, str | int]:
    """Writes a table whole or not at all; returns what the event observes about the file: path, sha256, bytes."""
    with refusing(f"the table {path} could not be written"), finished(root / path) as temporary:
        pq.write_table(table, temporary, compression="zstd", compression_level=3, **options)
        return {"path": path, "sha256": file_digest(temporary), "bytes": temporary.stat().st_size}


def open_table(path: Path, schema: pa.Schema, position: str, older: Sequence[Mapping[bytes, bytes]] = (), *,
               wider: pa.Schema | None = None) -> pq.ParquetFile:
    """The Parquet file, if its columns and the record versions in its metadata are those of `schema`, or one of the `older`.

    `wider` are columns that a table may have instead.
    """
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise LedgerError(f"{position} could not be read", got=str(error)) from error
    stored = file.schema_arrow
    schema = wider if wider is not None and stored.names == wider.names else schema
    if not stored.equals(schema, check_metadata=False) or stored.metadata not in (schema.metadata, *older):
        different = sorted({str(field) for field in stored} ^ {str(field) for field in schema}) or [str(stored.metadata)]
        file.close()
        raise LedgerError(f"{position} has other columns than this version reads", got="; ".join(different)[:300],
                          why="a newer or another program wrote it", fix="read it with the rollbook version that wrote it")
    return file


def write_records(root: Path, path: str, name: str, records: Sequence[Any]) -> RecordTable:
    """Commits the records to a table file and returns the record of it, to be logged by the caller."""
    kinds = {type(record) for record in records}
    if len(kinds) != 1 or not kinds <= set(KINDS.values()):
        names = sorted(kind.__name__ for kind in kinds)
        raise RecordError(f"table {name} must hold records of one kind of the chain", got=", ".join(names) or "no records")
    cls = kinds.pop()
    ids, bodies = [], []
    for record in records:
        body, identity = body_and_id(record)
        ids.append(identity)
        bodies.append(_text(body))
    observed = save(root, path, pa.table({"id": ids, "body": bodies}, schema=ROWS), use_dictionary=False,
                    row_group_size=8 * BATCH_ROWS)
    return RecordTable(name=name, of=cls.__name__, schema=cls.SCHEMA, rows=len(ids), root=ids_root(ids), observed=observed)


def read_records(path: Path, cls: type, position: str) -> Iterator[Any]:
    """The records of a table file in order, decoded strictly, in bounded memory."""
    with open_table(path, ROWS, position) as file:
        row = 0
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=["body"]):
            for body in batch.column("body").to_pylist():
                row += 1
                try:
                    yield decode(cls, json.loads(body), cls.__name__)
                except (CodecError, ValueError) as error:
                    raise LedgerError(f"{position} row {row} does not decode: {getattr(error, 'what', error)}",
                                      got=getattr(error, "got", None), why=getattr(error, "why", None),
                                      fix=getattr(error, "fix", None)) from error


def read_bodies(path: Path, position: str) -> Iterator[tuple[str, Any]]:
    """Ids and JSON bodies of a table file in order, in bounded memory; for counting, where decoding every record is too slow."""
    with open_table(path, ROWS, position) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            for identity, body in zip(batch.column("id").to_pylist(), batch.column("body").to_pylist(), strict=True):
                try:
                    yield identity, json.loads(body)
                except ValueError as error:
                    raise LedgerError(f"{position} holds a row that is no JSON document", got=str(error)) from error


def _text(body: bytes) -> str:
    """The body as text; lone surrogates, which have no UTF-8, become JSON escapes of the same document."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return json.dumps(json.loads(body), sort_keys=True, separators=(",", ":"))
