"""Coverage by simulation, vectorised: what an interval promises is what it does, and nothing is found where nothing is."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from rollbook.evaluation.attempts import Attempt, average, best_of_n, majority_at_k, pass_at_k, per_task
from rollbook.evaluation.intervals import cluster_bootstrap, cluster_limits, exact, expanded_tail
from rollbook.evaluation.multiple import benjamini_hochberg, holm
from rollbook.evaluation.power import Noise, noise_of, power, tasks_needed
from rollbook.evaluation.statistics import mcnemar, wilson
from rollbook.records import RecordError

SHARES = np.linspace(0.01, 0.99, 99)


def coverage(interval, count):
    """Exact coverage of an interval for each share: the probability of the counts whose interval holds it."""
    ends = [(one.low, one.high) for one in (interval(k, count) for k in range(count + 1))]
    low, high = np.array(ends).T
    chance = stats.binom.pmf(np.arange(count + 1)[:, None], count, SHARES[None])
    return (chance * ((low[:, None] <= SHARES) & (high[:, None] >= SHARES))).sum(axis=0)


@pytest.mark.parametrize("count", [5, 20, 100, 500])
def test_the_exact_interval_covers_at_least_nominally_at_every_share(count):
    assert coverage(exact, count).min() >= 0.95


@pytest.mark.parametrize("count", [10, 20, 100, 500])
def test_the_wilson_interval_covers_within_one_point_averaged_over_the_share(count):
    assert coverage(wilson, count).mean() == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize(("clusters", "between"), [(30, 0.0), (30, 0.35), (60, 0.2), (120, 0.35)])
def test_the_cluster_bootstrap_covers_within_two_points_from_thirty_clusters_on(clusters, between):
    rng = np.random.default_rng([clusters, int(100 * between)])
    sizes = rng.integers(2, 13, size=clusters).astype(float)
    repeats = 6000
    share = np.clip(0.5 + between * rng.uniform(-1, 1, size=(repeats, clusters)), 0, 1)
    sums = rng.binomial(sizes.astype(int), share).astype(float)
    low, high = cluster_limits(sums, sizes, seed=1, level=0.95)
    assert np.mean((low <= 0.5) & (high >= 0.5)) == pytest.approx(0.95, abs=0.02)


def test_resampling_items_of_correlated_clusters_would_not_have_covered():
    rng = np.random.default_rng(3)
    share = np.clip(0.5 + 0.35 * rng.uniform(-1, 1, size=(2000, 30)), 0, 1)
    sums = rng.binomial(40, share).astype(float)
    error = np.sqrt(0.25 / 1200)
    naive = np.abs(sums.sum(axis=1) / 1200 - 0.5) <= 1.96 * error
    low, high = cluster_limits(sums, np.full(30, 40.0), seed=1, level=0.95)
    assert naive.mean() < 0.85 < 0.93 < np.mean((low <= 0.5) & (high >= 0.5))


@pytest.mark.parametrize(("tasks", "share"), [(40, 0.5), (120, 0.3)])
def test_a_policy_against_itself_is_called_different_in_at_most_five_and_a_half_percent_of_20000_repeats(tasks, share):
    rng = np.random.default_rng([7, tasks])
    flagged, flagged_exact, repeats = 0, 0, 20_000
    exact_p = {(g, n): (mcnemar([0.0] * g + [1.0] * (n - g), [1.0] * g + [0.0] * (n - g)) or 1.0)
               for n in range(tasks + 1) for g in range(n + 1)} if tasks == 40 else None
    for _ in range(10):
        solve = rng.beta(2 * share, 2 * (1 - share), size=(repeats // 10, tasks))
        before, after = rng.random(solve.shape) < solve, rng.random(solve.shape) < solve
        low, high = cluster_limits(after.astype(float) - before, np.ones(tasks), seed=5, level=0.95)
        flagged += int(np.sum((low > 0) | (high < 0)))
        if exact_p is not None:
            gained, changed = (after & ~before).sum(axis=1), (after != before).sum(axis=1)
            flagged_exact += sum(exact_p[int(g), int(n)] <= 0.05 for g, n in zip(gained, changed, strict=True))
    assert 0.02 < flagged / repeats <= 0.055
    assert flagged_exact / repeats <= 0.05


def test_one_cluster_or_no_number_is_refused():
    for clusters, words in (({"a": [1.0, 0.0]}, "two clusters"), ({}, "two clusters"), ({"a": [1.0], "b": [math.nan]}, "finite")):
        with pytest.raises(RecordError, match=words):
            cluster_bootstrap(clusters, seed=1)
    with pytest.raises(RecordError, match="at least one"):
        exact(0, 0)


def test_the_clustered_estimate_is_the_mean_of_all_items_and_the_interval_is_wider_than_the_plain_percentile():
    found = cluster_bootstrap({"a": [1.0, 1.0, 0.0], "b": [0.0], "c": [1.0, 0.0]}, seed=1)
    assert found.estimate == pytest.approx(0.5) and found.count == 6 and found.low < 0.5 < found.high
    assert expanded_tail(30, 0.95) < 0.025 and expanded_tail(10_000, 0.95) == pytest.approx(0.025, abs=1e-4)


# several attempts

def random_attempts(rng, n):
    answers = [None if rng.random() < 0.2 else str(rng.integers(3)) for _ in range(n)]
    right = str(rng.integers(3))
    return [Attempt(accuracy=float(a == right), answer=a, selector=float(rng.integers(3))) for a in answers]


def brute(attempts, k, value):
    draws = list(itertools.combinations(attempts, k))
    return math.fsum(value(draw) for draw in draws) / len(draws)


def first(draw):
    top = max(one.selector for one in draw)
    held = [one.accuracy for one in draw if one.selector == top]
    return sum(held) / len(held)


def vote(draw):
    counts = {}
    for one in draw:
        if one.answer is not None:
            counts.setdefault(one.answer, []).append(one.accuracy)
    top = max((len(held) for held in counts.values()), default=0)
    winners = [held[0] for held in counts.values() if len(held) == top]
    return sum(winners) / len(winners) if winners else 0.0


def test_pass_majority_and_best_of_equal_brute_force_over_every_draw():
    rng = np.random.default_rng(11)
    for n in range(1, 8):
        for _ in range(6):
            attempts = random_attempts(rng, n)
            for k in range(1, n + 1):
                assert pass_at_k(attempts, k) == pytest.approx(brute(attempts, k, lambda d: max(one.accuracy for one in d)))
                assert best_of_n(attempts, k) == pytest.approx(brute(attempts, k, first))
                assert majority_at_k(attempts, k) == pytest.approx(brute(attempts, k, vote))
            assert average(attempts) == pytest.approx(sum(one.accuracy for one in attempts) / n)


def test_unscored_attempts_are_not_among_the_n_and_too_few_give_no_value_rather_than_zero():
    attempts = [Attempt(accuracy=1.0), Attempt(accuracy=None), Attempt(accuracy=0.0)]
    assert pass_at_k(attempts, 2) == 1.0 and average(attempts) == 0.5
    assert pass_at_k(attempts, 3) is None and majority_at_k(attempts, 3) is None and best_of_n(attempts, 3) is None
    assert per_task({"a": attempts, "b": [Attempt(accuracy=None)]}, average) == {"a": 0.5, "b": None}


def test_best_of_n_refuses_attempts_without_a_score_and_pass_at_k_a_partial_accuracy():
    with pytest.raises(RecordError, match="selector"):
        best_of_n([Attempt(accuracy=1.0)], 1)
    with pytest.raises(RecordError, match="right or wrong"):
        pass_at_k([Attempt(accuracy=0.5)], 1)
    with pytest.raises(RecordError, match="at least 1"):
        pass_at_k([Attempt(accuracy=1.0)], 0)


# several comparisons and power

def test_holm_keeps_the_chance_of_any_false_finding_and_benjamini_hochberg_is_less_strict():
    rng = np.random.default_rng(2)
    found = sum(min(holm({str(at): p for at, p in enumerate(row)}).values()) <= 0.05 for row in rng.random((3000, 10)))
    assert found / 3000 <= 0.062
    p = {"a": 0.01, "b": 0.02, "c": 0.04, "d": 0.9}
    assert holm(p) == pytest.approx({"a": 0.04, "b": 0.06, "c": 0.08, "d": 0.9})
    assert benjamini_hochberg(p) == pytest.approx({"a": 0.04, "b": 0.04, "c": 0.16 / 3, "d": 0.9})
    with pytest.raises(RecordError, match="between 0 and 1"):
        holm({"a": math.nan})


@pytest.mark.parametrize(("tasks", "trials", "gain"), [(150, 1, 0.1), (150, 4, 0.06), (400, 2, 0.05)])
def test_the_power_stated_is_the_share_of_simulated_comparisons_that_see_the_gain(tasks, trials, gain):
    rng = np.random.default_rng([tasks, trials])
    repeats = 2500
    solve = rng.uniform(0.2, 0.6, size=(repeats, tasks))
    own = gain + 0.1 * rng.choice([-1.0, 1.0], size=solve.shape)
    before, after = rng.binomial(trials, solve) / trials, rng.binomial(trials, solve + own) / trials
    low, high = cluster_limits(after - before, np.ones(tasks), seed=4, level=0.95)
    seen = np.mean((low > 0) | (high < 0))
    within = np.mean(solve * (1 - solve) + (solve + own) * (1 - solve - own))
    noise = Noise(between=0.01, within=float(within))
    assert power(noise, tasks=tasks, trials=trials, gain=gain) == pytest.approx(seen, abs=0.035)


def test_the_tasks_needed_reach_the_power_wanted_and_one_fewer_does_not():
    noise = Noise(between=0.02, within=0.4)
    count = tasks_needed(noise, trials=2, gain=0.04)
    assert power(noise, tasks=count, trials=2, gain=0.04) >= 0.8 > power(noise, tasks=count - 1, trials=2, gain=0.04)
    assert tasks_needed(noise, trials=4, gain=0.04) < count
    with pytest.raises(RecordError, match="not zero"):
        tasks_needed(noise, trials=1, gain=0.0)


def test_the_noise_of_a_pilot_is_the_noise_it_was_drawn_with():
    rng = np.random.default_rng(5)
    solve = rng.uniform(0.2, 0.6, size=4000)
    own = 0.1 * rng.choice([-1.0, 1.0], size=4000)
    before = {str(t): list(rng.binomial(1, p, size=8).astype(float)) for t, p in enumerate(solve)}
    after = {str(t): list(rng.binomial(1, p, size=8).astype(float)) for t, p in enumerate(solve + own)}
    noise = noise_of(before, after)
    assert noise.between == pytest.approx(0.01, abs=0.004)
    assert noise.within == pytest.approx(np.mean(solve * (1 - solve) + (solve + own) * (1 - solve - own)), abs=0.01)
