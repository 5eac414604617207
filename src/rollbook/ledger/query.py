"""SQL over a run with DuckDB: one SELECT over documented views, which reads the run and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from rollbook.ledger import columns
from rollbook.ledger.chain import Event
from rollbook.ledger.kinds import known_kind
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.scopes import stage_of
from rollbook.ledger.tables import open_table, read_bodies
from rollbook.ledger.views import EVENTS, LONE, NAMES, RECORD_VIEWS, TRACE_VIEWS, Place, Seen, View, text
from rollbook.records import CodecError, LedgerError, RollbookError, decode
from rollbook.records.codec import nearest

MEMORY = "2GB"
CHUNK_ROWS = 4096
TABLE_FUNCTIONS = frozenset({"unnest", "range", "generate_series", "repeat", "repeat_row", "json_each", "json_tree"})
REFERRED = frozenset({"Batch", "PolicyVersion", "ProtocolBundle", "EvalReport"})
TRACE_ROWS = pa.schema([*columns.SCHEMA, ("scope", pa.string()), ("stage", pa.string()), ("seq", pa.int64())])
SETTINGS = {"enable_external_access": "false", "autoload_known_extensions": "false", "autoinstall_known_extensions": "false",
            "allow_community_extensions": "false", "python_enable_replacements": "false", "temp_directory": "",
            "memory_limit": MEMORY}


class QueryError(RollbookError):
    """SQL that is refused, or that DuckDB could not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The rows of a query. `cut` is true when there were more than the limit.

    Example: Answer(columns=("stage", "n"), types=("VARCHAR", "BIGINT"), rows=(("rl", 3),), cut=False)
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    cut: bool


def query(path: str | Path, sql: str, *, limit: int) -> Answer:
    """The answer to one SELECT statement over the views of a run, at most `limit` rows of it.

    The views hold what stands in the log when the query begins; what a rollback took back is not in them.
    """
    duckdb = _duckdb()
    ledger = Ledger.open(path, write=False)
    connection = duckdb.connect(":memory:", config=SETTINGS)
    try:
        wanted = _wanted(connection, sql)
        for name, table in _tables(ledger, wanted).items():
            connection.register(name, table)
        for name, body in TRACE_VIEWS.items():
            connection.execute(f"CREATE TEMP VIEW {name} AS {body}")
        connection.execute("SET lock_configuration = true")
        relation = connection.sql(sql).limit(limit + 1)
        rows = relation.fetchall()
        return Answer(columns=tuple(relation.columns), types=tuple(str(kind) for kind in relation.types),
                      rows=tuple(rows[:limit]), cut=len(rows) > limit)
    except duckdb.OutOfMemoryException as error:
        raise QueryError("the query needs more memory than it may use", got=_first_line(error), why=f"the limit is {MEMORY}",
                         fix="select fewer columns (token_ids, logps and text are large), or filter earlier") from error
    except duckdb.Error as error:
        raise QueryError("the query could not be answered", got=_first_line(error),
                         fix="`rollbook query RUN` without SQL lists the views with their columns") from error
    finally:
        connection.close()


def described() -> Mapping[str, tuple[tuple[str, str], ...]]:
    """Every view with its columns and their DuckDB types, over an empty run."""
    duckdb = _duckdb()
    connection = duckdb.connect(":memory:", config=SETTINGS)
    try:
        for name, table in _empty().items():
            connection.register(name, table)
        for name, body in TRACE_VIEWS.items():
            connection.execute(f"CREATE TEMP VIEW {name} AS {body}")
        found = {}
        for name in NAMES:
            relation = connection.sql(f"SELECT * FROM {name}")
            found[name] = tuple(zip(relation.columns, map(str, relation.types), strict=True))
        return found
    finally:
        connection.close()


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise QueryError("rollbook query needs DuckDB", got=str(error), why="it is an optional dependency",
                         fix="pip install 'rollbook[query]'") from error
    return duckdb


def _wanted(connection: Any, sql: str) -> frozenset[str]:
    """The views that the statement reads; refuses what is not exactly one SELECT, unknown views and unknown table functions."""
    try:
        document = json.loads(connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()[0][0])
    except RecursionError as error:
        raise QueryError("the SQL is nested too deeply", fix="write it with fewer levels") from error
    if document["error"]:
        if document.get("error_type") == "not implemented":
            raise QueryError("only SELECT statements are answered", got=" ".join(sql.split())[:80],
                             why="a query reads a run and changes nothing",
                             fix="write SELECT ..., WITH ... SELECT or DESCRIBE view")
        raise QueryError("the SQL does not parse", got=str(document.get("error_message")).partition("\n")[0])
    if len(document["statements"]) != 1:
        raise QueryError("one statement is answered at a time", got=f"{len(document['statements'])} statements",
                         fix="run the query once for each")
    nodes = list(_nodes(document["statements"]))
    if any(node.get("show_type") == "SHOW_SPECIAL" for node in nodes):
        raise QueryError("SHOW is not answered", fix="`rollbook query RUN` without SQL lists the views with their columns")
    _check_functions(nodes)
    own = {entry["key"].lower() for node in nodes for entry in (node.get("cte_map") or {}).get("map", ())}
    named = {str(node["table_name"]).lower() for node in nodes if node.get("type") == "BASE_TABLE"
             and str(node.get("schema_name")).lower() != "information_schema"} - own
    for name in sorted(named - set(NAMES)):
        raise QueryError("the run has no such view", got=repr(name), fix=f"nearest views: {nearest(name, list(NAMES))}")
    return frozenset(named | (own & set(NAMES)))


