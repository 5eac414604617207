"""Whether the box of an answer holds a task's reference, as far as that can be said at once: no symbols, no sandbox, no model."""

from __future__ import annotations

from rollbook.records import Task
from rollbook.rewards.boxes import last_box
from rollbook.rewards.numbers import compare


def answers_rightly(text: str, task: Task) -> bool | None:
    """Whether a number or letter in a box is the reference; None where there is no box, or more would have to be compared."""
    stated = last_box(text).answer
    if stated is None or task.predicate not in ("math.equivalent", "choice.letter"):
        return None
    if task.predicate == "choice.letter":
        return stated.strip("(). ").upper() == task.reference
    return compare(stated, task.reference)
