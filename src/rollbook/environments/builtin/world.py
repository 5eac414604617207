"""Invented relational databases with questions whose answers are computed by SQL (after AgentWorld, 2606.24597)."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollbook.environments.builtin.common import Draft, Refused, Tool, ToolEpisode, call, code_digest, graded, schema
from rollbook.environments.builtin.fiction import ALL_THEMES, THEMES, Question, World, questions_of
from rollbook.environments.builtin.index import world_of
from rollbook.environments.describing import image_of
from rollbook.environments.waiting import in_thread
from rollbook.records import (
    Action,
    EnvironmentFault,
    EnvironmentImage,
    FinalState,
    Grade,
    Observation,
    Services,
    Solutions,
    Task,
    TaskSet,
    Ungraded,
)

SHOWN_ROWS, STEPS, VALUE_BYTES = 50, 2_000_000, 200_000
FILES = ("common.py", "index.py", "world.py", "fiction")
SYSTEM = ("Answer the question from the database; it is not about the real world. When you know the answer, write a line "
          "'Answer: ' followed by a name or a number alone, or several names separated by semicolons.")
READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
UNSTEADY = frozenset("random randomblob load_extension date time datetime julianday unixepoch strftime timediff current_date "
                     "current_time current_timestamp sqlite_version sqlite_source_id last_insert_rowid changes total_changes "
                     "zeroblob".split())


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldQuestions:
    """Questions over invented databases. `themes` are drawn from in turn, each world gives `per_world` questions."""

    themes: tuple[str, ...] = THEMES
    per_world: int = 8
    least_hops: int = 1

    def image(self) -> EnvironmentImage:
        return image_of(self, extra={"code": code_digest(*FILES), "sqlite": sqlite3.sqlite_version})

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        """Questions; the split unit is the world, so that no world is on both sides."""
        drafts = [self._draft(world, question) for world, question in
                  drawn_questions(self.themes, count=count, seed=seed, per_world=self.per_world, least_hops=self.least_hops)]
        pairs = [draft.records() for draft in drafts]
        return TaskSet(raw=tuple(raw for raw, _ in pairs), tasks=tuple(task for _, task in pairs))

    def build(self, *, services: Services, seed: int) -> WorldEpisode:
        return WorldEpisode()

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        return graded(task, state, {"calls": float(state.facts["calls"])})

    def solutions(self, task: Task) -> Solutions:
        return Solutions(gold=((call("schema"), Action(text=f"Answer: {task.reference}")),),
                         wrong=((Action(text="Answer: nothing of this name"),), (call("schema"),), (Action(text=""),)))

    def _draft(self, world: World, question: Question) -> Draft:
        return Draft(family="world", text=question.text, reference=question.reference, unit=f"fiction:{world.name}",
                     start=f"fiction:{world.name}", source="rollbook fiction", predicate="world.answer",
                     lineage={"world": world.name, "template": question.template, "hops": str(question.hops),
                              "sql": question.sql},
                     tools=("schema", "rows", "query"), system=SYSTEM, domain="question answering")


def drawn_questions(themes: tuple[str, ...], *, count: int, seed: int, per_world: int,
                    least_hops: int) -> list[tuple[World, Question]]:
    """`count` questions over as many worlds as they need, the worlds in turn from the themes."""
    if not themes or per_world < 1:
        raise EnvironmentFault("no worlds to ask about", code="build", got=f"themes {themes}, per_world {per_world}",
                               fix="name at least one theme, and at least one question for each world")
    found: list[tuple[World, Question]] = []
    number = 0
    while len(found) < count:
        world = world_of(themes[number % len(themes)], seed * 100_000 + number)
        wanted = min(per_world, count - len(found))
        found += [(world, question) for question in questions_of(world, count=wanted, seed=seed, least_hops=least_hops)]
        number += 1
    return found


def fiction_of(task: Task) -> tuple[str, int]:
    """The theme and seed of a task's world."""
    kind, _, name = task.initial_state.partition(":")
    theme, _, seed = name.partition("/")
    if kind != "fiction" or theme not in ALL_THEMES or not seed.isdigit():
        raise EnvironmentFault("a task names no world", code="reset", got=task.initial_state)
    return theme, int(seed)


@dataclass(slots=True)
class WorldEpisode(ToolEpisode):
    """One question, and a database that can be read."""

    world: World | None = None
    database: sqlite3.Connection | None = field(default=None, repr=False)

    async def reset(self, task: Task) -> Observation:
        self.world = world_of(*fiction_of(task))
        self.database = self.world.connect()
        self.database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
        self.database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self.database.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200)
        self.database.set_authorizer(_allowed)
        self.offered = {tool.schema.name: tool for tool in (
            Tool(schema=schema("schema", "Shows the tables and their columns."), run=self._schema),
            Tool(schema=schema("rows", f"Shows rows of a table in which a column has a value, at most {SHOWN_ROWS}.", ("table",),
                               table={"type": "string"}, column={"type": "string"}, value={"type": ["string", "integer"]}),
                 run=self._rows),
            Tool(schema=schema("query", f"Runs one SQL query (SQLite) that reads; shows at most {SHOWN_ROWS} rows.", ("sql",),
                               sql={"type": "string"}), run=self._query))}
        return Observation()

    async def close(self) -> None:
        if self.database is not None:
            self.database.close()

    def _schema(self, arguments: Mapping[str, Any]) -> str:
        assert self.world is not None
        return self.world.schema()

    async def _rows(self, arguments: Mapping[str, Any]) -> str:
        assert self.world is not None
        table = next((table for table in self.world.tables if table.name == arguments["table"]), None)
        if table is None:
            raise Refused(f"there is no table {arguments['table']!r}; there are "
                          f"{', '.join(each.name for each in self.world.tables)}")
        if "column" not in arguments:
            return await self._run(f"SELECT * FROM {table.name}", ())
        if arguments["column"] not in [column.name for column in table.columns]:
            raise Refused(f"{table.name} has no column {arguments['column']!r}")
        if "value" not in arguments:
            raise Refused("a column without a value selects nothing")
        return await self._run(f"SELECT * FROM {table.name} WHERE {arguments['column']} = ?", (arguments["value"],))

    async def _query(self, arguments: Mapping[str, Any]) -> str:
        return await self._run(arguments["sql"], ())

    async def _run(self, sql: str, values: tuple[Any, ...]) -> str:
        assert self.database is not None
        return await in_thread(read_rows, self.database, sql, values)


def read_rows(database: sqlite3.Connection, sql: str, values: tuple[Any, ...]) -> str:
    """The result of a reading query as lines; Refused for what is no such query or takes too many steps."""
    left = [STEPS // 1000]

    def over() -> int:
        left[0] -= 1
        return int(left[0] < 0)

    database.set_progress_handler(over, 1000)
    try:
        cursor = database.execute(sql, values)
        rows = cursor.fetchmany(SHOWN_ROWS + 1)
        names = [column[0] for column in cursor.description or ()]
        cursor.close()
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, UnicodeError) as error:
        raise Refused(f"more than {STEPS} steps" if left[0] < 0 else f"error: {error}") from error
    lines = [" | ".join(names), *(" | ".join(_shown(value) for value in row) for row in rows[:SHOWN_ROWS])]
    if len(rows) > SHOWN_ROWS:
        lines.append(f"[more than {SHOWN_ROWS} rows]")
    return "\n".join(lines) if names else "no result"


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    return value.hex() if isinstance(value, bytes) else str(value)


def _allowed(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Reading, and functions that depend on their arguments alone."""
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in UNSTEADY:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY
