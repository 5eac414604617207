"""What was not measured, or does not line up with what was, is refused by name; what was dropped reaches nothing."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import pytest
import torch
from objective_cases import F64, INSTANCES, TEACHERS, build
from refusals import ids, refused, vector

import rollbook.objectives as ro
from rollbook.objectives import ActionTokens, Term, credit, distill, preference, select, sequence_weight, value
from rollbook.objectives import correction as off
from rollbook.objectives.credit import Measured, assign_credit
from rollbook.objectives.terms import AdaptiveEntropy, KlTerm, PositiveNll

NAN, INF = math.nan, math.inf


# Rewards

RULES = [
    credit.GroupCentered(),
    credit.GroupNormalized(eps=1e-6, ddof=1),
    credit.LeaveOneOut(),
    credit.LeaveOneOut(kl_beta=0.1),
    credit.MinibatchStandardized(eps=1e-6, ddof=1),
    credit.BatchNormalized(kl_beta=None, baseline="none", weighting="token", gamma=1.0, eps=1e-6, ddof=0),
    credit.BatchNormalized(kl_beta=0.1, baseline="group_mean", weighting="sequence", gamma=1.0, eps=1e-6, ddof=0),
    credit.Gae(gamma=0.9, lam_policy=0.9, lam_critic=1.0),
    credit.LengthAdaptiveGae(gamma=0.9, alpha=1.5, floor=None, counts="action_tokens", lam_critic=1.0),
    credit.StepGroups(gamma=0.9, omega=1.0, normalizer="one"),
    credit.ImplicitProcess(beta=0.05, gamma=0.9),
    credit.ImplicitProcessCode(beta=0.05, process_coefficient=5.0, outcome_coefficient=5.0, eps=1e-6),
]


def measured(last: float, **changes: object) -> Measured:
    """Six sequences in two groups; the last one's reward is `last`."""
    fields = {
        "reward_S": vector(1, 0, 0.5, 1, 0.25, last),
        "group_S": ids(0, 0, 0, 1, 1, 1),
        "seq_T": ids(0, 0, 1, 2, 3, 4, 5, 5),
        "kl_T": vector(0.1, -0.1, 0.2, 0, 0.3, 0.1, 0.2, 0.4),
        "value_T": vector(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
        "log_ratio_T": vector(1, 2, 3, 4, 5, 6, 7, 8),
        "length_S": ids(2, 1, 1, 1, 1, 2),
        "step_reward_K": vector(1, 0, 0.5, 1, 0.25, last),
        "step_state_K": ids(0, 0, 1, 1, 1, 1),
        "step_seq_K": ids(0, 1, 2, 3, 4, 5),
        "step_T": ids(0, 0, 1, 2, 3, 4, 5, 5),
    }
    return Measured(**{**fields, **changes})


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_kept_reward_that_is_not_finite_is_refused_where_credit_is_computed(rule, bad: float) -> None:
    refused(lambda: assign_credit(rule, measured(bad)), "reward_S must be finite")
    keep_S = ids(0, 1, 1, 1, 1, 1) > 0
    refused(lambda: assign_credit(rule, measured(bad, keep_S=keep_S)), "at position 5")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_dropped_sequence_may_have_no_reward_and_reaches_no_other(rule) -> None:
    keep_S = ids(1, 1, 1, 1, 1, 0) > 0
    found = assign_credit(rule, measured(NAN, keep_S=keep_S))
    expected = assign_credit(rule, measured(0.75, keep_S=keep_S))
    assert torch.equal(found.advantage_T, expected.advantage_T) and torch.equal(found.signal_S, expected.signal_S)
    assert bool((found.advantage_T[-2:] == 0).all()) and bool(found.advantage_T.isfinite().all())


def test_a_rule_that_reads_no_reward_does_not_ask_for_one() -> None:
    assert not bool(assign_credit(credit.FromTeacher(), measured(NAN)).advantage_T.any())


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize(
    "call",
    [
        lambda r: credit.group_centered(r, ids(0, 0)),
        lambda r: credit.group_normalized(r, ids(0, 0), eps=1e-6, ddof=1),
        lambda r: credit.leave_one_out(r, ids(0, 0)),
        lambda r: credit.has_signal(r, ids(0, 0)),
        lambda r: credit.minibatch_standardized(r, eps=0.0, ddof=0, keep_S=None),
        lambda r: credit.batch_normalized(r, eps=0.0, ddof=0),
        lambda r: credit.token_rewards(r, None, ids(0, 1), beta=None),
        lambda r: credit.gae(r, vector(0, 0), ids(0, 1), gamma=1.0, lam=1.0),
        lambda r: credit.step_returns(r, ids(0, 0), gamma=1.0),
        lambda r: credit.step_groups(r, ids(0, 0), ids(0, 0), normalizer="one"),
        lambda r: credit.process_rewards(r, ids(0, 0), ids(0, 1), ids(0, 0), ids(0), eps=0.0, ddof=0),
    ],
)
def test_no_credit_function_averages_what_was_not_scored(call, bad: float) -> None:
    refused(lambda: call(vector(1.0, bad)), "must be finite")


def test_eps_is_added_to_the_std() -> None:
    """Rewards 1 and 0: centred +-0.5, std 0.5; 0.5 / (0.5 + 0.5)."""
    half = [0.5, -0.5]
    assert credit.group_normalized(vector(1, 0), ids(0, 0), eps=0.5, ddof=0).tolist() == half
    assert credit.batch_normalized(vector(1, 0), eps=0.5, ddof=0).tolist() == half
    assert credit.minibatch_standardized(vector(0.5, -0.5), eps=0.5, ddof=0, keep_S=None).tolist() == half


# Lengths and types

RESPONSES = {"correct_S": ids(1, 0) > 0, "calls_S": ids(2, 0), "errors_S": ids(1, 0), "tags_S": ids(1, 1), "turns_S": ids(3, 1)}


@pytest.mark.parametrize(
    "call",
    [
        *(
            lambda name=name: measured(0.0, **{name: getattr(measured(0.0), name)[:1]})
            for name in (*"reward_S group_S length_S kl_T value_T log_ratio_T step_T step_state_K step_seq_K".split(),)
        ),
        lambda: measured(0.0, minibatch_S=ids(0)),
        lambda: measured(0.0, bootstrap_S=vector(0)),
        lambda: measured(0.0, keep_S=ids(1, 1, 1, 1, 1, 1)),
        lambda: measured(0.0, seq_T=ids(0, 0, 1, 2, 3, 4, 6, 6)),
        lambda: measured(0.0, seq_T=ids(0, 0, 1, 2, 3, 4, 0, 0)),
        lambda: measured(0.0, step_T=ids(0, 0, 1, 2, 3, 4, 6, 6)),
        lambda: measured(0.0, step_seq_K=ids(0, 1, 2, 3, 4, 6)),
        lambda: credit.batch_normalized(ids(1, 0), eps=0.0, ddof=0),
        lambda: credit.minibatch_standardized(ids(1, 0), eps=0.0, ddof=0, keep_S=None),
        lambda: credit.batch_normalized(vector(1, 0), eps=0.0, ddof=0, keep=ids(1, 1)),
        lambda: credit.token_rewards(ids(1, 0), None, ids(0, 1), beta=None),
        lambda: credit.group_centered(vector(1, 0), ids(0, 0), keep_S=[True, True]),
        lambda: credit.step_groups(vector(1, 0), ids(0), ids(0, 0), normalizer="one"),
        lambda: credit.step_groups(vector(1, 0), ids(0, 0), ids(0, 0), normalizer="none", eps=0.0, ddof=0),
        lambda: credit.process_rewards(vector(1, 0), ids(0), ids(0, 1), ids(0, 0), ids(0), eps=0.0, ddof=0),
        lambda: credit.process_rewards(vector(1, 0), ids(0, 0), ids(0, -1), ids(0, 0), ids(0), eps=0.0, ddof=0),
        lambda: credit.process_rewards(vector(1, 0), ids(0, 0), ids(0, 2), ids(0, 0), ids(0), eps=0.0, ddof=0),
        lambda: credit.process_rewards(vector(1, 0), ids(0, 1), ids(0, 1), ids(0, 1), ids(0), eps=0.0, ddof=0),
        lambda: credit.segment_discount(vector(1), ids(0, 1), ids(1, 1), ids(0, 0), ids(0, 1), gamma=0.9, lam=0.9),
        lambda: credit.segment_discount(vector(1, 1), ids(0, 1), ids(1, 1), ids(0), ids(0, 1), gamma=0.9, lam=0.9),
        lambda: credit.segment_discount(vector(1, 1), ids(0, 1), ids(2), ids(0), ids(0), gamma=0.9, lam=0.9),
        lambda: credit.length_adaptive_lambda(ids(5, -1), alpha=0.05, floor=None),
        lambda: credit.length_adaptive_lambda(ids(5), alpha=0.05, floor=NAN),
        lambda: credit.length_adaptive_lambda(ids(5), alpha=0.05, floor=1.5),
        lambda: preference.margin(vector(1, 2), vector(0, 0), vector(1)),
        lambda: preference.margin(vector(1, 2), vector(0, 0), 1.0),
        lambda: preference.ranked(vector(1), ids(0, 1)),
        lambda: preference.ranked(torch.ones(2, 2), torch.tensor([[0, 1], [1, 0]])),
        lambda: preference.listwise(torch.ones(1, 2), torch.tensor([[True, False]])),
        lambda: preference.option_label(vector(1, 2), vector(1)),
        lambda: preference.clamp_reasoned_label(vector(0.5), low=0.6, high=0.4),
        lambda: distill.sampled_token_advantage(vector(1, 2), vector(1), coefficient=1.0),
        lambda: distill.full_kl([[1.0]], [[1.0]], direction="reverse"),
        lambda: select.informative(ids(1, 0) > 0, ids(0, 0, 0)),
        lambda: select.informative([True, False], ids(0, 0)),
        lambda: select.best_of(vector(1, 2), ids(0, 0, 1)),
        lambda: select.variance_priority(vector(0.5, 1.5)),
        lambda: select.failure_priority(vector(NAN)),
        lambda: select.Rollouts(**{**RESPONSES, "correct_S": ids(1, 0)}),
        lambda: select.Rollouts(**{**RESPONSES, "calls_S": ids(2)}),
        lambda: select.Rollouts(**{**RESPONSES, "errors_S": ids(3, 0)}),
        lambda: select.Rollouts(**{**RESPONSES, "tags_S": ids(-1, 0)}),
        lambda: sequence_weight("token_mean", ids(1, 2), None, keep_S=[True, False], count_dropped=True),
        lambda: sequence_weight("token_mean", ids(1, 2), None, keep_S=ids(1, 0) > 0, count_dropped="no"),
        lambda: sequence_weight("group_token_mean", ids(1, 2), [0, 1]),
        lambda: sequence_weight("group_token_mean", ids(1, 2), vector(NAN, NAN)),
        lambda: sequence_weight("token_mean", ids(1, 0) > 0, None),
        lambda: sequence_weight("fixed_length", ids(1, 2), None, max_length=True),
        lambda: ActionTokens(logp_T=vector(-1), seq_T=ids(0), length_S=torch.tensor([[1]])),
        lambda: value.squared_value_loss(vector(1), vector(0), factor=0.0),
        lambda: value.clipped_value_loss(vector(1), vector(0), vector(0), clip=0.2, factor=-0.5),
        lambda: AdaptiveEntropy(step=0.1, maximum=None).advance(0.1, NAN),
        lambda: AdaptiveEntropy(step=0.1, maximum=None).coefficient(0.1, NAN),
        lambda: AdaptiveEntropy(target=NAN, step=0.1, maximum=None),
        lambda: ro.Ppo(dual="3"),
        lambda: ro.DecoupledPpo(weight_rule="cap", weight_cap=0.0),
        lambda: ro.DecoupledPpo(weight_rule="mask", weight_cap=NAN),
        *(
            lambda bad=bad: ro.KimiK25(
                tau=0.1, bound_on="log_ratio", log_low=bad, log_high=0.2, tau_mask="all", ratio_to="anchor"
            )
            for bad in (NAN, 0.1, "-0.2")
        ),
    ],
)
def test_what_does_not_line_up_is_refused(call) -> None:
    refused(call)


@pytest.mark.parametrize("name", INSTANCES)
def test_every_objective_refuses_a_credit_and_an_aggregate_of_another_kind(name: str) -> None:
    objective = INSTANCES[name]
    if isinstance(objective, (ro.Corrected, ro.WithEntropy, ro.ControlledEntropy)):
        return
    refused(lambda: replace(objective, credit="GroupCentered"), "credit must be a credit rule")
    refused(lambda: replace(objective, aggregate="mean"), "aggregate must be one of")


COEFFICIENTS = {"tau", "tau_positive", "tau_negative", "beta", "mu", "alpha", "coefficient", "ptx_coefficient"}


HELD = [
    (name, field.name)
    for name, objective in INSTANCES.items()
    for field in dataclasses.fields(objective)
    if field.name in COEFFICIENTS and not name.startswith("Glm5")  # GLM-5's beta is a bound
]


@pytest.mark.parametrize(("name", "field"), HELD)
def test_an_infinite_coefficient_is_refused(name: str, field: str) -> None:
    refused(lambda: replace(INSTANCES[name], **{field: INF}), f"{field} must be finite")


def test_an_infinite_limit_is_no_limit() -> None:
    refused(lambda: KlTerm(estimator="k2", coefficient=INF, aggregate="token_mean"), "finite")
    assert off.token_tis(vector(5), vector(0), cap=INF).tolist() == [math.exp(5)]
    assert value.clipped_value_loss(vector(3), vector(0), vector(1), clip=INF, factor=0.5).tolist() == [2.0]
    assert ro.DecoupledPpo(weight_rule="mask", weight_cap=INF).weight(vector(1), vector(0)).tolist() == [math.e]
    assert ro.DeepSeekV32(low=0.2, high=0.2, delta=INF, beta=0.0).delta == INF
    assert AdaptiveEntropy(step=0.1, maximum=INF).advance(0.1, 0.0) == pytest.approx(0.2)


# Terms and teachers


def test_a_token_of_weight_zero_is_no_part_of_the_loss_whatever_it_holds() -> None:
    """An impossible token of a wrong answer: the positive NLL does not read it."""
    logp_T = vector(-1.0, -INF).requires_grad_()
    tokens = ActionTokens(logp_T=logp_T, seq_T=ids(0, 1), length_S=ids(1, 1))
    loss = PositiveNll(coefficient=0.5).term(tokens).reduce(vector(1.0, 0.0))
    (gradient_T,) = torch.autograd.grad(loss, logp_T)
    assert float(loss.detach()) == 0.5 and gradient_T.tolist() == [-0.5, 0.0]
    assert float(Term("policy", vector(2.0, NAN), 1.0, "token_mean", "actions").reduce(vector(0.5, 0.0))) == 1.0
    assert math.isnan(Term("policy", vector(2.0, NAN), 1.0, "token_mean", "actions").reduce(vector(0.5, 0.5)))


@pytest.mark.parametrize("name", TEACHERS)
def test_a_teacher_that_left_the_sampled_token_out_of_its_top_k_is_refused(name: str) -> None:
    tokens = build([2], [0], torch.Generator().manual_seed(0), drift=0.1).tokens
    refused(lambda: INSTANCES[name](replace(tokens, teacher_T=vector(-1.0, -INF))), "needs a finite teacher_T")


def test_an_infinite_kl_is_refused_and_a_bounded_divergence_is_not() -> None:
    whole_TV, part_TV = torch.zeros(1, 3, dtype=F64), torch.tensor([[0.0, 0.0, -INF]], dtype=F64)
    refused(lambda: distill.full_kl(whole_TV, part_TV, direction="reverse"), "infinite KL at position 0")
    refused(lambda: distill.full_kl(part_TV, whole_TV, direction="forward"), "infinite KL")
    assert float(distill.full_kl(part_TV, whole_TV, direction="reverse")) == pytest.approx(math.log(1.5))
    assert float(distill.full_kl(whole_TV, part_TV, direction="forward")) == pytest.approx(math.log(1.5))
    assert math.isfinite(distill.generalized_jsd(whole_TV, part_TV, beta=0.5))


def test_soft_targets_carry_no_gradient() -> None:
    target_TV = torch.tensor([[0.25, 0.75]], dtype=F64, requires_grad=True)
    student_TV = torch.tensor([[0.1, 0.2]], dtype=F64, requires_grad=True)
    loss = distill.soft_target(student_TV, target_TV).sum()
    assert torch.autograd.grad(loss, target_TV, allow_unused=True) == (None,)
