"""The papers' reward transforms refuse settings that are no numbers, labels that are neither, and scores that were not given."""

from __future__ import annotations

import math

import pytest

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
    moments,
    toggle_budgets,
    whitened,
)

NAN, INF = math.nan, math.inf
TOGGLE = {"accuracy": 0.5, "period": 2, "first": "budget"}
SETTINGS = {
    "Llama2Reward.clamp": lambda x: Llama2Reward(clamp=x, ddof=0),
    "Llama2Reward.threshold": lambda x: Llama2Reward(threshold=x, clamp=0.0, ddof=0),
    "Llama2Reward.ddof": lambda x: Llama2Reward(clamp=0.0, ddof=x),
    "whitened's ddof": lambda x: whitened([1.0, 2.0], moments([1.0, 2.0]), ddof=x),
    "Qwen25MathShaping.slope": lambda x: Qwen25MathShaping(slope=x),
    "KimiK15Length.weight": lambda x: KimiK15Length(weight=x, start_step=0),
    "KimiK15Length.start_step": lambda x: KimiK15Length(weight=1.0, start_step=x),
    "a step": lambda x: KimiK15Length(weight=1.0, start_step=0)([1, 2], [True, False], [0, 0], step=x),
    "Toggle.accuracy": lambda x: Toggle(**TOGGLE | {"accuracy": x}),
    "Toggle.period": lambda x: Toggle(**TOGGLE | {"period": x}),
    "an iteration": lambda x: Toggle(**TOGGLE).phase(x),
    "a percentile": lambda x: toggle_budgets([1], [True], [0], percentile=x, interpolation="linear"),
    "DapoOverlong.length_max": lambda x: DapoOverlong(length_max=x),
    "DapoOverlong.length_cache": lambda x: DapoOverlong(length_cache=x),
    "a length": lambda x: DapoOverlong()(x),
    "a penalty's scale": lambda x: length_penalty(5, length_max=10, length_cache=5, scale=x),
    "a penalised length": lambda x: length_penalty(x, length_max=10, length_cache=5, scale=0.1),
    "Stage.main": lambda x: Stage(main=x),
    "Stage.subagents": lambda x: Stage(main=1, subagents=(x,)),
    "ParlReward.lambda_parallel": lambda x: ParlReward(lambda_parallel=x, lambda_finish=0.0),
    "ParlReward.lambda_finish": lambda x: ParlReward(lambda_parallel=0.0, lambda_finish=x),
    "a performance": lambda x: ParlReward(lambda_parallel=0.0, lambda_finish=0.0)(x, parallel=0.0, finish=0.0),
    "ParlBlogReward.lambda_parallel": lambda x: ParlBlogReward(lambda_parallel=x),
    "a quality": lambda x: ParlBlogReward(lambda_parallel=0.5)(parallel=0.0, success=True, quality=x),
    "AgentWorldReward.rubric_weight": lambda x: AgentWorldReward(rubric_weight=x),
    "AgentWorldReward.rule_weight": lambda x: AgentWorldReward(rule_weight=x),
    "a rubric score": lambda x: AgentWorldReward()([x], rule_passed=True),
    "a reward to be gated by its probability": lambda x: Llama2Reward(clamp=0.1, ddof=0)([x, 0.5], [0.5, 0.5], [False, False]),
    "a score to be shaped": lambda x: Qwen25MathShaping()([x], [True]),
}
LABELS = {
    "Llama2Reward": lambda x: Llama2Reward(clamp=0.1, ddof=0)([0.2, 0.5], [0.5, 0.6], [x, False]),
    "Qwen25MathShaping": lambda x: Qwen25MathShaping()([1.0], [x]),
    "KimiK15Length": lambda x: KimiK15Length(weight=1.0, start_step=0)([1, 2], [x, False], [0, 0], step=0),
    "toggle_budgets": lambda x: toggle_budgets([1, 2], [x, True], [0, 0], percentile=50, interpolation="linear"),
    "Toggle": lambda x: Toggle(**TOGGLE)([1.0, 1.0], [x, True], [1, 2], [0, 0], budgets={}, iteration=0),
    "ParlBlogReward": lambda x: ParlBlogReward(lambda_parallel=0.5)(parallel=0.0, success=x, quality=1.0),
    "AgentWorldReward": lambda x: AgentWorldReward()([3.0], rule_passed=x),
}


@pytest.mark.parametrize("bad", [NAN, INF, -INF, None, "1", True, [1.0]], ids=repr)
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_no_finite_number_is_refused_where_a_number_is_meant(name: str, bad: object) -> None:
    with pytest.raises(RewardError):
        SETTINGS[name](bad)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_places_take_a_number(name: str) -> None:
    taken = {"Llama2Reward.clamp": 0, "DapoOverlong.length_max": 5000}
    assert SETTINGS[name](taken.get(name, 1)) is not None


@pytest.mark.parametrize("bad", [NAN, None, "wrong", 1, 0.0], ids=repr)
@pytest.mark.parametrize("name", LABELS)
def test_an_unverified_response_is_neither_right_nor_wrong(name: str, bad: object) -> None:
    """NaN and text count as true in Python: an answer nobody checked would be paid as right."""
    with pytest.raises(RewardError, match="must be True or False"):
        LABELS[name](bad)
    assert LABELS[name](True) is not None
