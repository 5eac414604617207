"""A world as pages of prose: one page for each thing in it, every fact on one page, and the pages name each other."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from rollbook.environments.builtin.fiction.worlds import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of a corpus. `name` finds it again: a title, or a path below the corpus folder.

    Example: Page(name="House Drel", text="House Drel is a guild with its seat in Voun. ...")
    """

    name: str
    text: str


def pages_of(world: World) -> tuple[Page, ...]:
    """The pages of a world, in the order of their titles."""
    connection = world.connect()
    connection.row_factory = sqlite3.Row
    try:
        told: dict[str, list[str]] = {}
        for sentence in world.theme.sentences:
            for row in connection.execute(sentence.sql):
                told.setdefault(row["title"], []).append(sentence.text.format(**dict(row)).strip())
    finally:
        connection.close()
    return tuple(Page(name=title, text="\n".join(lines)) for title, lines in sorted(told.items()))
