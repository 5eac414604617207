import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.rewards.ai_feedback import SparrowReward, both_orders, expected_score, sparrow_rerank
from rollbook.rewards.errors import RewardError

LOGP = st.floats(-20, 0)
RULES = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=23)


def test_a_rule_that_is_surely_violated_makes_the_rerank_score_zero():
    assert sparrow_rerank(5.0, 0.0, [1.0, 0.0, 0.9]) == 0.0


@given(st.floats(-30, 30), st.floats(0.001, 5), RULES)
def test_the_rerank_score_rises_with_the_preference(preference, step, rules):
    assert sparrow_rerank(preference + step, 0.0, rules) >= sparrow_rerank(preference, 0.0, rules)


def test_the_rerank_score_is_the_share_times_the_geometric_mean():
    assert sparrow_rerank(1.0, 1.0, [0.25, 1.0]) == pytest.approx(0.5 * 0.5)
    assert sparrow_rerank(-2000.0, 0.0, [1.0]) == 0.0


def test_sparrows_reward_is_the_printed_sum():
    reward = SparrowReward(length=0.01, invalid=1.0)
    assert reward(0.3, [0.9, 0.5], tokens=10, valid=True) == pytest.approx(0.3 + 0.7 - 0.1)
    assert reward(0.3, [0.9, 0.5], tokens=10, valid=False) == pytest.approx(0.3 + 0.7 - 0.1 - 1.0)


@given(LOGP, LOGP, st.floats(0, 0.49))
def test_averaging_over_both_orders_removes_a_label_position_bias_exactly(a, b, bias):
    better = 1 / (1 + math.exp(b - a)) * (1 - 2 * bias) + bias      # room for the bias on both sides
    first = (math.log(max(better + bias, 1e-300)), math.log(max(1 - better - bias, 1e-300)))
    second = (math.log(max(1 - better + bias, 1e-300)), math.log(max(better - bias, 1e-300)))
    assert both_orders(first, second) == pytest.approx(better, abs=1e-9)


@given(LOGP, LOGP, LOGP, LOGP)
def test_swapping_the_responses_gives_one_minus_the_label(a, b, c, d):
    assert both_orders((a, b), (c, d)) == pytest.approx(1 - both_orders((c, d), (a, b)))


def test_the_expected_score_lies_between_its_ends():
    sure = {score: (0.0 if score == 10 else -1e9) for score in range(1, 11)}
    assert expected_score(sure, low=-1.0, high=1.0) == pytest.approx(1.0)
    assert expected_score(dict.fromkeys(range(1, 11), -3.0), low=-1.0, high=1.0) == pytest.approx(0.0)
    assert expected_score({1: 0.0, 10: -1e9}, low=-1.0, high=1.0) == pytest.approx(-1.0)


@pytest.mark.parametrize("act", [
    lambda: sparrow_rerank(0.0, 0.0, []), lambda: sparrow_rerank(0.0, 0.0, [1.2]), lambda: sparrow_rerank(math.nan, 0.0, [1.0]),
    lambda: SparrowReward(length=0.0, invalid=0.0)(0.0, [], tokens=1, valid=True),
    lambda: expected_score({1: 0.0}, low=-1.0, high=1.0), lambda: expected_score({1: 0.0, 2: 0.0}, low=1.0, high=1.0),
    lambda: SparrowReward(length="0.1", invalid=1.0), lambda: SparrowReward(length=-0.1, invalid=1.0),
    lambda: SparrowReward(length=math.nan, invalid=1.0), lambda: SparrowReward(length=0.1, invalid=None),
    lambda: SparrowReward(length=0.1, invalid=1.0)("2", [1.0], tokens=1, valid=True),
    lambda: SparrowReward(length=0.1, invalid=1.0)(0.0, ["1"], tokens=1, valid=True),
    lambda: SparrowReward(length=0.1, invalid=1.0)(0.0, [1.0], tokens=1.5, valid=True),
    lambda: SparrowReward(length=0.1, invalid=1.0)(0.0, [1.0], tokens=1, valid=None),
    lambda: expected_score({1: 0.0, 2: "0"}, low=-1.0, high=1.0), lambda: expected_score({1: 0.0, 2: 0.0}, low="a", high=1.0),
    lambda: sparrow_rerank("x", 0.0, [1.0]), lambda: both_orders(("0", 0.0), (0.0, 0.0)),
    lambda: both_orders((math.nan, 0.0), (0.0, 0.0)), lambda: both_orders((-math.inf, -math.inf), (0.0, 0.0)),
])
def test_what_is_no_probability_is_refused(act):
    with pytest.raises(RewardError):
        act()
