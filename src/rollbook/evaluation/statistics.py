"""Intervals for one policy and for the paired difference of two."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from rollbook.records import Interval, RecordError

RESAMPLES = 10_000
BOOTSTRAP_SEED = 20251      # of every bootstrap interval of results and gains: computed again, they are the same


def wilson(successes: float, count: int, *, level: float = 0.95) -> Interval:
    """Wilson score interval of a proportion."""
    if count == 0:
        raise RecordError("an interval needs at least one observation", got="0",
                          why="no data is not 0.0", fix="evaluate at least one scored item")
    z = float(stats.norm.ppf(0.5 + level / 2))
    p = successes / count
    centre = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    return Interval(estimate=p, low=max(0.0, centre - half), high=min(1.0, centre + half), level=level, method="wilson",
                    count=count)


def paired_bootstrap(differences: Sequence[Sequence[float]], *, seed: int, level: float = 0.95) -> Interval:
    """Percentile interval of the mean difference; items are resampled within each stratum (a run or a seed), then pooled."""
    strata = [np.asarray(part, dtype=np.float64) for part in differences if len(part)]
    if not strata:
        raise RecordError("a paired interval needs at least one pair", got="0", why="no data is not 0.0",
                          fix="compare reports that share scored tasks")
    rng = np.random.default_rng(seed)
    total = sum(part.size for part in strata)
    sums = np.zeros(RESAMPLES)
    for part in strata:
        for at in range(0, RESAMPLES, 1000):
            picks = rng.integers(0, part.size, size=(1000, part.size))
            sums[at:at + 1000] += part[picks].sum(axis=1)
    means = sums / total
    low, high = np.quantile(means, [0.5 - level / 2, 0.5 + level / 2])
    estimate = sum(float(part.sum()) for part in strata) / total
    return Interval(estimate=estimate, low=float(low), high=float(high), level=level,
                    method=f"paired bootstrap, {RESAMPLES} resamples, {len(strata)} strata", count=total)


def mcnemar(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Exact two-sided p-value over the discordant pairs of binary outcomes; None when there is no discordant pair."""
    pairs = list(zip(before, after, strict=True))
    if any(value not in (0.0, 1.0) for pair in pairs for value in pair):
        raise RecordError("McNemar's test takes binary outcomes", got="a value other than 0 and 1")
    gained = sum(1 for b, a in pairs if a > b)
    lost = sum(1 for b, a in pairs if a < b)
    if gained + lost == 0:
        return None
    return float(stats.binomtest(gained, gained + lost, 0.5).pvalue)
