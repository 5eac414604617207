"""Selection by pass rate: which tasks the policy solves sometimes, and why the others were left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rollbook.records import Task, TaskId
from rollbook.tasks.errors import TaskError

RejectReason = Literal["too_easy", "too_hard", "unscored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The kept tasks in their order, the count of every reason for rejection, and passes per fully scored task.

    Example: Selection(kept=(task,), rejected={"too_easy": 3, "too_hard": 5, "unscored": 0}, pass_counts={task.id: 4})
    """

    kept: tuple[Task, ...]
    rejected: Mapping[str, int]
    pass_counts: Mapping[TaskId, int]


def select(tasks: Sequence[Task], accuracies: Mapping[TaskId, tuple[float | None, ...]], low: int, high: int) -> Selection:
    """The tasks that passed between `low` and `high` times, both inclusive.

    One accuracy per sample: 1.0 passed, 0.0 not, None unscored. A task with any unscored sample is rejected as unscored:
    its pass count is not known.
    """
    if not 0 <= low <= high:
        raise TaskError("pass-rate bounds must satisfy 0 <= low <= high", got=f"low {low}, high {high}")
    kept: list[Task] = []
    rejected: Counter[str] = Counter({"too_easy": 0, "too_hard": 0, "unscored": 0})
    pass_counts: dict[TaskId, int] = {}
    for task in tasks:
        if task.id not in accuracies:
            raise TaskError("pass-rate selection needs samples of every task", got=f"none for {task.id}")
        reason = _judge(accuracies[task.id], low, high)
        if reason != "unscored":
            pass_counts[task.id] = sum(value == 1.0 for value in accuracies[task.id])
        if reason is None:
            kept.append(task)
        else:
            rejected[reason] += 1
    return Selection(kept=tuple(kept), rejected=dict(rejected), pass_counts=pass_counts)


def _judge(accuracies: tuple[float | None, ...], low: int, high: int) -> RejectReason | None:
    if not accuracies or None in accuracies:
        return "unscored"
    passes = sum(value == 1.0 for value in accuracies)
    if passes < low:
        return "too_hard"
    return "too_easy" if passes > high else None
