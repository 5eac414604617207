"""A world from its theme and seed: the same rows every time, no rule broken."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from rollbook.environments.builtin.fiction import league, letters, register, trade
from rollbook.environments.builtin.fiction.tables import Table, Theme
from rollbook.records import EnvironmentFault, canonical, digest

# AgentWorld (2606.24597): fictional worlds as relational databases of 300 to 500 invented rows.
SMALLEST, LARGEST = 300, 500
BUILDERS: dict[str, tuple[Theme, Callable[[random.Random, int], tuple[Table, ...]]]] = {
    "trade": (trade.TRADE, trade.rows), "league": (league.LEAGUE, league.rows), "letters": (letters.LETTERS, letters.rows),
    "register": (register.REGISTER, register.rows)}
ALL_THEMES = tuple(BUILDERS)
THEMES = ("trade", "league", "letters")     # those in prose: `register` is asked for by name


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """An invented world: its tables, and the theme whose rules they keep. `name` is its theme and seed.

    Example: World(name="trade/7", theme=TRADE, tables=(Table(name="provinces", ...), ...))
    """

    name: str
    theme: Theme
    tables: tuple[Table, ...]

    @property
    def size(self) -> int:
        """Rows of all tables."""
        return sum(len(table.rows) for table in self.tables)

    @property
    def digest(self) -> str:
        return digest(canonical({table.name: [list(row) for row in table.rows] for table in self.tables}))

    def schema(self) -> str:
        """The tables as SQL defines them."""
        return "\n".join(_create(table) for table in self.tables)

    def script(self) -> str:
        """SQL that makes the whole database."""
        rows = [f"INSERT INTO {table.name} VALUES {', '.join(map(_values, table.rows))};" for table in self.tables if table.rows]
        return "\n".join((self.schema(), *rows))

    def connect(self) -> sqlite3.Connection:
        """A fresh database in memory that can be read only."""
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        connection.executescript(self.script())
        connection.execute("PRAGMA query_only = ON")
        return connection

    def broken_rules(self) -> list[str]:
        """What the rules of the theme, keys and references find wrong; nothing in a world that is consistent."""
        connection = self.connect()
        try:
            broken = [rule.says for rule in self.theme.rules if connection.execute(rule.sql).fetchone()]
            for table in self.tables:
                if len({row[0] for row in table.rows}) != len(table.rows):
                    broken.append(f"{table.name} has a key twice")
                for column in table.columns:
                    if column.refers:
                        other, key = column.refers.split(".")
                        sql = f"SELECT 1 FROM {table.name} WHERE {column.name} NOT IN (SELECT {key} FROM {other})"
                        if connection.execute(sql).fetchone():
                            broken.append(f"{table.name}.{column.name} names no row of {other}")
            return broken
        finally:
            connection.close()


def build_world(theme: str, seed: int) -> World:
    """The world of a theme and seed."""
    if theme not in BUILDERS:
        raise EnvironmentFault("no world has this theme", code="build", got=theme, fix=f"themes: {', '.join(THEMES)}")
    chosen, rows = BUILDERS[theme]
    drawn = random.Random(f"fiction/{theme}/{seed}")
    return World(name=f"{theme}/{seed}", theme=chosen, tables=rows(drawn, drawn.randint(SMALLEST, LARGEST)))


def _create(table: Table) -> str:
    parts = [f"{column.name} {column.kind.upper()}{' PRIMARY KEY' if place == 0 else ''}"
             + (f" REFERENCES {column.refers.replace('.', '(')})" if column.refers else "")
             for place, column in enumerate(table.columns)]
    return f"CREATE TABLE {table.name} ({', '.join(parts)});"


def _values(row: tuple[object, ...]) -> str:
    return f"({', '.join(map(_literal, row))})"


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
