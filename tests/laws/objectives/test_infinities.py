"""Infinite and missing log-probabilities: refused by position, or the limit of the loss; never NaN that was not there before."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from objective_cases import F64, INSTANCES, build
from refusals import ids, refused, vector
from torch import Tensor

import rollbook.objectives as ro
from rollbook.objectives import ActionTokens, Term, correction, kl, value
from rollbook.objectives.diagnostics import diagnose, effective_sample_size
from rollbook.objectives.ratios import LOG_LIMIT, exp_guarded, interpolated_anchor
from rollbook.objectives.terms import KlTerm

INF, NAN = math.inf, math.nan
SQUARES = ("KimiK15", "KimiK15Squared", "KimiK2", "KimiK2Squared", "KimiK25Ratio")
VALUE_OF_LOGP = ("Rloo", "Cispo")  # their loss contains logp times a weight that is not 0: infinite with it


def gradient(loss: Tensor, at: Tensor) -> Tensor:
    return torch.autograd.grad(loss.sum(), at)[0]


def three(logp_T: Tensor, advantage: float = 1.0, **fields: Tensor) -> ActionTokens:
    """Sequences of two and one tokens whose other log-probabilities are ordinary."""
    ordinary = {name: vector(-1.0, -1.5, -2.0) for name in ("anchor_T", "behavior_T", "reference_T", "teacher_T")}
    given = {**ordinary, "advantage_T": torch.full((3,), advantage, dtype=F64), **fields}
    return ActionTokens(logp_T=logp_T, seq_T=ids(0, 0, 1), length_S=ids(2, 1), **given)


# logp = -inf: a token that the policy can produce no more


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("name", [name for name in INSTANCES if name not in SQUARES])
def test_a_token_the_policy_can_produce_no_more_has_no_nan_and_a_finite_gradient(name: str, advantage: float) -> None:
    logp_T = vector(-1.0, -INF, -2.0).requires_grad_()
    loss_T = INSTANCES[name](three(logp_T, advantage)).loss_T
    assert bool(gradient(loss_T, logp_T).isfinite().all()) and not bool(loss_T.isnan().any())
    assert bool(loss_T.isfinite().all()) or (name in VALUE_OF_LOGP and advantage != 0)


@pytest.mark.parametrize("name", SQUARES)
def test_a_square_of_an_infinite_log_ratio_is_refused_with_its_position(name: str) -> None:
    error = refused(lambda: INSTANCES[name](three(vector(-1.0, -INF, -2.0))), "finite log-ratio")
    assert error.got == "-inf at position 1"


K25 = {"tau": 0.3, "bound_on": "log_ratio", "log_low": -0.5, "log_high": 0.5, "tau_mask": "kept", "ratio_to": "anchor"}


@pytest.mark.parametrize(
    "change", [{}, {"tau": 0.0}, {"tau": 0.0, "tau_mask": "all"}, {"tau": 0.0, "tau_mask": "all", "log_low": -INF}]
)
def test_k25_charges_no_penalty_where_it_masks_none_or_has_no_tau(change: dict) -> None:
    """The token of probability 0 is outside the bounds: no policy term, no penalty, gradient exactly 0."""
    logp_T = vector(-1.1, -INF, -2.1).requires_grad_()
    loss_T = ro.KimiK25(**{**K25, **change})(three(logp_T)).loss_T
    found_T = gradient(loss_T, logp_T)
    assert float(loss_T[1].detach()) == 0 and float(found_T[1]) == 0
    assert bool(found_T.isfinite().all()) and float(found_T[0]) != 0


def test_k25_refuses_an_infinite_penalty_where_it_charges_one() -> None:
    for change in ({"tau_mask": "all"}, {"log_low": -INF}):
        refused(lambda change=change: ro.KimiK25(**{**K25, **change})(three(vector(-1.0, -INF, -2.0))), "KimiK25")


def test_the_unbiased_kl_of_a_token_of_probability_zero_is_its_limit() -> None:
    """rho k3 -> pi_ref / pi_anchor and rho d -> 0; just before, at 600 nats, it is there already."""
    for logp in (-INF, -600.0):
        logp_T = vector(logp, -1.0).requires_grad_()
        value_T = kl.unbiased(logp_T, vector(-1.0, -1.0), vector(-1.5, -1.5))
        assert float(value_T[0].detach()) == pytest.approx(math.exp(-0.5))
        assert float(gradient(value_T, logp_T)[0]) == pytest.approx(0.0, abs=1e-200)


def test_k3_of_a_token_of_probability_zero_is_infinite_with_a_bounded_gradient() -> None:
    logp_T = vector(-INF).requires_grad_()
    value_T = kl.k3(logp_T, vector(-1.0))
    assert float(value_T.detach()) == INF and float(gradient(value_T, logp_T)) == pytest.approx(1 - math.exp(20))


def test_a_token_of_weight_zero_loses_its_infinite_loss_when_it_is_corrected() -> None:
    objective = ro.Corrected(objective=ro.Cispo(low=0.4, high=0.3), rule="icepop", low=0.5, high=1.0)
    logp_T = vector(-1.0, -INF, -2.0).requires_grad_()
    loss = objective(three(logp_T, anchor_T=vector(-1.0, -9.0, -2.0)))
    assert float(loss.loss_T[1].detach()) == 0 and loss.clipped_T.tolist() == [False, True, False]
    assert float(gradient(loss.loss_T, logp_T)[1]) == 0


# Other log-probabilities that are infinite


@pytest.mark.parametrize("bad", [INF, -INF])
@pytest.mark.parametrize("name", INSTANCES)
def test_an_infinity_that_an_objective_reads_is_refused_with_its_position(name: str, bad: float) -> None:
    for field in INSTANCES[name].reads - {"logp_T"}:
        tokens = three(vector(-1.0, -1.5, -2.0), **{field: vector(-1.0, bad, -2.0)})
        error = refused(lambda tokens=tokens: INSTANCES[name](tokens), f"needs a finite {field}")
        assert error.got == f"{bad} at position 1"


@pytest.mark.parametrize("name", INSTANCES)
def test_an_infinity_that_an_objective_does_not_read_reaches_nothing(name: str) -> None:
    plain = three(vector(-1.0, -1.5, -2.0))
    unread = {field: vector(-INF, INF, -INF) for field in ("reference_T", "teacher_T") if field not in INSTANCES[name].reads}
    assert torch.equal(INSTANCES[name](replace(plain, **unread)).loss_T, INSTANCES[name](plain).loss_T)


@pytest.mark.parametrize("estimator", ["k2", "k3", "unbiased"])
def test_a_kl_term_refuses_a_reference_that_forbids_the_sampled_token(estimator: str) -> None:
    term = KlTerm(estimator=estimator, coefficient=0.1, aggregate="token_mean")
    refused(lambda: term(three(vector(-1.0, -1.5, -2.0), reference_T=vector(-1.0, -INF, -2.0))), "finite reference_T")


CORRECTIONS = {
    "token_tis": lambda a, b: correction.token_tis(a, b, cap=2.0),
    "token_tis, no cap": lambda a, b: correction.token_tis(a, b, cap=INF),
    "icepop": lambda a, b: correction.icepop(a, b, low=0.5, high=1.0),
    "pop": lambda a, b: correction.pop(a, b, beta=2.0),
    "sequence_tis": lambda a, b: correction.sequence_tis(a, b, ids(0, 1), cap=2.0),
    "sequence_mis": lambda a, b: correction.sequence_mis(a, b, ids(0, 1), cap=2.0),
    "geometric_band": lambda a, b: correction.geometric_band(a, b, ids(0, 1), low=0.5, high=1.0),
    "sequence_mask": lambda a, b: correction.sequence_mask(a, b, vector(-1, -1), ids(0, 1), delta=0.5),
}


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_correction_refuses_an_engine_that_reports_minus_infinity(name: str) -> None:
    refused(lambda: CORRECTIONS[name](vector(-1, -1), vector(-1, -INF)), "needs a finite behavior_T")
    if name != "sequence_mask":  # which reads the trained policy there
        refused(lambda: CORRECTIONS[name](vector(-1, -INF), vector(-1, -1)), "needs a finite anchor_T")


@pytest.mark.parametrize("name", CORRECTIONS)
def test_what_was_not_measured_is_not_outside_a_band(name: str) -> None:
    weight_T = CORRECTIONS[name](vector(-1.0, -1.0), vector(-1.0, NAN))
    assert float(weight_T[0]) == 1 and math.isnan(weight_T[1])


@pytest.mark.parametrize("name", [name for name in INSTANCES if "behavior_T" in INSTANCES[name].reads])
def test_a_behavior_that_was_not_measured_shows_in_the_loss_of_its_own_token(name: str) -> None:
    tokens = three(vector(-1.0, -1.5, -2.0), -1.0, behavior_T=vector(-1.0, -1.5, NAN))
    loss_T = INSTANCES[name](tokens).loss_T
    assert loss_T.isnan().tolist() == [False, False, True]


def test_an_off_policy_mask_without_delta_masks_nothing_not_even_an_infinite_drift() -> None:
    mask_T = correction.sequence_mask(vector(-INF), vector(-1.0), vector(-1.0), ids(0), delta=INF)
    assert mask_T.tolist() == [1.0]
    assert correction.sequence_mask(vector(-INF), vector(-1.0), vector(-1.0), ids(0), delta=9.0).tolist() == [0.0]


def test_the_interpolated_anchor_of_the_current_version_is_the_behavior_even_for_an_impossible_token() -> None:
    arguments = {"anchor_version": 1, "current_version": 2}
    found_T = interpolated_anchor(vector(-INF), vector(-1.0), behavior_version_T=ids(2), **arguments)
    assert found_T.tolist() == [-1.0]
    refused(lambda: interpolated_anchor(vector(-1.0), vector(-INF), behavior_version_T=ids(0), **arguments), "behavior_T")


@pytest.mark.parametrize("bad", [INF, -INF])
def test_a_critic_loss_refuses_an_infinite_target(bad: float) -> None:
    refused(lambda: value.squared_value_loss(vector(1.0), vector(bad), factor=0.5), "return_T")
    refused(lambda: value.clipped_value_loss(vector(1.0), vector(0.0), vector(bad), clip=0.2, factor=0.5), "return_T")
    refused(lambda: value.clipped_value_loss(vector(1.0), vector(bad), vector(0.0), clip=0.2, factor=0.5), "anchor_value_T")


# Weights of zero


def test_a_token_of_weight_zero_gives_its_loss_a_gradient_of_exactly_zero() -> None:
    """Whatever the loss holds there; what made the loss gets 0 times its derivative, and 0 * inf is NaN."""
    loss_T = vector(2.0, INF, NAN).requires_grad_()
    share = Term("policy", loss_T, 3.0, "token_mean", "actions").reduce(vector(0.5, 0.0, 0.0))
    assert float(share.detach()) == 3.0 and gradient(share, loss_T).tolist() == [1.5, 0.0, 0.0]
    logp_T = vector(-1.0, -INF).requires_grad_()
    squared = Term("kl", kl.k2(logp_T, vector(-2.0, -2.0)), 1.0, "token_mean", "actions").reduce(vector(1.0, 0.0))
    assert float(squared.detach()) == 0.5 and math.isnan(gradient(squared, logp_T)[1])


@pytest.mark.parametrize("held", [NAN, INF, -INF, None], ids=["nan", "inf", "-inf", "ordinary"])
@pytest.mark.parametrize("name", INSTANCES)
def test_leaving_the_tokens_of_weight_zero_out_before_the_loss_changes_nothing_else(name: str, held: float | None) -> None:
    """Whatever the sequence that is left out holds: the others keep loss and gradient, its own gradient is exactly 0."""
    objective, tokens = INSTANCES[name], build([2, 3, 1], [0, 0, 1], torch.Generator().manual_seed(5), drift=0.3).tokens
    weight_T = vector(0.25, 0.0, 0.5)[tokens.seq_T]
    kept_T = weight_T != 0
    whole_T = tokens.logp_T.clone().requires_grad_()
    share = Term("policy", objective(replace(tokens, logp_T=whole_T)).loss_T, 1.0, "token_mean", "actions").reduce(weight_T)
    expected_T = torch.where(kept_T, gradient(share, whole_T), 0.0)
    if held is not None:
        columns = ("logp_T", "advantage_T", "anchor_T", "behavior_T", "reference_T", "teacher_T")
        tokens = replace(tokens, **{column: torch.where(kept_T, getattr(tokens, column), held) for column in columns})
    logp_T = tokens.logp_T.clone().requires_grad_()
    part = replace(tokens, logp_T=logp_T).only(kept_T)
    assert torch.equal(part.length_S, tokens.length_S) and part.seq_T.tolist() == [0, 0, 2]
    alone = Term("policy", objective(part).loss_T, 1.0, "token_mean", "actions").reduce(weight_T[kept_T])
    torch.testing.assert_close(alone, share, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient(alone, logp_T), expected_T, rtol=1e-12, atol=1e-12)


def test_tokens_are_left_out_by_a_flag_each_and_an_absent_column_stays_absent() -> None:
    tokens = replace(three(vector(-1.0, -1.5, -2.0)), teacher_T=None)
    part = tokens.only(vector(0, 1, 1) > 0)
    assert part.teacher_T is None and part.anchor_T.tolist() == [-1.5, -2.0]
    for bad in (ids(0, 1, 1), vector(0, 1, 1), vector(1, 1) > 0, None):
        refused(lambda bad=bad: tokens.only(bad), "ActionTokens.only")
    refused(lambda: INSTANCES["Gspo"](part), "whole sequences")


# Diagnostics and the guard


def test_diagnostics_carry_no_gradient_when_the_anchor_is_the_trained_policy_itself() -> None:
    logp_T = vector(-1.0, -1.5, -2.0).requires_grad_()
    tokens = three(logp_T, anchor_T=logp_T, behavior_T=logp_T, reference_T=logp_T)
    found = diagnose(tokens, ro.Ppo()(tokens))
    values = [getattr(found, name) for name in found.__slots__ if name != "tokens"]
    assert all(isinstance(value, Tensor) and not value.requires_grad for value in values)


@pytest.mark.parametrize("field", ["anchor_T", "behavior_T", "reference_T", "logp_T"])
def test_diagnostics_of_an_infinite_log_probability_are_not_nan(field: str) -> None:
    tokens = replace(three(vector(-1.0, -1.5, -2.0)), **{field: vector(-1.0, -INF, -2.0)})
    found = diagnose(tokens, ro.TokenLoss(vector(0, 0, 0), vector(0, 0, 0) > 0))
    values = [getattr(found, name) for name in found.__slots__ if name != "tokens"]
    assert not any(bool(value.isnan()) for value in values)
    if field != "logp_T":
        assert any(bool(value.isinf()) for value in values if value.is_floating_point())


def test_the_effective_sample_size_ignores_scale_and_refuses_what_is_no_weight() -> None:
    for scale in (1e-30, 1.0, 1e30):
        assert float(effective_sample_size(scale * torch.tensor([1.0, 1.0, 0.0, 0.0]))) == pytest.approx(0.5)
    for bad in (vector(1.0, INF), vector(1.0, NAN), vector(1.0, -1.0), ids(1, 2)):
        refused(lambda bad=bad: effective_sample_size(bad), "effective_sample_size")


def test_the_square_of_the_guards_slope_and_of_a_ratio_of_1e10_nats_fit_single_precision() -> None:
    slope = torch.tensor(LOG_LIMIT).exp()
    assert bool((slope * 1e10).square().isfinite()) and not bool((slope * 1e11).square().isfinite())
    near, far = exp_guarded(torch.tensor(1e10)), exp_guarded(torch.tensor(1e11))
    assert bool(near.square().isfinite()) and not bool(far.square().isfinite())


def test_cispos_gradient_is_zero_only_where_the_ratio_is_and_there_is_no_lower_bound() -> None:
    """Log-ratios of -1e4 nats: the ratio underflows to 0."""
    logp_T = vector(-1.0, -1e4, -2.0).requires_grad_()
    floored_T = gradient(ro.Cispo(low=0.4, high=0.3)(three(logp_T)).loss_T, logp_T)
    unbounded_T = gradient(ro.Cispo(low=1.0, high=0.3)(three(logp_T)).loss_T, logp_T)
    assert floored_T.tolist() == pytest.approx([-1.0, -0.6, -1.0]) and unbounded_T.tolist() == pytest.approx([-1.0, 0.0, -1.0])


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_the_unbiased_kls_two_ways_of_writing_its_value_meet_at_20_nats(dtype) -> None:
    for side in (-1e-4, 1e-4):
        logp_T = torch.tensor([-21.0 + side], dtype=dtype)
        found = float(kl.unbiased(logp_T, torch.tensor([-21.0], dtype=dtype), torch.tensor([-1.0], dtype=dtype)))
        assert found == pytest.approx(math.exp(20) + math.exp(side) * (-20 + side - 1), rel=1e-4)
