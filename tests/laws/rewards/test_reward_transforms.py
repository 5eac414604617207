"""The papers' reward transforms: golden values, knots at equality, and the order of Llama 2's steps."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.rewards.errors import RewardError
from rollbook.rewards.magistral import length_penalty
from rollbook.rewards.transforms import (
    AgentWorldReward,
    DapoOverlong,
    KimiK15Length,
    Llama2Reward,
    ParlBlogReward,
    ParlReward,
    Qwen25MathShaping,
    Stage,
    Toggle,
    critical_steps,
    merged,
    moments,
    toggle_budgets,
    whitened,
)

ROOT = Path(__file__).parents[3]
FEW = settings(max_examples=50, deadline=None)
PROBABILITIES = st.lists(st.floats(0.001, 0.999), min_size=2, max_size=12)
NUMBERS = st.lists(st.floats(-50, 50), min_size=2, max_size=12)
LLAMA = Llama2Reward(clamp=1e-6, ddof=0)


@pytest.mark.parametrize(("safe", "tagged", "chosen"), [
    (0.14, False, "safe"), (0.15, False, "helpful"), (0.16, False, "helpful"), (0.15 - 1e-12, False, "safe"),
    (0.14, True, "safe"), (0.15, True, "safe"), (0.9, True, "safe"), (0.0, False, "safe"), (1.0, False, "helpful"),
])
def test_llama2s_gate_is_strict_at_its_threshold_and_a_tag_overrides_it(safe, tagged, chosen):
    assert LLAMA.gate([safe], [0.6], [tagged]) == (safe if chosen == "safe" else 0.6,)


def test_llama2s_reward_on_a_case_worked_by_hand():
    """s = .1 (gated), .8, .5, .3 (tagged); z = ln(1/9), ln 4, 0, ln(3/7); one mean and one deviation for both branches."""
    z = [math.log(1 / 9), math.log(4), 0.0, math.log(3 / 7)]
    mean = sum(z) / 4
    std = math.sqrt(sum((x - mean) ** 2 for x in z) / 3)
    found = Llama2Reward(clamp=0.0, ddof=1)([0.1, 0.4, 0.9, 0.3], [0.9, 0.8, 0.5, 0.99], [False, False, False, True])
    assert found == pytest.approx([(x - mean) / std for x in z], abs=1e-12)


@given(score_S=PROBABILITIES, ddof=st.sampled_from([0, 1]))
@FEW
def test_whitened_rewards_have_mean_zero_and_deviation_one_over_the_global_batch(score_S, ddof):
    reward_S = Llama2Reward(clamp=1e-6, ddof=ddof)(score_S, score_S, [i % 2 == 0 for i in range(len(score_S))])
    if max(score_S) - min(score_S) < 1e-6:
        return
    assert sum(reward_S) / len(reward_S) == pytest.approx(0, abs=1e-6)
    assert sum(reward ** 2 for reward in reward_S) / (len(reward_S) - ddof) == pytest.approx(1, abs=1e-6)


@given(score_S=PROBABILITIES)
@FEW
def test_the_whitened_reward_is_increasing_in_the_score(score_S):
    reward_S = LLAMA(score_S, score_S, [True] * len(score_S))
    ordered = sorted(zip(score_S, reward_S, strict=True))
    assert all(low[1] <= high[1] for low, high in pairwise(ordered))


@given(logit_S=NUMBERS, scale=st.floats(0.1, 10), shift=st.floats(-5, 5))
@FEW
def test_scaling_or_shifting_logits_leaves_whitened_rewards_alone(logit_S, scale, shift):
    if max(logit_S) - min(logit_S) < 1e-3:
        return
    moved_S = [scale * logit + shift for logit in logit_S]
    assert whitened(moved_S, moments(moved_S), ddof=0) == pytest.approx(whitened(logit_S, moments(logit_S), ddof=0), abs=1e-8)


@given(score_S=PROBABILITIES, cut=st.integers(0, 12))
@FEW
def test_ranks_that_merge_their_moments_whiten_as_one(score_S, cut):
    logit_S = LLAMA.logits(score_S)
    shards = (logit_S[:cut], logit_S[cut:])
    over = merged(moments(shard) for shard in shards)
    sharded_S = [reward for shard in shards for reward in whitened(shard, over, ddof=0)]
    if max(score_S) - min(score_S) > 1e-6:
        assert sharded_S == pytest.approx(LLAMA(score_S, score_S, [True] * len(score_S)), abs=1e-8)


def test_whitening_each_gate_branch_alone_would_give_other_rewards():
    safe_S, helpful_S, tag_S = [0.05, 0.1, 0.9, 0.9], [0.5, 0.5, 0.6, 0.95], [True, True, False, False]
    together_S = LLAMA(safe_S, helpful_S, tag_S)
    apart_S = [*LLAMA(safe_S[:2], helpful_S[:2], tag_S[:2]), *LLAMA(safe_S[2:], helpful_S[2:], tag_S[2:])]
    assert max(together_S[:2]) < min(together_S[2:]) and apart_S[1] > apart_S[2]


@pytest.mark.parametrize("score", [0.15, 0.5, 1.0])
def test_a_batch_of_equal_scores_is_whitened_to_exactly_zero(score):
    assert LLAMA([score] * 3, [score] * 3, [False] * 3) == (0.0, 0.0, 0.0)
    assert merged([moments([0.1] * 3), moments([0.1] * 4)]).squared == 0.0
    assert LLAMA([], [], []) == ()


@pytest.mark.parametrize(("call", "words"), [
    (lambda: LLAMA([1.5], [0.5], [True]), "sigmoid"),
    (lambda: LLAMA([0.5], [math.nan], [True]), "0 .. 1"),
    (lambda: LLAMA([0.5, 0.5], [0.5], [True]), "safe 2, helpful 1, safety 1"),
    (lambda: Llama2Reward(clamp=0.0, ddof=0)([0.0, 1.0], [0.0, 1.0], [True, True]), "clamp"),
    (lambda: Llama2Reward(clamp=1e-6, ddof=1)([0.5], [0.5], [True]), "ddof"),
    (lambda: Llama2Reward(clamp=0.5, ddof=0), "clamp"),
])
def test_llama2_refuses_what_has_no_value(call, words):
    with pytest.raises(RewardError, match=re.escape(words)):
        call()


@given(right=st.floats(-1e6, 1e6), wrong=st.floats(-1e6, 1e6))
@FEW
def test_any_correct_answer_is_worth_at_least_any_wrong_one(right, wrong):
    best_wrong, worst_right = Qwen25MathShaping()([wrong, right], [False, True])
    assert -1 <= best_wrong <= 0 <= worst_right <= 1


def test_qwens_shaping_is_the_printed_one():
    found = Qwen25MathShaping()([0.0, 0.0, 2.0, -2.0], [True, False, True, False])
    assert found == pytest.approx([0.5, -0.5, 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1)) - 1])
    with pytest.raises(RewardError, match="finite"):
        Qwen25MathShaping()([math.inf], [True])


LENGTH = KimiK15Length(weight=1.0, start_step=0)


def test_kimis_length_reward_is_the_golden_one():
    found = LENGTH([100, 200, 300, 400], [True, False, True, False], ["p"] * 4, step=0)
    assert found == pytest.approx([0.5, 0.0, -1 / 6, -0.5])


def test_kimis_length_reward_compares_lengths_within_a_prompt_only():
    alone = LENGTH([100, 200], [True, True], ["a", "a"], step=0)
    mixed = LENGTH([100, 9000, 200, 9100], [True, True, True, True], ["a", "b", "a", "b"], step=0)
    assert (mixed[0], mixed[2]) == alone == (0.5, -0.5)


@given(length_S=st.lists(st.integers(0, 5000), min_size=1, max_size=8), data=st.data())
@FEW
def test_kimis_length_reward_lies_within_half_its_weight_and_never_rewards_a_wrong_answer(length_S, data):
    correct_S = data.draw(st.lists(st.booleans(), min_size=len(length_S), max_size=len(length_S)))
    found = KimiK15Length(weight=2.0, start_step=0)(length_S, correct_S, ["p"] * len(length_S), step=0)
    assert all(-1 <= bonus <= 1 for bonus in found)
    assert all(bonus <= 0 for bonus, correct in zip(found, correct_S, strict=True) if not correct)


def test_equal_lengths_a_single_response_and_the_initial_phase_get_no_length_reward():
    assert LENGTH([7, 7], [True, False], ["p", "p"], step=0) == (0.0, 0.0)
    assert LENGTH([7], [True], ["p"], step=0) == (0.0,)
    late = KimiK15Length(weight=1.0, start_step=3)
    assert late([1, 2], [True, True], ["p", "p"], step=2) == (0.0, 0.0)
    assert late([1, 2], [True, True], ["p", "p"], step=3) == (0.5, -0.5)


def test_budgets_are_percentiles_of_correct_lengths_per_prompt():
    length_S, correct_S = [10, 20, 30, 40, 1, 500], [True, True, True, True, False, False]
    prompt_S = ["a", "a", "a", "a", "a", "b"]
    budgets = {kind: toggle_budgets(length_S, correct_S, prompt_S, percentile=50, interpolation=kind)
               for kind in ("linear", "nearest_rank")}
    assert budgets == {"linear": {"a": 25.0}, "nearest_rank": {"a": 20.0}}
    ends = [toggle_budgets(length_S, correct_S, prompt_S, percentile=p, interpolation="linear")["a"] for p in (0, 100)]
    assert ends == [10.0, 40.0]


TOGGLE = Toggle(accuracy=0.5, period=2, first="budget")


@pytest.mark.parametrize(("correct_S", "lengths", "expected"), [
    ([True, False], [10, 11], (1.0, 0.0)),     # accuracy at the threshold is not below it; a length at the budget is within it
    ([True, True], [11, 10], (0.0, 1.0)),
    ([False, False], [11, 11], (1.0, 1.0)),    # below the threshold: length is free
])
def test_toggle_keeps_a_reward_below_the_accuracy_or_within_the_budget(correct_S, lengths, expected):
    assert TOGGLE([1.0, 1.0], correct_S, lengths, ["p", "p"], budgets={"p": 10.0}, iteration=0) == expected


def test_toggles_phases_take_turns_and_the_free_phase_changes_nothing():
    assert [TOGGLE.phase(i) for i in range(6)] == ["budget", "budget", "free", "free", "budget", "budget"]
    assert Toggle(accuracy=0.5, period=1, first="free").phase(0) == "free"
    assert TOGGLE([0.3], [True], [99], ["p"], budgets={"p": 10.0}, iteration=2) == (0.3,)
    assert TOGGLE([0.3], [True], [99], ["q"], budgets={"p": 10.0}, iteration=0) == (0.3,)


@pytest.mark.parametrize(("length", "penalty"), [(0, 0), (16000, 0), (16384, 0), (18432, -0.5), (20480, -1), (20481, -1),
                                                 (10**9, -1)])
def test_dapos_overlong_penalty_is_the_golden_table(length, penalty):
    assert DapoOverlong()(length) == penalty


def test_dapos_penalty_is_continuous_at_both_knots_and_magistrals_at_scale_one():
    penalty = DapoOverlong()
    for knot in (16384, 20480):
        assert abs(penalty(knot + 1) - penalty(knot)) <= 1 / 4096
    assert penalty(17000) == length_penalty(17000, length_max=20480, length_cache=4096, scale=1.0)
    with pytest.raises(RewardError, match="lengths >= 0"):
        penalty(-1)


def test_a_serial_episode_has_as_many_critical_steps_as_steps():
    assert critical_steps([Stage(main=1, subagents=(5,)), Stage(main=1, subagents=(3,)), Stage(main=2)]) == 12
    assert critical_steps([]) == 0


def test_splitting_balanced_work_divides_its_critical_steps_and_a_shorter_subagent_adds_none():
    assert critical_steps([Stage(main=0, subagents=(12,))]) == 3 * critical_steps([Stage(main=0, subagents=(4, 4, 4))])
    stages = [Stage(main=1, subagents=(4,)), Stage(main=1, subagents=(6,))]
    assert critical_steps(stages) == critical_steps([Stage(main=1, subagents=(4, 3)), stages[1]]) == 12


def test_parls_auxiliary_rewards_vanish_at_coefficient_zero():
    assert ParlReward(lambda_parallel=0.5, lambda_finish=0.25)(1.0, parallel=2.0, finish=0.5) == 2.125
    assert ParlReward(lambda_parallel=0.0, lambda_finish=0.0)(0.7, parallel=math.nan, finish=9.0) == 0.7
    assert ParlBlogReward(lambda_parallel=0.25)(parallel=2.0, success=True, quality=0.8) == pytest.approx(1.1)
    assert ParlBlogReward(lambda_parallel=0.0)(parallel=2.0, success=False, quality=0.8) == 0.0


def test_agentworlds_rubric_outweighs_its_rule_nine_to_one():
    reward = AgentWorldReward()
    assert reward([5, 5], rule_passed=True) == 25.0 and reward([1, 1], rule_passed=False) == 4.5
    assert reward([2, 4], rule_passed=True) == (9 * 15 + 25) / 10
    with pytest.raises(RewardError, match="rubric"):
        reward([], rule_passed=True)


NOT_MEASURED = pytest.mark.parametrize("bad", [math.nan, math.inf])


@NOT_MEASURED
@pytest.mark.parametrize("call", [
    lambda bad: whitened([bad, 1.0], moments([1.0, 2.0]), ddof=0),
    lambda bad: Toggle(accuracy=0.5, period=1, first="free")([bad], [True], [1], [0], budgets={}, iteration=0),
    lambda bad: Toggle(accuracy=0.5, period=1, first="budget")([bad], [True], [1], [0], budgets={}, iteration=0),
    lambda bad: ParlReward(lambda_parallel=0.0, lambda_finish=0.0)(bad, parallel=0.0, finish=0.0),
    lambda bad: ParlReward(lambda_parallel=0.5, lambda_finish=0.0)(1.0, parallel=bad, finish=0.0),
    lambda bad: KimiK15Length(weight=1.0, start_step=0)([bad, 1], [True, True], [0, 0], step=0),
    lambda bad: DapoOverlong()(bad),
    lambda bad: Qwen25MathShaping()([bad], [True]),
    lambda bad: Qwen25MathShaping(slope=bad),
    lambda bad: AgentWorldReward(rubric_weight=bad),
    lambda bad: AgentWorldReward(rule_weight=bad),
])
def test_what_was_not_measured_is_refused_by_every_transform(call, bad):
    with pytest.raises(RewardError):
        call(bad)


@pytest.mark.parametrize("call", [lambda: Qwen25MathShaping(slope=-0.5), lambda: DapoOverlong(length_cache=0),
                                  lambda: DapoOverlong(length_max=10)])
def test_a_transform_without_a_slope_is_refused_where_it_is_made(call):
    with pytest.raises(RewardError):
        call()


ENTRIES = re.findall(r"^\* .+: `(\w+)\.(\w+)\.(\w+)`;.*; `(test_\w+)`\.?$", (ROOT / "docs/papers.md").read_text(), flags=re.M)


def test_the_papers_page_lists_every_neighbour():
    assert len(ENTRIES) >= 12 and {package for package, *_ in ENTRIES} == {"rewards", "tasks", "models", "training"}


@pytest.mark.parametrize(("package", "module", "name", "test"), ENTRIES, ids=lambda word: word)
def test_a_neighbour_on_the_papers_page_exists_with_its_test(package, module, name, test):
    source = (ROOT / f"src/rollbook/{package}/{module}.py").read_text()
    assert re.search(rf"^(def|class) {name}\b", source, flags=re.M)
    assert any(f"def {test}(" in path.read_text() for path in (ROOT / f"tests/laws/{package}").glob("test_*.py"))
