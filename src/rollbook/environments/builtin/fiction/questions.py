"""Questions about a world whose answers are computed by SQL; a question without one clear answer is not asked."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass
from typing import Any

from rollbook.environments.builtin.fiction.tables import AnswerKind, Template
from rollbook.environments.builtin.fiction.worlds import World
from rollbook.records import EnvironmentFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, the query that answers it, and its answers (one, or several of a list).

    Example: Question(text="In which year was House Drel founded?", template="founded", filled={"guild": "House Drel"},
        sql="SELECT ...", kind="number", answers=("731",), hops=1)
    """

    text: str
    template: str
    filled: dict[str, Any]
    sql: str
    kind: AnswerKind
    answers: tuple[str, ...]
    hops: int

    @property
    def reference(self) -> str:
        """The answers as one text, joined by semicolons."""
        return "; ".join(self.answers)


def questions_of(world: World, *, count: int, seed: int, least_hops: int = 1) -> tuple[Question, ...]:
    """`count` different questions of at least so many joins of facts; EnvironmentFault where the world has not so many."""
    drawn = random.Random(f"questions/{world.name}/{seed}")
    connection = world.connect()
    connection.row_factory = sqlite3.Row
    try:
        found: list[Question] = []
        templates = [template for template in world.theme.templates if template.hops >= least_hops]
        waiting = {template.name: _shuffled(connection, template, drawn) for template in templates}
        while len(found) < count and templates:
            template = drawn.choice(templates)
            if not waiting[template.name]:
                templates.remove(template)
                continue
            question = _asked(connection, template, waiting[template.name].pop())
            if question is not None:
                found.append(question)
    finally:
        connection.close()
    if len(found) < count:
        raise EnvironmentFault("a world has too few questions", code="build", got=f"{len(found)} of {count} in {world.name}",
                               fix="ask for fewer per world, or for fewer hops")
    return tuple(found)


def _shuffled(connection: sqlite3.Connection, template: Template, drawn: random.Random) -> list[dict[str, Any]]:
    filled = [dict(row) for row in connection.execute(template.choose)]
    drawn.shuffle(filled)
    return filled


def _asked(connection: sqlite3.Connection, template: Template, filled: dict[str, Any]) -> Question | None:
    rows = [tuple(row) for row in connection.execute(template.sql, filled)]
    if not rows or rows[0][0] is None:
        return None
    if template.kind == "best":
        if len(rows) > 1 and rows[0][1] == rows[1][1]:
            return None
        rows = rows[:1]
    elif template.kind != "list" and len(rows) != 1:
        return None
    return Question(text=template.text.format(**filled), template=template.name, filled=filled, sql=template.sql,
                    kind=template.kind,
                    answers=tuple(sorted(str(row[0]) for row in rows)), hops=template.hops)