def _check_functions(nodes: list[Mapping[str, Any]]) -> None:
    for node in nodes:
        if node.get("type") == "TABLE_FUNCTION":
            name = str(node["function"].get("function_name")).lower()
            if name not in TABLE_FUNCTIONS:
                raise QueryError("this table function is not answered", got=name,
                                 why="a query reads the views of its run: no files, no settings, no other database",
                                 fix=f"the table functions are {', '.join(sorted(TABLE_FUNCTIONS))}")


def _nodes(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping of a JSON document, in no order that matters."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            yield item
        left += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()


def _empty() -> dict[str, Any]:
    tables: dict[str, Any] = {name: view.schema.empty_table() for name, view in RECORD_VIEWS.items()}
    return {**tables, "events": EVENTS.empty_table(), "trace_rows": TRACE_ROWS.empty_table()}


def _tables(ledger: Ledger, wanted: frozenset[str]) -> dict[str, Any]:
    """The tables behind the wanted views, filled in one reading of the log; the others are there without rows."""
    fill = {name: view for name, view in RECORD_VIEWS.items() if name in wanted or (name == LONE and "outcomes" in wanted)}
    builders = {name: _Builder(view.schema) for name, view in fill.items()}
    log = _Builder(EVENTS)
    kinds = {view.of.__name__ for view in fill.values()} | REFERRED
    seen, fragments = Seen(), []
    for event in ledger.events():
        if "events" in wanted:
            log.add([(event.seq, event.time, event.kind, event.schema, event.id, event.hash, text(event.body),
                      None if event.observed is None else text(event.observed))])
        if event.kind == "TraceTable" and wanted & set(TRACE_VIEWS):
            fragments.append(_fragment(ledger, event))
        elif event.kind in kinds or (event.kind == "RecordTable" and event.body.get("of") in kinds):
            for place, record in _records(ledger, event):
                seen.take(place.id, record)
                _give(builders, fill, seen, (place, record))
    tables = _empty() | {name: builder.table() for name, builder in builders.items()}
    if "events" in wanted:
        tables["events"] = log.table()
    if fragments:
        tables["trace_rows"] = ds.FileSystemDataset(fragments, TRACE_ROWS, ds.ParquetFileFormat())
    return tables


def _give(builders: Mapping[str, _Builder], fill: Mapping[str, View], seen: Seen, placed: tuple[Place, Any]) -> None:
    place, record = placed
    for name, view in fill.items():
        if isinstance(record, view.of):
            builders[name].add(view.rows(seen, place, record))


def _records(ledger: Ledger, event: Event) -> Iterator[tuple[Place, Any]]:
    """The record of an event, or the rows of its table, decoded strictly."""
    if event.kind != "RecordTable":
        yield Place(seq=event.seq, id=event.id, table=None), event.record()
        return
    table = event.record()
    kind = known_kind(table.of, table.schema, event.position)
    for number, (identity, body) in enumerate(read_bodies(ledger.table_path(event), event.position), 1):
        try:
            yield Place(seq=event.seq, id=identity, table=table.name), decode(kind, body, table.of)
        except CodecError as error:
            raise LedgerError(f"{event.position}, table {table.name} row {number} does not decode: {error.what}", got=error.got,
                              why=error.why, fix=error.fix) from error


def _fragment(ledger: Ledger, event: Event) -> Any:
    """A trace table's verified file with its name, stage and event number as columns."""
    name, file = str(event.body["name"]), ledger.table_path(event)
    open_table(file, columns.SCHEMA, f"{event.position}, table {file.name}", columns.OLDER,
               wider=columns.WITH_EPISODES).close()
    stated = (ds.field("scope") == name) & (ds.field("stage") == stage_of(name)) & (ds.field("seq") == event.seq)
    return ds.ParquetFileFormat().make_fragment(str(file), LocalFileSystem(), partition_expression=stated)


class _Builder:
    """Rows collected into Arrow batches."""

    def __init__(self, schema: pa.Schema):
        self.schema = schema
        self.rows: list[tuple[Any, ...]] = []
        self.batches: list[pa.RecordBatch] = []

    def add(self, rows: Any) -> None:
        self.rows.extend(rows)
        if len(self.rows) >= CHUNK_ROWS:
            self._flush()

    def _flush(self) -> None:
        cells = zip(*self.rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(cells, self.schema, strict=True)]
        self.batches.append(pa.RecordBatch.from_arrays(arrays, schema=self.schema))
        self.rows = []

    def table(self) -> pa.Table:
        if self.rows:
            self._flush()
        return pa.Table.from_batches(self.batches, schema=self.schema)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
