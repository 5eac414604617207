"""The records that the ledger writes about itself, and the one table of everything a log line may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from rollbook.records import RECORDS, LedgerError
from rollbook.records.codec import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTable:
    """A Parquet file of trajectories was committed. `root` hashes the ids of its traces, verdicts and outcomes in order.

    `observed` holds what depends on the writer: path, sha256, bytes.

    Example: TraceTable(name="rl/000001", rows=128, tokens=9100, root="3f..", observed={"path": "traces/rl-000001.parquet",
        "sha256": "9c..", "bytes": 88123})
    """

    SCHEMA: ClassVar[int] = 1
    name: str
    rows: int
    tokens: int
    root: str
    observed: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTable:
    """A Parquet file of records of one kind was committed; `schema` is that kind's version, `root` hashes the ids in order.

    Example: RecordTable(name="tasks/train", of="Task", schema=1, rows=4096, root="77..", observed={"path": ..., "sha256": ...})
    """

    SCHEMA: ClassVar[int] = 1
    name: str
    of: str
    schema: int
    rows: int
    root: str
    observed: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What opening the run had to mend after a killed process; outside the semantic log.

    Example: Repair(fault="torn_tail", position="events/000001.jsonl byte 812", bytes=40, digest="ab..", removed=())
    """

    SCHEMA: ClassVar[int] = 1
    fault: Literal["torn_tail", "uncommitted_files"]
    position: str
    bytes: int
    digest: str | None
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """The events `first` to `last` (sequence numbers, both included) belong to an unfinished step and are void.

    They stay in the log; iteration, tables and the semantic hash leave them out. Repairs and rollbacks are never void.

    Example: Rollback(first=41, last=44, reason="step rl/000003 was not finished")
    """

    SCHEMA: ClassVar[int] = 1
    first: int
    last: int
    reason: str


OWN = {cls.__name__: cls for cls in (TraceTable, RecordTable, Repair, Rollback)}
KINDS: dict[str, Any] = {**RECORDS, **OWN}
HOUSEKEEPING = frozenset({"Repair", "Rollback"})
TABLES = frozenset({"TraceTable", "RecordTable"})


def loggable(kind: str) -> str:
    """The kind, if a log can hold it."""
    if kind not in KINDS:
        raise LedgerError("no record of the chain has this kind", got=repr(kind),
                          fix=f"nearest kinds: {nearest(kind, list(KINDS))}")
    return kind


def known_kind(kind: str, schema: int, position: str) -> Any:
    """The record class of a stored kind; refuses kinds and schema versions this code does not read."""
    cls = KINDS.get(kind)
    if cls is None:
        raise LedgerError(f"{position} holds a record of an unknown kind", got=repr(kind),
                          why="a newer or another program wrote it", fix=f"nearest kinds: {nearest(kind, list(KINDS))}")
    if schema != cls.SCHEMA:
        relation = "a newer" if schema > cls.SCHEMA else "an older"
        raise LedgerError(f"{position} holds a {kind} of {relation} schema version",
                          got=f"version {schema}, this code reads {cls.SCHEMA}",
                          why="its fields may mean something else", fix="read it with the rollbook version that wrote it")
    return cls
