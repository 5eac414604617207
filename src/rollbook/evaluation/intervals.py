"""Exact and clustered intervals. `C` clusters, `B` resamples, `R` independent data sets.

A mean over items of several clusters is a ratio of sums; whole clusters are drawn, so items of one cluster may hang together in
any way. Percentiles are widened as for Student's t (Hesterberg 2015, "expanded percentile"): the plain ones are too narrow by
the factor sqrt((C - 1) / C) and by the normal quantile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rollbook.records import Interval, RecordError

RESAMPLES = 4_000
ENOUGH = 30     # clusters below which resampling them says little; the coverage is measured from here on
Array = NDArray[np.float64]


def exact(successes: int, count: int, *, level: float = 0.95) -> Interval:
    """Clopper-Pearson interval of a proportion: covers at least nominally whatever the proportion is."""
    if count <= 0 or not 0 <= successes <= count:
        raise RecordError("an exact interval needs a count of successes among at least one observation",
                          got=f"{successes} of {count}", why="no data is not 0.0", fix="evaluate at least one scored item")
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else float(stats.beta.ppf(tail, successes, count - successes + 1))
    high = 1.0 if successes == count else float(stats.beta.ppf(1 - tail, successes + 1, count - successes))
    return Interval(estimate=successes / count, low=low, high=high, level=level, method="exact", count=count)


def cluster_bootstrap(clusters: Mapping[str, Sequence[float]], *, seed: int, level: float = 0.95) -> Interval:
    """Interval of the mean over all items when whole clusters are drawn; for paired data the items are differences.

    Limit: covers within 2 points of nominal from 30 clusters on; refuses one.
    """
    held = {name: values for name, values in clusters.items() if len(values)}
    if len(held) < 2:
        raise RecordError("a clustered interval needs at least two clusters", got=str(len(held)),
                          why="how clusters differ cannot be seen in one", fix="resample the items instead")
    if not all(math.isfinite(value) for values in held.values() for value in values):
        raise RecordError("an interval is of finite numbers", got="a value that is not one",
                          why="an unscored item is left out and counted, it is no number")
    sums_C = np.array([math.fsum(values) for values in held.values()])
    sizes_C = np.array([float(len(values)) for values in held.values()])
    low_R, high_R = cluster_limits(sums_C[None], sizes_C, seed=seed, level=level)
    return Interval(estimate=float(sums_C.sum() / sizes_C.sum()), low=float(low_R[0]), high=float(high_R[0]), level=level,
                    method=f"cluster bootstrap, {RESAMPLES} resamples, {len(held)} clusters", count=int(sizes_C.sum()))


def cluster_limits(sums_RC: Array, sizes_C: Array, *, seed: int, level: float) -> tuple[Array, Array]:
    """Both ends of the interval for each of R data sets with the same cluster sizes."""
    count = sizes_C.size
    draws_BC = _draws(count, seed)
    means_RB = (sums_RC @ draws_BC.T) / (draws_BC @ sizes_C)
    tail = expanded_tail(count, level)
    low_R, high_R = np.quantile(means_RB, [tail, 1 - tail], axis=1)
    return low_R, high_R


def expanded_tail(count: int, level: float) -> float:
    """The percentile to read so that the width is that of Student's t with `count` - 1 degrees of freedom.

    Example: expanded_tail(30, 0.95) -> 0.0188 instead of 0.025
    """
    wide = float(stats.t.ppf(0.5 + level / 2, count - 1)) * math.sqrt(count / (count - 1))
    return float(stats.norm.sf(wide))


@lru_cache(maxsize=4)
def _draws(count: int, seed: int) -> Any:
    """How often each cluster is in each resample, shape B x C, a multinomial draw per row."""
    rng = np.random.default_rng([seed, count])
    return rng.multinomial(count, np.full(count, 1 / count), size=RESAMPLES).astype(np.float64)
