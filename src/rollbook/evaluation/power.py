"""How many tasks and trials it takes to see a gain, before anything is spent.

Two policies are compared on the same tasks. The gain of a task varies between tasks with variance `between`; the mean of its
trials adds `within / trials`, where `within` is the sum over both policies of the mean of p (1 - p).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

from rollbook.records import RecordError


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Variance of a task's gain between tasks, and of one trial of both policies within a task.

    Example: Noise(between=0.02, within=0.34)
    """

    between: float
    within: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.between) and math.isfinite(self.within) and min(self.between, self.within) >= 0.0):
            raise RecordError("a variance is finite and not negative", got=f"{self.between} and {self.within}")

    def variance(self, trials: int) -> float:
        """Of one task's observed gain."""
        if trials < 1:
            raise RecordError("a task needs at least one trial", got=str(trials), why="no trials, no gain to be seen")
        return self.between + self.within / trials


def power(noise: Noise, *, tasks: int, trials: int, gain: float, level: float = 0.95) -> float:
    """Chance that the interval excludes zero when the true gain is `gain` (either way; normal approximation)."""
    if tasks < 2:
        raise RecordError("power is of at least two tasks", got=str(tasks))
    error = math.sqrt(noise.variance(trials) / tasks)
    edge = float(stats.norm.ppf(0.5 + level / 2))
    if error == 0.0:
        return 1.0 if gain else 1 - level
    return float(stats.norm.sf(edge - gain / error) + stats.norm.cdf(-edge - gain / error))


def tasks_needed(noise: Noise, *, trials: int, gain: float, wanted: float = 0.8, level: float = 0.95) -> int:
    """The least number of tasks whose power reaches `wanted`.

    Example: tasks_needed(Noise(between=0.0, within=0.5), trials=1, gain=0.05) -> 1570
    """
    if gain == 0.0 or not 0.0 < wanted < 1.0:
        raise RecordError("the tasks needed are for a gain that is not zero and a chance between 0 and 1",
                          got=f"gain {gain}, chance {wanted}", why="no number of tasks shows what is not there")
    reach = float(stats.norm.ppf(0.5 + level / 2) + stats.norm.ppf(wanted))
    return max(2, math.ceil(noise.variance(trials) * (reach / gain) ** 2))


def noise_of(before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]) -> Noise:
    """The noise of a pilot: for each task in both, its scored trials; needs two tasks, and two trials to tell the parts apart.

    With one trial a task everything is counted as `within`, which is what one trial of each can show.
    """
    shared = [task for task in before if before[task] and after.get(task)]
    if len(shared) < 2:
        raise RecordError("noise is estimated on at least two tasks that both policies were scored on", got=str(len(shared)))
    gains = [_mean(after[task]) - _mean(before[task]) for task in shared]
    total = _variance(gains)
    repeated = all(min(len(before[task]), len(after[task])) > 1 for task in shared)
    if not repeated:
        return Noise(between=0.0, within=total)
    within = _mean([_variance(before[task]) + _variance(after[task]) for task in shared])
    noise = _mean([_variance(before[task]) / len(before[task]) + _variance(after[task]) / len(after[task]) for task in shared])
    return Noise(between=max(0.0, total - noise), within=within)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
