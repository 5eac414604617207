"""What the intervals and tests of `rollbook.evaluation` promise, measured by simulation: coverage, brute force, false alarms.

python benchmarks/coverage.py [--repeats 20000]: prints a row for each claim with its bound, exits 1 when one is missed. Exact
coverage where it can be summed over all counts, simulation elsewhere; seeds are fixed. About a minute on one core.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from rollbook.evaluation.attempts import Attempt, best_of_n, majority_at_k, pass_at_k
from rollbook.evaluation.comparison import claim
from rollbook.evaluation.statistics import BOOTSTRAP_SEED
from rollbook.evaluation.intervals import cluster_limits, exact
from rollbook.evaluation.statistics import RESAMPLES, mcnemar, paired_bootstrap, wilson
from rollbook.records import Interval

SHARES = np.linspace(0.001, 0.999, 999)
COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 512, 1000)
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Row:
    """A claim, what was measured, and whether it holds."""

    claim: str
    measured: str
    holds: bool


def coverage(interval: Callable[[int, int], Interval], count: int) -> np.ndarray:
    """Coverage at each share: the probability of the counts whose interval holds it, summed without simulation."""
    low, high = np.array([(one.low, one.high) for one in (interval(k, count) for k in range(count + 1))]).T
    chance = stats.binom.pmf(np.arange(count + 1)[:, None], count, SHARES[None])
    return (chance * ((low[:, None] <= SHARES) & (high[:, None] >= SHARES))).sum(axis=0)


def of_one_policy() -> Iterator[Row]:
    worst = {count: float(coverage(exact, count).min()) for count in COUNTS}
    least = min(worst, key=worst.__getitem__)
    yield Row("exact interval: at least 95% at every share (999 shares, n = 1 to 1000)",
              f"least {100 * worst[least]:.2f}% (n = {least})", worst[least] >= LEVEL)
    means = {count: float(coverage(wilson, count).mean()) for count in COUNTS if count >= 5}
    for count, mean in means.items():
        yield Row(f"Wilson, averaged over the share, n = {count}: within 1 point of 95%", f"{100 * mean:.2f}%",
                  abs(mean - LEVEL) <= 0.01)


def of_clusters(repeats: int) -> Iterator[Row]:
    for clusters, between, sizes in itertools.product((30, 50, 100), (0.0, 0.2, 0.45), ("equal", "mixed", "one large")):
        rng = np.random.default_rng([clusters, int(100 * between), len(sizes)])
        size = {"equal": np.full(clusters, 8), "mixed": rng.integers(1, 13, size=clusters),
                "one large": np.array([40, *rng.integers(4, 9, size=clusters - 1)])}[sizes]
        share = np.clip(0.5 + between * rng.uniform(-1, 1, size=(repeats, clusters)), 0, 1)
        sums = rng.binomial(size, share).astype(float)
        low, high = cluster_limits(sums, size.astype(float), seed=1, level=LEVEL)
        found = float(np.mean((low <= 0.5) & (high >= 0.5)))
        yield Row(f"cluster bootstrap, {clusters} clusters, {sizes} sizes, shares ±{between:g}: within 2 points of 95%",
                  f"{100 * found:.2f}% of {repeats:,}", abs(found - LEVEL) <= 0.02)


def against_itself(repeats: int) -> Iterator[Row]:
    """A policy against itself as `rollbook compare` decides: interval and test together, then either alone."""
    for tasks, share in ((40, 0.5), (120, 0.3), (512, 0.5), (512, 0.05)):
        rng = np.random.default_rng([7, tasks, int(100 * share)])
        tested = np.array([[mcnemar([0.0] * g + [1.0] * (n - g), [1.0] * g + [0.0] * (n - g)) or 1.0 if g <= n else 1.0
                            for n in range(tasks + 1)] for g in range(tasks + 1)]) if tasks <= 120 else None
        by_interval = by_test = both = 0
        for _ in range(10):
            solve = rng.beta(2 * share, 2 * (1 - share), size=(repeats // 10, tasks))
            before, after = rng.random(solve.shape) < solve, rng.random(solve.shape) < solve
            low, high = cluster_limits(after.astype(float) - before, np.ones(tasks), seed=5, level=LEVEL)
            gained, changed = (after & ~before).sum(axis=1), (after != before).sum(axis=1)
            p = tested[gained, changed] if tested is not None else np.where(
                changed == 0, 1.0, np.minimum(1.0, 2 * stats.binom.cdf(np.minimum(gained, changed - gained), changed, 0.5)))
            apart = (low > 0) | (high < 0)
            by_interval, by_test = by_interval + int(apart.sum()), by_test + int((p <= 0.05).sum())
            both += sum(claim(Interval(estimate=0.0, low=a, high=b, level=LEVEL, method="", count=tasks), q) != "none"
                        for a, b, q in zip(low, high, p, strict=True))
        yield Row(f"A/A, {tasks} tasks of share {share:g}: called different in at most 5.5%",
                  f"{100 * both / repeats:.2f}% of {repeats:,} (interval alone {100 * by_interval / repeats:.2f}%, "
                  f"McNemar alone {100 * by_test / repeats:.2f}%)", max(both, by_interval, by_test) / repeats <= 0.055)


def in_a_run(repeats: int) -> Iterator[Row]:
    """The comparison that a run makes between two of its own evaluations: the paired bootstrap's interval alone claims."""
    for tasks, share in ((64, 0.5), (128, 0.3), (256, 0.3), (512, 0.3)):
        draws, rng = resamples(tasks), np.random.default_rng([8, tasks])
        flagged = by_both = 0
        for _ in range(20):
            solve = rng.beta(2 * share, 2 * (1 - share), size=(repeats // 20, tasks))
            before, after = rng.random(solve.shape) < solve, rng.random(solve.shape) < solve
            gain = after.astype(float) - before
            low, high = np.quantile(gain @ draws.T / tasks, [0.025, 0.975], axis=1)
            gained, changed = (after & ~before).sum(axis=1), (after != before).sum(axis=1)
            fewer = np.minimum(gained, changed - gained)
            p = np.where(changed == 0, 1.0, np.minimum(1.0, 2 * stats.binom.cdf(fewer, changed, 0.5)))
            flagged += int(((low > 0) | (high < 0)).sum())
            by_both += int((((low > 0) | (high < 0)) & (p <= 0.05)).sum())
        made = paired_bootstrap([gain[0].tolist()], seed=BOOTSTRAP_SEED)
        assert abs(made.low - low[0]) < 1e-12 and abs(made.high - high[0]) < 1e-12
        yield Row(f"A/A within a run, {tasks} tasks of share {share:g}: claimed in at most 5.5%",
                  f"{100 * flagged / repeats:.2f}% of {repeats:,} (with McNemar {100 * by_both / repeats:.2f}%)",
                  flagged / repeats <= 0.055)


def resamples(tasks: int) -> np.ndarray:
    """How often `paired_bootstrap` draws each task in each of its resamples."""
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    rows = [rng.integers(0, tasks, size=(1000, tasks)) for _ in range(RESAMPLES // 1000)]
    return np.array([np.bincount(row, minlength=tasks) for part in rows for row in part], dtype=np.float64)


def of_several_attempts() -> Iterator[Row]:
    rng, worst, cases = np.random.default_rng(11), {"pass@k": 0.0, "best of k": 0.0, "majority@k": 0.0}, 0
    for n in range(1, 9):
        for _ in range(12):
            right = str(rng.integers(3))
            answers = [None if rng.random() < 0.2 else str(rng.integers(3)) for _ in range(n)]
            held = [Attempt(accuracy=float(a == right), answer=a, selector=float(rng.integers(3))) for a in answers]
            for k in range(1, n + 1):
                cases += 1
                for name, ours, by_hand in (("pass@k", pass_at_k, _any), ("best of k", best_of_n, _first),
                                            ("majority@k", majority_at_k, _vote)):
                    draws = list(itertools.combinations(held, k))
                    theirs = math.fsum(by_hand(draw) for draw in draws) / len(draws)
                    worst[name] = max(worst[name], abs((ours(held, k) or 0.0) - theirs))
    for name, gap in worst.items():
        yield Row(f"{name} equals brute force over every draw ({cases} cases)", f"largest difference {gap:.1e}", gap < 1e-12)


def _any(draw: Sequence[Attempt]) -> float:
    return max(one.accuracy or 0.0 for one in draw)


def _first(draw: Sequence[Attempt]) -> float:
    top = max(one.selector or 0.0 for one in draw)
    held = [one.accuracy or 0.0 for one in draw if one.selector == top]
    return sum(held) / len(held)


def _vote(draw: Sequence[Attempt]) -> float:
    counts: dict[str, list[float]] = {}
    for one in draw:
        if one.answer is not None:
            counts.setdefault(one.answer, []).append(one.accuracy or 0.0)
    top = max((len(held) for held in counts.values()), default=0)
    winners = [held[0] for held in counts.values() if len(held) == top]
    return sum(winners) / len(winners) if winners else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20_000)
    repeats = parser.parse_args().repeats
    missed = 0
    for row in itertools.chain(of_one_policy(), of_several_attempts(), of_clusters(repeats // 2), against_itself(repeats),
                               in_a_run(repeats)):
        missed += not row.holds
        print(f"{'ok  ' if row.holds else 'MISS'} {row.claim:100} {row.measured}", flush=True)
    print(f"{missed} missed")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
