"""Stage 2's silent failure: does a prompt show the answer, or ask another problem than the raw task did?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rollbook.records import RawTask, Task, TaskId, content_id
from rollbook.tasks.errors import TaskError
from rollbook.tasks.expressions import NUMBER, numbers

LeakKind = Literal["reference_shown", "reference_in_system_prompt", "reference_shown_by_raw_task", "numbers_lost",
                   "numbers_added"]
HARMLESS: tuple[LeakKind, ...] = ("reference_shown_by_raw_task", "reference_in_system_prompt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """One finding. `harmless` where the raw task itself shows the number, as in 5 - 0, or the system prompt does: it is one
    text for all tasks and cannot depend on a reference.

    Example: Leak(task="Task:1f..", kind="numbers_lost", detail="38", harmless=False)
    """

    task: TaskId
    kind: LeakKind
    detail: str
    harmless: bool


def leaks(task: Task, raw: RawTask) -> tuple[Leak, ...]:
    """What a prompt shows of the reference, and the numbers that differ between the prompt and the raw task."""
    if task.raw != content_id(raw):
        raise TaskError("a task must be checked against its own raw task", got=f"{task.raw} and {content_id(raw)}")
    user = " ".join(message.content for message in task.prompt if message.role == "user")
    system = " ".join(message.content for message in task.prompt if message.role == "system")
    found = [*_shown(task.reference, user, system, raw.content), *_changed(Counter(numbers(raw.content)), Counter(numbers(user)))]
    return tuple(Leak(task=task.id, kind=kind, detail=detail, harmless=kind in HARMLESS) for kind, detail in found)


def check(pairs: Iterable[tuple[Task, RawTask]]) -> Counter[LeakKind]:
    """Counts of every finding over a task set; any that is not harmless is refused."""
    counts: Counter[LeakKind] = Counter()
    for task, raw in pairs:
        for leak in leaks(task, raw):
            if not leak.harmless:
                raise TaskError(f"the prompt of {task.id} has a leak: {leak.kind}", got=leak.detail,
                                why="the policy would be shown the answer, or asked another problem than is verified",
                                fix="change the formatter or the system prompt")
            counts[leak.kind] += 1
    return counts


def _shown(reference: str, user: str, system: str, raw: str) -> list[tuple[LeakKind, str]]:
    number = reference.strip().removeprefix("-")
    if not NUMBER.fullmatch(number):
        shown = bool(reference.strip()) and reference.strip() in user
        return [("reference_shown_by_raw_task" if reference.strip() in raw else "reference_shown", reference)] if shown else []
    found: list[tuple[LeakKind, str]] = []
    if number in numbers(user):
        found.append(("reference_shown_by_raw_task" if number in numbers(raw) else "reference_shown", reference))
    if number in numbers(system):
        found.append(("reference_in_system_prompt", reference))
    return found


def _changed(raw: Counter[str], shown: Counter[str]) -> list[tuple[LeakKind, str]]:
    lost, added = raw - shown, shown - raw
    found: list[tuple[LeakKind, str]] = []
    if lost:
        found.append(("numbers_lost", ", ".join(sorted(lost.elements()))))
    if added:
        found.append(("numbers_added", ", ".join(sorted(added.elements()))))
    return found
