"""The audit's own arithmetic of stages 9 to 11: attempts, advantages, schedule, what a recipe implies."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.audit.admitted import Group
from rollbook.audit.advantages import AXES, advantages
from rollbook.audit.attempts import Distribution, Issued, compared, latency_class, parse
from rollbook.audit.estimator import differences, expected_terms, rate, whole
from rollbook.experience.token_credit import BASELINE, NORMALIZED
from rollbook.objectives.credit import (
    GroupCentered,
    GroupNormalized,
    LeaveOneOut,
    Measured,
    MinibatchStandardized,
    assign_credit,
)
from rollbook.objectives.settings import to_settings
from rollbook.records import Dispatch
from rollbook.records.recipe import OptimizerSettings
from rollbook.training import optimizer

RULES = (GroupCentered(), LeaveOneOut(), GroupNormalized(eps=1e-6, ddof=1), GroupNormalized(eps=1e-4, ddof=0),
         MinibatchStandardized(eps=1e-6, ddof=0), MinibatchStandardized(eps=1e-3, ddof=1))


@settings(max_examples=60, deadline=None)
@given(rule=st.sampled_from(RULES), rewards=st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.95, 1.0, -0.3]), min_size=2,
                                                              max_size=5),
                                                    min_size=1, max_size=6), cut=st.integers(0, 6))
def test_advantages_computed_again_are_those_that_credit_gives(rule, rewards, cut):
    reward = [value for group in rewards for value in group]
    group = [place for place, members in enumerate(rewards) for _ in members]
    part = [int(place >= cut) for place in group]
    given = assign_credit(rule, Measured(
        reward_S=torch.tensor(reward, dtype=torch.float64), group_S=torch.tensor(group), minibatch_S=torch.tensor(part),
        seq_T=torch.arange(len(reward))))
    found = advantages(to_settings(rule), np.array(reward), np.array(group), np.array(part))
    assert np.allclose(found, given.advantage_S.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("reward", [[0.1, 0.4, 0.7, 1.0], [100.1, 100.4, 100.7, 101.0], [0.3, 0.1 + 0.2, 0.0, 1.0],
                                    [0.0, 1e-300, 1.0, 1.0]])
@pytest.mark.parametrize("part", [[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1]])
def test_the_audit_too_divides_no_rounding_noise_by_itself(rule, reward, part):
    given = assign_credit(rule, Measured(
        reward_S=torch.tensor(reward, dtype=torch.float64), group_S=torch.tensor([0, 0, 1, 1]), minibatch_S=torch.tensor(part),
        seq_T=torch.arange(4)))
    found = advantages(to_settings(rule), np.array(reward), np.array([0, 0, 1, 1]), np.array(part))
    assert np.allclose(found, given.advantage_T.numpy(), rtol=1e-9, atol=1e-12) and np.abs(found).max() < 100


def test_a_rule_that_needs_more_than_rewards_is_not_guessed():
    one = (np.array([1.0, 0.0]), np.array([0, 0]), np.array([0, 0]))
    assert advantages({"kind": "Gae", "gamma": 1.0}, *one) is None
    assert advantages({"kind": "LeaveOneOut", "kl_beta": 0.1}, *one) is None


def test_the_producer_and_the_audit_name_the_same_axes():
    named = {rule.__name__: (BASELINE[rule], NORMALIZED.get(rule, "nothing")) for rule in BASELINE}
    assert {name: named[name] for name in AXES} == AXES


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_schedule_computed_again_is_the_learners(schedule):
    given = OptimizerSettings(learning_rate=3e-4, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0, warmup_steps=4,
                              schedule=schedule, max_grad_norm=1.0)
    for step in range(1, 25):
        assert rate(given, step, 20) == pytest.approx(optimizer.rate(given, step, 20), rel=1e-12, abs=1e-18)


def test_names_of_attempts_are_read_back():
    dispatch = Dispatch(scope="rl/000001/0", tasks=("Task:a", "Task:b"), samples=2, envelope="e")
    assert [(at.scope, at.place, at.task, at.sample) for name, _ in dispatch.attempts() if (at := parse(name))] == [
        ("rl/000001/0", 0, "Task:a", 0), ("rl/000001/0", 0, "Task:a", 1),
        ("rl/000001/0", 1, "Task:b", 0), ("rl/000001/0", 1, "Task:b", 1)]
    for name in ("Task:a/0", "rl/0/Task:a/x", "rl/-1/Task:a/0", "rl/00/Task:a/0"):
        assert parse(name) is None


def test_an_attempt_ends_once_and_only_if_it_was_issued():
    issued = Issued("Dispatch:1", Dispatch(scope="s", tasks=("a", "b"), samples=2, envelope="e"), ("x", "y"), 1)
    assert issued.end(parse("s/1/b/0")) is None
    assert "more than one" in issued.end(parse("s/1/b/0"))
    for other in ("s/0/b/0", "s/2/a/0", "s/0/a/2"):
        assert "never issued" in issued.end(parse(other))
    assert (issued.missing, dict(issued.issued()), dict(issued.flying())) == (3, {"x": 2, "y": 2}, {"x": 2, "y": 1})


@pytest.mark.parametrize(("code", "scored", "low", "high", "true"), [
    ("uniform", 4, 0.1, 0.1, True), ("uniform", 4, 0.0, 0.1, False), ("accepted", 4, 0.0, 0.1, True),
    ("accepted", 4, 0.1, 0.1, False), ("group_incomplete", 1, 0.1, 0.1, True), ("group_incomplete", 2, 0.0, 0.1, False)])
def test_the_code_of_a_group_is_held_against_its_rewards(code, scored, low, high, true):
    assert (Group("t", "trace", {code}, scored, low, high).untrue() is None) is true


def test_a_group_has_one_code():
    assert "accepted and uniform" in Group("t", "trace", {"accepted", "uniform"}, 4, 0.0, 1.0).untrue()


def test_the_trained_distribution_is_shown_beside_the_issued_one():
    issued, trained = Distribution(), Distribution()
    for length in range(1, 9):
        issued.add("even" if length % 2 == 0 else "odd", length, latency_class({"latency_s": length / 10}))
        if length > 4:
            trained.add("even" if length % 2 == 0 else "odd", length, None)
    text = compared(issued, trained)
    assert "trained 4 of 8 issued (50%)" in text and "even 2/4, odd 2/4" in text
    assert "length, short to long, 0/2, 0/2, 2/2, 2/2" in text
    assert compared(Distribution(), Distribution()) == ""


def test_an_objective_differs_by_the_fields_that_differ():
    recipe = whole({"kind": "Magistral", "low": 0.2, "high": 0.3, "ratio_to": "anchor", "credit": {"kind": "GroupCentered"}})
    assert recipe["aggregate"] == "group_token_mean"       # the printed value is filled in
    assert differences(recipe, recipe) == []
    other = {**recipe, "high": 0.4, "credit": {"kind": "LeaveOneOut", "kl_beta": None}}
    assert sorted(text.split()[0] for text in differences(other, recipe)) == ["credit.kind", "credit.kl_beta", "high"]


def test_terms_follow_from_the_objective():
    grpo = {"kind": "Grpo", "low": 0.2, "high": 0.2, "beta": 0.04, "aggregate": "sequence_mean",
            "credit": {"kind": "GroupCentered"}}
    assert [(t.spec.name, t.spec.coefficient, t.spec.aggregate, t.spec.population) for t in expected_terms(grpo)] == [
        ("policy", 1.0, "sequence_mean", "actions"), ("kl", 0.04, "sequence_mean", "actions")]
    assert len(expected_terms({**grpo, "beta": 0.0})) == 1
