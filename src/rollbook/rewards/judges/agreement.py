"""How far a judge can be believed: agreement with labels beyond chance, and how much the place of a response decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.records import Unrated
from rollbook.rewards.errors import RewardError
from rollbook.rewards.judges.pairwise import Preferred

Z = 1.959964


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Share of equal labels with its 95% Wilson interval, and Cohen's kappa (None where chance alone would always agree)."""

    count: int
    unrated: int
    share: float
    low: float
    high: float
    kappa: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionBias:
    """Over pairs asked in both orders: how often the first place won, and how often the orders contradict each other.

    `first_share` is 0.5 for a judge without bias; `p_value` is of a two-sided sign test among the contradicting pairs.
    """

    count: int
    unrated: int
    first_share: float
    contradicting: float
    p_value: float


def agreement(judged: Sequence[str | Unrated], labels: Sequence[str]) -> Agreement:
    """Agreement of a judge with labels, over the items that it judged.

    Example: agreement(["a", "b", "a", "b"], ["a", "b", "b", "b"]).share == 0.75
    """
    if len(judged) != len(labels):
        raise RewardError("agreement needs one label per judgement", got=f"{len(judged)} and {len(labels)}")
    pairs = [(one, label) for one, label in zip(judged, labels, strict=True) if not isinstance(one, Unrated)]
    if not pairs:
        raise RewardError("agreement needs at least one judgement", got=f"{len(judged)} without a verdict")
    count = len(pairs)
    share = sum(one == label for one, label in pairs) / count
    names = {name for pair in pairs for name in pair}
    chance = sum(sum(one == name for one, _ in pairs) * sum(label == name for _, label in pairs) for name in names) / count**2
    low, high = wilson(share, count)
    return Agreement(count=count, unrated=len(judged) - count, share=share, low=low, high=high,
                     kappa=None if chance == 1.0 else (share - chance) / (1.0 - chance))


def position_bias(found: Sequence[Preferred | Unrated]) -> PositionBias:
    """What the two orders of each pair say about the judge."""
    known = [one for one in found if not isinstance(one, Unrated)]
    if not known:
        raise RewardError("position bias needs a pair that was judged in both orders", got=f"{len(found)} without a verdict")
    first = sum((one.one_first > 0.5) + (1.0 - one.one_second > 0.5) for one in known)
    torn = [one for one in known if not one.consistent]
    to_first = sum(one.one_first > 0.5 for one in torn)
    return PositionBias(count=len(known), unrated=len(found) - len(known), first_share=first / (2 * len(known)),
                        contradicting=len(torn) / len(known), p_value=_sign_test(to_first, len(torn)))


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95% interval of a share of `count`."""
    middle = share + Z * Z / (2 * count)
    half = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    return (middle - half) / (1 + Z * Z / count), (middle + half) / (1 + Z * Z / count)


def _sign_test(wins: int, count: int) -> float:
    if not count:
        return 1.0
    tail = sum(math.comb(count, k) for k in range(min(wins, count - wins) + 1)) / 2**count
    return min(1.0, 2 * tail)
