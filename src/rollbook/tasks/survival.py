"""What of a raw task survives in the prompt made from it: numbers, expressions, code, constraints; and what was added."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from rollbook.records import RawTask, Task
from rollbook.tasks.expressions import numbers
from rollbook.tasks.surface import words_of

ChangeKind = Literal["numbers lost", "numbers added", "expression changed", "code lost", "constraint lost", "words added",
                     "characters added"]
CONSTRAINTS = frozenset(
    "all any at between consecutive decimal decimals different distinct each even every exactly except fewer first fraction "
    "greater greatest if integer integers largest last least less maximum minimum mod modulo more most must nearest negative "
    "never no nonnegative not odd only positive prime remainder round rounded simplest smallest than unique unless whole "
    "without".split())
RUN = re.compile(r"[-+\s(]*\d[\d\s.()+*/^<>=-]*")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
SPACES = re.compile(r"\s{2,}|[^\S \n]")
EDGES = re.compile(r"\A\s+|\s+\Z")
MARKS = frozenset("=:?. \n")      # a formatter may add these
MARKS_ADDED = 2
TEMPLATE_TASKS = 8                # from so many raw tasks of a source on, what all of them say is their template


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between a raw task and the messages made from it.

    Example: Change(kind="numbers lost", detail="38")
    """

    kind: ChangeKind
    detail: str


@dataclass(slots=True)
class Templates:
    """The constraint words that every raw task of a source has: dropping them is the formatter's rule, not a task's fate."""

    seen: dict[str, tuple[int, frozenset[str]]] = field(default_factory=dict)

    def add(self, raw: RawTask) -> None:
        count, shared = self.seen.get(raw.source, (0, CONSTRAINTS))
        self.seen[raw.source] = count + 1, shared & constraints(raw.content).keys() if shared else shared

    def shared(self, source: str) -> frozenset[str]:
        count, shared = self.seen.get(source, (0, frozenset()))
        return shared if count >= TEMPLATE_TASKS else frozenset()


def changes(task: Task, raw: RawTask, template: Iterable[str] = ()) -> Iterator[Change]:
    """How the task's messages from `raw` differ from it, apart from the words of its `template`."""
    shown = "\n".join(message.content for message in task.prompt if message.origin == "raw")
    yield from _numbers(raw.content, shown)
    yield from (Change(kind="code lost", detail=block) for block in CODE.findall(raw.content) if block not in shown)
    lost = constraints(raw.content) - constraints(shown)
    for word in sorted(set(lost) - set(template)):
        yield Change(kind="constraint lost", detail=word)
    added = Counter(word.casefold() for word in words_of(shown)) - Counter(word.casefold() for word in words_of(raw.content))
    if words := sorted(word for word in added if not word.isdigit()):
        yield Change(kind="words added", detail=" ".join(words))
    yield from _characters(raw.content, shown)


def constraints(text: str) -> Counter[str]:
    """The constraint words of a text."""
    return Counter(word for word in map(str.casefold, words_of(text)) if word in CONSTRAINTS)


def _numbers(raw: str, shown: str) -> Iterator[Change]:
    before, after = Counter(numbers(raw)), Counter(numbers(shown))
    if lost := before - after:
        yield Change(kind="numbers lost", detail=", ".join(sorted(lost.elements())))
    if added := after - before:
        yield Change(kind="numbers added", detail=", ".join(sorted(added.elements())))
    if before == after and (was := _runs(raw)) != (now := _runs(shown)):
        yield Change(kind="expression changed", detail=f"{'; '.join(was)} became {'; '.join(now)}")


def _runs(text: str) -> list[str]:
    """Numbers with the operators around them, in order, without white space and closing marks."""
    return ["".join(run.split()).rstrip("=.") for run in RUN.findall(text)]


def _characters(raw: str, shown: str) -> Iterator[Change]:
    """Characters that say nothing to a reader can say something to a policy."""
    odd = [space for space in SPACES.findall(shown) if space not in raw]
    odd += [] if EDGES.search(raw) else EDGES.findall(shown)
    marks = Counter(c for c in shown if not c.isalnum()) - Counter(c for c in raw if not c.isalnum())
    strange = sorted(c for c in marks if c not in MARKS)
    if odd or strange or marks.total() - marks[" "] - marks["\n"] > MARKS_ADDED:
        found = [*(f"white space {space!r}" for space in odd), *map(repr, strange), *([] if odd or strange else ["marks"])]
        yield Change(kind="characters added", detail=", ".join(found))
