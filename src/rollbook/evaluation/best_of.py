"""What it is worth to let a reward model pick one answer of n, beside one answer alone and the best that n answers hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollbook.evaluation.attempts import Attempt, average, best_of_n, pass_at_k, per_task
from rollbook.evaluation.statistics import paired_bootstrap
from rollbook.records import Interval, RecordError

SEED = 20252


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """Expected accuracies by n, and the paired gain of the pick of the largest n over one answer.

    Example: Picked(picked={"1": 0.4, "4": 0.6}, possible={"1": 0.4, "4": 0.7}, gain=Interval(...))
    """

    picked: Mapping[str, float]
    possible: Mapping[str, float]
    gain: Interval


def sizes(trials: int) -> tuple[int, ...]:
    """1, 2, 4 ... up to the number of trials, which is the last."""
    return (*(2**power for power in range(trials.bit_length()) if 2**power < trials), trials)


def picked(tasks: Mapping[str, Sequence[Attempt]], trials: int) -> Picked:
    """Exact expectations over draws of n of the scored attempts; tasks with fewer than `trials` scored attempts are left out."""
    held = {task: attempts for task, attempts in tasks.items() if len(attempts) >= trials}
    if not held:
        raise RecordError("no task has as many scored and rated answers as there are trials", got=f"{len(tasks)} tasks, {trials} "
                          f"trials", why="of nothing there is no result", fix="see why answers have no verdict or no rating")
    last = per_task(held, lambda own: best_of_n(own, trials))
    first = per_task(held, average)
    gain = paired_bootstrap([[(last[task] or 0.0) - (first[task] or 0.0) for task in held]], seed=SEED)
    return Picked(picked={str(n): _mean([best_of_n(own, n) for own in held.values()]) for n in sizes(trials)},
                  possible={str(n): _mean([pass_at_k(own, n) for own in held.values()]) for n in sizes(trials)}, gain=gain)


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known)
