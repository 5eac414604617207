"""Degenerate inputs: a defined result or a clear error, never NaN, never a number that only looks like one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace

import pytest
import torch
from objective_cases import F64, INSTANCES, aggregate_of, build
from refusals import flags, ids, refused, vector
from torch import Tensor

import rollbook.objectives as ro
from rollbook.objectives import ActionTokens, ObjectiveError, Term, Unstated, credit, preference, select, sequence_weight
from rollbook.objectives.core import Aggregate, all_reads, total_loss
from rollbook.objectives.credit import Measured, assign_credit
from rollbook.objectives.preference import Responses
from rollbook.objectives.ratios import dual_clipped_surrogate, interpolated_anchor
from rollbook.objectives.terms import AdaptiveEntropy, KlTerm, Ptx

NAN, INF = math.nan, math.inf
GROUP_RULES = {
    "GroupCentered": credit.GroupCentered(),
    "GroupNormalized": credit.GroupNormalized(eps=0.0, ddof=1),
    "LeaveOneOut": credit.LeaveOneOut(),
    "MinibatchStandardized": credit.MinibatchStandardized(eps=0.0, ddof=1),
    "BatchNormalized, tokens": credit.BatchNormalized(
        kl_beta=None, baseline="group_mean", weighting="token", gamma=1.0, eps=0.0, ddof=1
    ),
    "BatchNormalized, sequences": credit.BatchNormalized(
        kl_beta=None, baseline="none", weighting="sequence", gamma=1.0, eps=0.0, ddof=1
    ),
    "ImplicitProcess": credit.ImplicitProcess(beta=0.05, gamma=1.0),
    "ImplicitProcessCode": credit.ImplicitProcessCode(beta=0.05, process_coefficient=5, outcome_coefficient=5, eps=0.0),
    "LengthAdaptiveGae": credit.LengthAdaptiveGae(
        gamma=1.0, alpha=0.05, floor=None, counts="action_tokens", lam_critic=1.0
    ),
    "StepGroups": credit.StepGroups(gamma=0.9, omega=1.0, normalizer="std", eps=0.0, ddof=1),
}


def measured(reward: list[float], groups: list[int], lengths: list[int]) -> Measured:
    length_S = torch.tensor(lengths, dtype=torch.int64)
    seq_T = torch.repeat_interleave(torch.arange(len(lengths)), length_S)
    zero_T = torch.zeros(seq_T.numel(), dtype=F64)
    return Measured(
        reward_S=vector(*reward),
        group_S=torch.tensor(groups, dtype=torch.int64),
        seq_T=seq_T,
        value_T=zero_T,
        length_S=length_S,
        log_ratio_T=zero_T,
        step_reward_K=zero_T,
        step_state_K=torch.zeros_like(seq_T),
        step_seq_K=seq_T,
        step_T=torch.arange(seq_T.numel()),
    )


SHAPES = {
    "a group of one": ([1.0], [0], [3]),
    "constant rewards": ([0.1] * 6, [0, 0, 0, 1, 1, 1], [1, 2, 3, 1, 2, 3]),
    "constant rewards that sum with rounding": ([0.1 + 0.2, 0.3, 0.3], [0, 0, 0], [2, 2, 2]),
    "length one": ([1.0, 0.0, 1.0], [0, 0, 0], [1, 1, 1]),
    "fewer than twenty tokens for VAPO": ([1.0, 0.0], [0, 0], [19, 5]),
    "an empty sequence": ([1.0, 0.0, 1.0], [0, 0, 0], [0, 2, 1]),
    "an empty step": ([], [], []),
}


def nan_in(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() and not bool(value.isfinite().all())
    return is_dataclass(value) and any(nan_in(getattr(value, field.name)) for field in fields(value))


@pytest.mark.parametrize("rule", GROUP_RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_degenerate_credit_is_a_defined_result_or_a_clear_error_and_never_nan(shape: str, rule: str) -> None:
    batch = measured(*SHAPES[shape])
    try:
        found = assign_credit(GROUP_RULES[rule], batch)
    except ObjectiveError as refusal:
        assert shape == "a group of one" and rule in ("LeaveOneOut", "ImplicitProcess", "ImplicitProcessCode"), refusal
        return
    assert not nan_in(found)
    if shape in ("a group of one", "constant rewards", "constant rewards that sum with rounding") and "Gae" not in rule:
        assert bool((found.advantage_T == 0).all()) or rule == "StepGroups", "no reward differs: nothing to learn"


@pytest.mark.parametrize("name", INSTANCES)
@pytest.mark.parametrize("lengths", [[1], [1, 1], [0, 1], [0, 0], []])
def test_a_degenerate_step_has_a_finite_loss_and_gradient_under_every_aggregate(lengths: list[int], name: str) -> None:
    case = build(lengths, [0] * len(lengths), torch.Generator().manual_seed(7), drift=0.5)
    objective, logp_T = INSTANCES[name], case.tokens.logp_T.clone().requires_grad_()
    for how in Aggregate.__args__:
        weight_S = sequence_weight(how, case.tokens.length_S, case.group_S, max_length=7)
        loss = Term("policy", objective(case.with_logp(logp_T)).loss_T, 1.0, how, "actions").reduce(weight_S[case.tokens.seq_T])
        (gradient_T,) = torch.autograd.grad(loss, logp_T)
        assert bool(loss.isfinite()) and bool(gradient_T.isfinite().all())
    assert aggregate_of(objective) in Aggregate.__args__


@pytest.mark.parametrize("positives", [0, 6])
def test_a_listwise_group_of_no_or_only_positives_is_a_clear_error(positives: int) -> None:
    labels = flags(*[1] * positives + [0] * (6 - positives))
    assert not select.mixed(labels)
    refused(lambda: preference.listwise(torch.zeros(6, dtype=F64), labels), "both positive and negative")


# Numbers beyond what their precision can square, sum or hold


@pytest.mark.parametrize(("dtype", "large"), [(torch.float16, 200.0), (torch.float32, 1e19), (F64, 1e154)])
def test_rewards_whose_squares_overflow_are_refused_and_do_not_become_an_advantage_of_zero(dtype, large: float) -> None:
    reward_S, group_S = torch.tensor([large, -large, large, -large], dtype=dtype), ids(0, 0, 0, 0)
    for call in (
        lambda: credit.group_centered(reward_S, group_S),
        lambda: credit.group_normalized(reward_S, group_S, eps=0.0, ddof=0),
        lambda: credit.leave_one_out(reward_S, group_S),
        lambda: credit.minibatch_standardized(reward_S, eps=0.0, ddof=0, keep_S=None),
        lambda: credit.batch_normalized(reward_S, eps=0.0, ddof=0),
        lambda: credit.token_leave_one_out_paper(reward_S, ids(0, 1, 2, 3), group_S),
        lambda: credit.token_leave_one_out_code(reward_S, ids(0, 1, 2, 3), group_S),
    ):
        refused(call, "small enough to be squared")
    near_S = credit.group_normalized(reward_S / 100, group_S, eps=0.0, ddof=0)
    assert near_S.tolist() == pytest.approx([1, -1, 1, -1], rel=1e-2)


def test_a_dropped_reward_may_be_too_large_to_be_squared() -> None:
    found_S = credit.group_centered(vector(1e300, 1, 0), ids(0, 0, 0), keep_S=flags(0, 1, 1))
    assert found_S.tolist() == [0, 0.5, -0.5]


def test_advantages_that_leave_the_range_of_their_precision_are_refused() -> None:
    refused(lambda: credit.gae(vector(1e308, 1e308), vector(0, 0), ids(0, 0), gamma=1.0, lam=1.0), "stay finite")
    ones_T = torch.ones(400, dtype=F64)
    seq_T = torch.zeros(400, dtype=torch.int64)
    lam_S = credit.length_adaptive_lambda(ids(400), alpha=1e-6, floor=None)
    refused(lambda: credit.gae(ones_T, ones_T, seq_T, gamma=1.0, lam=lam_S), "stay finite")


def test_a_whole_number_beyond_every_float_is_refused() -> None:
    huge = 10**400
    for call in (
        lambda: ro.Ppo(low=huge),
        lambda: Term("p", vector(1), huge, "token_mean", "actions"),
        lambda: credit.group_normalized(vector(1, 0), ids(0, 0), eps=huge, ddof=0),
        lambda: AdaptiveEntropy(step=0.1, maximum=None).advance(huge, 0.1),
        lambda: sequence_weight("fixed_length", ids(1), None, max_length=huge),
        lambda: interpolated_anchor(
            vector(-1), vector(-1), behavior_version_T=ids(0), anchor_version=1, current_version=huge
        ),
    ):
        refused(call)


# Settings and records


@pytest.mark.parametrize("bad", ["tokenmean", "", None, 3, Unstated(what="aggregate")])
def test_a_term_names_a_denominator_and_a_population_that_exist(bad: object) -> None:
    refused(lambda: Term("policy", vector(1), 1.0, bad, "actions"), "Term.aggregate")
    refused(lambda: Term("policy", vector(1), 1.0, "token_mean", bad), "Term.population")
    if bad not in ("tokenmean",) and not isinstance(bad, Unstated):
        refused(lambda: Term("" if bad == "" else bad, vector(1), 1.0, "token_mean", "actions"), "Term.name")


def test_an_open_setting_asks_for_itself_by_name() -> None:
    (ptx,) = ro.PpoPtx().extra_terms
    tokens = build([1], [0], torch.Generator().manual_seed(0), drift=0.1).tokens
    assert "objective.ptx_aggregate" in refused(lambda: ptx.term(tokens)).fix
    (kl,) = ro.R1Printed(kl_estimator="k3").extra_terms
    assert "objective.kl_aggregate" in refused(lambda: kl.term(tokens)).fix
    refused(lambda: ro.Ppo(credit=Unstated(what="aggregate")), "Ppo.credit")
    refused(lambda: ro.Ppo(aggregate=Unstated(what="credit")), "Ppo.aggregate")
    refused(lambda: ro.Dapo(overlong_filter=Unstated(what="credit")), "overlong_filter")
    refused(lambda: Ptx(coefficient=1.0, aggregate=Unstated(what="credit")), "Ptx.aggregate")


def test_reinforce_plus_plus_has_its_baseline_variant_with_a_kl_of_its_own() -> None:
    objective = ro.ReinforcePlusPlusBaseline(beta=0.01, aggregate="token_mean")
    assert objective.extra_terms == (KlTerm(estimator="k2", coefficient=0.01, aggregate="token_mean"),)
    rule = credit.supply(objective.credit, weighting="token", eps=1e-8, ddof=0)
    assert rule.baseline == "group_mean" and rule.kl_beta is None
    refused(lambda: credit.supply(objective.credit, kl_beta=0.1, weighting="token", eps=1e-8, ddof=0), "kl_beta is printed")


RESPONSES = Responses(
    logp_T=vector(-1, -2), reference_T=vector(-1, -2), pair_T=ids(0, 1), format_T=flags(0, 0), pairs=2
)
ROLLOUTS = select.Rollouts(
    correct_S=flags(1, 1, 0, 0),
    calls_S=ids(1, 1, 1, 1),
    errors_S=ids(0, 0, 0, 0),
    tags_S=ids(1, 1, 1, 1),
    turns_S=ids(1, 1, 1, 1),
)
RESAMPLE = {"zero_penalty": "first", "odd": "negative", "least": 0}
CODE = credit.ImplicitProcessCode(beta=0.05, process_coefficient=5, outcome_coefficient=5, eps=0.0)
WANT_A_RECORD: dict[str, Callable[[object], object]] = {
    "assign_credit's rule": lambda x: assign_credit(x, measured([1.0], [0], [1])),
    "assign_credit's batch": lambda x: assign_credit(credit.GroupCentered(), x),
    "total_loss's terms": lambda x: total_loss(x, [vector(1)]),
    "a term of total_loss": lambda x: total_loss([x], [vector(1)]),
    "total_loss's weights": lambda x: total_loss([Term("p", vector(1), 1.0, "token_mean", "actions")], x),
    "all_reads": all_reads,
    "batch_normalized's population": lambda x: credit.batch_normalized(
        vector(1), eps=0.0, ddof=0, population="none" if x is None else x
    ),
    "PRIME's code": lambda x: credit.implicit_process_code(vector(1, 1), vector(1, 0), ids(0, 1), ids(0, 0), rule=x),
    "DPO's chosen side": lambda x: preference.Dpo()(x, RESPONSES),
    "DPO's rejected side": lambda x: preference.Dpo()(RESPONSES, x),
    "Llama 3's settings": lambda x: preference.llama3_dpo(RESPONSES, RESPONSES, x),
    "a trace penalty": select.trace_penalty,
    "resampling": lambda x: select.resample_on_correct(x, **RESAMPLE, generator=torch.Generator()),
    "resampling's generator": lambda x: select.resample_on_correct(ROLLOUTS, **RESAMPLE, generator=x),
}


@pytest.mark.parametrize("value", [None, "banana", 3, vector(1), ro.Ppo], ids=["None", "text", "number", "tensor", "class"])
@pytest.mark.parametrize("name", WANT_A_RECORD)
def test_what_is_no_record_is_refused_before_its_fields_are_read(name: str, value: object) -> None:
    refused(lambda: WANT_A_RECORD[name](value))


def test_both_sides_of_a_preference_hold_the_same_pairs() -> None:
    one = replace(RESPONSES, pair_T=ids(0, 0), pairs=1)
    for loss in (preference.Dpo(), preference.Llama3Dpo(nll_reduction="sum", nll_on="all")):
        refused(lambda loss=loss: loss(RESPONSES, one), "both sides of the same pairs")
    refused(lambda: replace(RESPONSES, pairs=10**15), "a token in every pair")


def test_an_outcome_of_an_absent_response_is_refused_and_not_half_right() -> None:
    two = {"logp_T": vector(-1, -2), "reference_T": vector(-1, -1), "beta": 0.05}
    found_S = preference.implicit_outcome(**two, seq_T=ids(0, 1), outcome_S=vector(1, 0))
    assert found_S.tolist() == pytest.approx([math.log(2), math.log1p(math.exp(-0.05))])
    for seq_T in (ids(0, 0), ids(0, 2)):
        call = {**two, "seq_T": seq_T, "outcome_S": vector(1, 0, 1)}
        refused(lambda call=call: preference.implicit_outcome(**call), "a token of every sequence that has an outcome")


@pytest.mark.parametrize("bad", [ids(0, 1), flags(0, 1), torch.tensor([1j, 1j])], ids=["whole", "flags", "complex"])
def test_what_is_computed_with_is_a_float(bad: Tensor) -> None:
    """A whole-number KL would be multiplied in single precision."""
    reward_T, seq_T = vector(0, 1), ids(0, 1)
    for call in (
        lambda: credit.token_rewards(vector(1, 2), bad, seq_T, beta=0.1),
        lambda: credit.gae(reward_T, reward_T, seq_T, gamma=1.0, lam=bad),
        lambda: credit.gae(reward_T, reward_T, seq_T, gamma=1.0, lam=1.0, bootstrap_S=bad),
        lambda: credit.minibatch_standardized(reward_T, eps=0.0, ddof=0, keep_S=None, noise_S=bad),
        lambda: select.best_of(bad, ids(0, 0)),
    ):
        refused(call, "must be a float tensor")


def test_what_was_not_measured_reaches_no_discount_and_no_noise_level() -> None:
    segments = {"seq_T": ids(0, 1), "length_S": ids(1, 1), "trajectory_S": ids(0, 0), "order_S": ids(0, 1)}
    refused(lambda: credit.segment_discount(vector(1, NAN), **segments, gamma=1.0, lam=1.0), "advantage_T must be finite")
    noise_S = vector(NAN, 0)
    refused(lambda: credit.minibatch_standardized(vector(1, -1), eps=0.0, ddof=0, keep_S=None, noise_S=noise_S), "noise_S")
    refused(lambda: AdaptiveEntropy(step=0.1, maximum=None).coefficient(0.1, -0.1), "entropy >= 0")


def test_a_dual_clip_checks_its_bounds_before_it_adds_to_them() -> None:
    refused(lambda: dual_clipped_surrogate(vector(1), vector(1), low=0.2, high=None, dual=3.0), "high must be a number")


def test_a_micro_batch_whose_columns_are_views_is_the_same_micro_batch() -> None:
    """Every second entry of longer columns: nothing assumes contiguous memory."""
    case = build([2, 3], [0, 0], torch.Generator().manual_seed(3), drift=0.4)
    strided = {
        field.name: torch.stack([value, value], dim=-1).flatten()[::2]
        for field in fields(ActionTokens)
        if (value := getattr(case.tokens, field.name)) is not None and field.name != "length_S"
    }
    for objective in INSTANCES.values():
        assert torch.equal(objective(replace(case.tokens, **strided)).loss_T, objective(case.tokens).loss_T)
