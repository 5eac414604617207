"""Intervals cover, pairs cancel what they share, and no data is an error."""

import numpy as np
import pytest
from scipy import stats

from rollbook.evaluation.statistics import mcnemar, paired_bootstrap, wilson
from rollbook.records import RecordError


def test_the_wilson_interval_is_scipys():
    for successes, count in ((0, 10), (3, 10), (512, 512), (181, 512)):
        ours, theirs = wilson(successes, count), stats.binomtest(successes, count).proportion_ci(method="wilson")
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_no_observation_is_an_error_and_not_a_zero():
    for empty in (lambda: wilson(0, 0), lambda: paired_bootstrap([[]], seed=1)):
        with pytest.raises(RecordError, match="at least one"):
            empty()


def test_the_paired_interval_covers_a_true_difference_nominally():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        before = rng.random(150) < 0.4
        after = np.where(rng.random(150) < 0.15, ~before, before)
        true = 0.15 * 0.6 - 0.15 * 0.4
        gain = paired_bootstrap([(after.astype(float) - before).tolist()], seed=2)
        hits += gain.low <= true <= gain.high
    assert 0.90 <= hits / 200 <= 0.99


def test_equal_outcomes_have_no_gain_and_no_p_value():
    gain = paired_bootstrap([[0.0] * 50], seed=1)
    assert (gain.estimate, gain.low, gain.high) == (0.0, 0.0, 0.0)
    assert mcnemar([1.0, 0.0], [1.0, 0.0]) is None


def test_mcnemar_is_the_exact_binomial_test_of_the_discordant_pairs():
    before, after = [0.0] * 9 + [1.0] * 3, [1.0] * 9 + [0.0] * 1 + [1.0] * 2
    assert mcnemar(before, after) == pytest.approx(stats.binomtest(9, 10, 0.5).pvalue)


def test_pooling_weights_every_pair_alike_and_resamples_within_each_run():
    pooled = paired_bootstrap([[1.0] * 30, [0.0] * 10], seed=3)
    assert pooled.estimate == 0.75 and pooled.low == pooled.high == 0.75
