"""What a world is made of: tables with typed columns, rules that must find no row, and questions as templates over both."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["integer", "text"]
AnswerKind = Literal["number", "text", "list", "best"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column; `refers` is `table.column` where its values are keys of another table.

    Example: Column(name="captain_id", kind="integer", refers="people.id")
    """

    name: str
    kind: Kind = "integer"
    refers: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with its rows; the first column is its key."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A law of the world: the query finds the rows that break it.

    Example: Rule(says="nobody founds a guild before the age of 18", sql="SELECT ... WHERE founded < born + 18")
    """

    says: str
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A question with gaps. `choose` lists what may fill them (one column per gap), `sql` answers with those as :names.

    `best` wants rows (answer, value), best first: a tie is no question. `list` wants one column, any order.
    """

    name: str
    text: str
    choose: str
    sql: str
    kind: AnswerKind
    hops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """How a row of a table is told: `title` names the page it stands on, `text` is the sentence, both from one row of `sql`.

    Example: Sentence(sql="SELECT name AS title, founded FROM towns", text="{title} was founded in {founded}.")
    """

    sql: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Everything about one kind of world but its rows."""

    name: str
    rules: tuple[Rule, ...]
    templates: tuple[Template, ...]
    sentences: tuple[Sentence, ...]


@dataclass(slots=True)
class Names:
    """Invented names, none twice."""

    drawn: random.Random
    used: set[str] = field(default_factory=set)

    START = ("b", "br", "d", "dr", "f", "g", "gr", "h", "k", "kr", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "w", "y",
             "z")
    MIDDLE = ("a", "e", "i", "o", "u", "ae", "ei", "au", "ia")
    END = ("l", "lm", "n", "nd", "r", "rk", "s", "sk", "th", "v", "x", "rn", "m", "sh")

    def word(self, syllables: int) -> str:
        """A word that was not made before, capitalised."""
        while True:
            parts = [self.drawn.choice(self.START) + self.drawn.choice(self.MIDDLE) for _ in range(syllables)]
            word = ("".join(parts) + self.drawn.choice(self.END)).capitalize()
            if word not in self.used:
                self.used.add(word)
                return word

    def person(self) -> str:
        return f"{self.word(1)} {self.word(2)}"

    def of(self, *patterns: str) -> str:
        """A pattern with {} filled by a new word."""
        return self.drawn.choice(patterns).format(self.word(2))


def spread(drawn: random.Random, total: int, least: int, parts: int) -> list[int]:
    """`parts` numbers of at least `least` with this sum."""
    cuts = sorted(drawn.randint(0, total - least * parts) for _ in range(parts - 1))
    edges: Iterable[int] = (0, *cuts, total - least * parts)
    edges = list(edges)
    return [edges[index + 1] - edges[index] + least for index in range(parts)]
