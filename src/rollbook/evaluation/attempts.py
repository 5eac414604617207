"""What several attempts at one task amount to: pass@k, majority@k, best of n, their average.

All are exact expectations over a draw of k attempts without replacement from the n that were scored: no draw is simulated.
An unscored attempt is not among the n; a task with fewer than k scored attempts has no value (None), which is not 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rollbook.records import RecordError


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at a task: its accuracy (None: unscored), the answer it gave, and a selector's score of it.

    Example: Attempt(accuracy=1.0, answer="7", selector=0.93)
    """

    accuracy: float | None
    answer: str | None = None
    selector: float | None = None


Rule = Callable[[Sequence[Attempt]], float | None]


def scored(attempts: Sequence[Attempt]) -> list[tuple[float, Attempt]]:
    """The attempts that have a verdict, with it."""
    return [(attempt.accuracy, attempt) for attempt in attempts if attempt.accuracy is not None]


def pass_at_k(attempts: Sequence[Attempt], k: int) -> float | None:
    """Chance that at least one of k attempts is right: 1 - C(n - c, k) / C(n, k), unbiased (Chen et al. 2021)."""
    _check_k(k)
    held = scored(attempts)
    if any(value not in (0.0, 1.0) for value, _ in held):
        raise RecordError("pass@k is of attempts that are right or wrong", got="an accuracy between 0 and 1",
                          fix="use the average of n")
    n, right = len(held), sum(value == 1.0 for value, _ in held)
    return None if n < k else 1.0 - math.comb(n - right, k) / math.comb(n, k)


def average(attempts: Sequence[Attempt]) -> float | None:
    """Mean accuracy of the scored attempts ("average of n")."""
    held = [value for value, _ in scored(attempts)]
    return math.fsum(held) / len(held) if held else None


def best_of_n(attempts: Sequence[Attempt], n: int) -> float | None:
    """Expected accuracy of the attempt that the selector ranks first among n; equal scores are equally likely to be first."""
    _check_k(n)
    held = scored(attempts)
    if len(held) < n:
        return None
    groups: dict[float, list[float]] = {}
    for value, attempt in held:
        if attempt.selector is None or not math.isfinite(attempt.selector):
            raise RecordError("best of n needs the selector's score of every scored attempt", got=str(attempt.selector),
                              why="an attempt without a score can be neither chosen nor passed over", fix="score all, or none")
        groups.setdefault(attempt.selector, []).append(value)
    left, total, expected = len(held), math.comb(len(held), n), 0.0
    for score in sorted(groups, reverse=True):
        values = groups[score]
        first = math.comb(left, n) - math.comb(left - len(values), n)
        expected += first / total * math.fsum(values) / len(values)
        left -= len(values)
    return expected


def majority_at_k(attempts: Sequence[Attempt], k: int) -> float | None:
    """Expected accuracy of the most frequent answer among k attempts; ties are split evenly.

    An attempt without an answer does not vote; where nobody votes, the result is wrong (0.0).
    """
    _check_k(k)
    held = scored(attempts)
    if len(held) < k:
        return None
    votes = Counter(attempt.answer for _, attempt in held)
    silent = votes.pop(None, 0)
    right = {answer: [value for value, attempt in held if attempt.answer == answer] for answer in votes}
    total = math.comb(len(held), k)
    expected = 0.0
    for answer, size in votes.items():
        others = [count for name, count in votes.items() if name != answer]
        share = sum(math.comb(size, most) * _shared(others, silent, k - most, most) for most in range(1, min(size, k) + 1))
        expected += share / total * math.fsum(right[answer]) / len(right[answer])
    return expected


def _shared(others: Sequence[int], silent: int, left: int, most: int) -> float:
    """Ways to draw `left` votes of others, none more than `most` times, each way divided by how many share the first place."""
    ways: dict[tuple[int, int], int] = {(0, 0): 1}      # (votes drawn, answers with exactly `most`) -> ways
    for size in others:
        after: dict[tuple[int, int], int] = {}
        for (drawn, tied), count in ways.items():
            for more in range(min(size, most, left - drawn) + 1):
                key = (drawn + more, tied + (more == most))
                after[key] = after.get(key, 0) + count * math.comb(size, more)
        ways = after
    return math.fsum(count * math.comb(silent, left - drawn) / (tied + 1) for (drawn, tied), count in ways.items())


def per_task(tasks: Mapping[str, Sequence[Attempt]], rule: Rule) -> dict[str, float | None]:
    """The rule's value for each task, None where too few of its attempts were scored."""
    return {task: rule(attempts) for task, attempts in tasks.items()}


def _check_k(k: int) -> None:
    if k < 1:
        raise RecordError("k is at least 1", got=str(k))
