"""Values at bounds, at probability zero and where a factor could be left out; gradients that must not reach a constant."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from objective_cases import F64, build
from torch import Tensor

import rollbook.objectives as ro
from rollbook.objectives import ActionTokens, ObjectiveError, correction, distill, preference, value
from rollbook.objectives.diagnostics import diagnose, effective_sample_size
from rollbook.objectives.select import Rollouts, trace_penalty

IMPOSSIBLE = -math.inf


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def gradient(loss: Tensor, at: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(loss.sum(), at)
    return found


def tokens_of(logp_T: Tensor, **fields: Tensor) -> ActionTokens:
    size = logp_T.numel()
    return ActionTokens(logp_T=logp_T, seq_T=torch.zeros(size, dtype=torch.int64), length_S=torch.tensor([size]), **fields)


# Corrections and diagnostics


def test_the_geometric_band_reads_the_mean_log_ratio_not_the_sum() -> None:
    """Two tokens of 0.3 nats: e^0.3 = 1.35 is inside 1.5, e^0.6 = 1.82 is not."""
    found_T = correction.geometric_band(vector(0.3, 0.3), vector(0.0, 0.0), torch.tensor([0, 0]), low=0.5, high=0.5)
    assert found_T.tolist() == [1.0, 1.0]


def test_a_sequence_whose_product_equals_the_cap_is_kept() -> None:
    zero_T = vector(0.0, 0.0)
    assert correction.sequence_mis(zero_T, zero_T, torch.tensor([0, 0]), cap=1.0).tolist() == [1.0, 1.0]
    assert correction.sequence_mis(zero_T + 1e-9, zero_T, torch.tensor([0, 0]), cap=1.0).tolist() == [0.0, 0.0]


def test_a_reference_far_above_the_policy_is_counted_as_guarded() -> None:
    tokens = tokens_of(vector(-30.0, -1.0, -50.0), reference_T=vector(-1.0, -1.0, -1.0))
    nothing = ro.TokenLoss(torch.zeros(3), torch.zeros(3, dtype=torch.bool))
    assert int(diagnose(tokens, nothing).guarded) == 2


def test_no_weight_at_all_is_an_effective_sample_size_of_zero() -> None:
    assert float(effective_sample_size(torch.zeros(4))) == 0 and float(effective_sample_size(torch.zeros(0))) == 0


@pytest.mark.parametrize(
    "bounds", [{"bound_on": "ratio", "low": 0.2, "high": 0.2}, {"bound_on": "log_ratio", "log_low": -0.2, "log_high": 0.2}]
)
def test_k25_marks_the_tokens_outside_its_bounds(bounds: dict) -> None:
    objective = ro.KimiK25(tau=0.1, tau_mask="all", ratio_to="anchor", **bounds)
    tokens = tokens_of(vector(-1.0, -1.0, -1.0), anchor_T=vector(-2.0, -1.0, -0.1), advantage_T=vector(1.0, 1.0, 1.0))
    assert objective(tokens).clipped_T.tolist() == [True, False, True]


# Probability zero


def test_two_distributions_share_an_impossible_token_without_a_nan() -> None:
    student_TV = torch.tensor([[0.3, -0.2, IMPOSSIBLE]], dtype=F64, requires_grad=True)
    teacher_TV = torch.tensor([[-0.5, 0.4, IMPOSSIBLE]], dtype=F64)
    short_TV = student_TV.detach()[:, :2].clone().requires_grad_()
    found, expected = (
        distill.generalized_jsd(student_TV, teacher_TV, beta=0.3),
        distill.generalized_jsd(short_TV, teacher_TV[:, :2], beta=0.3),
    )
    torch.testing.assert_close(found, expected)
    found_TV = gradient(found, student_TV)
    torch.testing.assert_close(found_TV[:, :2], gradient(expected, short_TV))
    assert float(found_TV[0, 2]) == 0


def test_a_target_of_zero_on_an_impossible_token_adds_nothing() -> None:
    student_TV = torch.tensor([[0.3, -0.2, IMPOSSIBLE]], dtype=F64, requires_grad=True)
    target_TV = torch.tensor([[0.25, 0.75, 0.0]], dtype=F64)
    found = distill.soft_target(student_TV, target_TV)
    torch.testing.assert_close(found, distill.soft_target(student_TV[:, :2], target_TV[:, :2]))
    torch.testing.assert_close(gradient(found, student_TV), student_TV.softmax(-1) - target_TV)


def test_a_token_the_policy_cannot_produce_has_a_defined_loss_and_gradient() -> None:
    logp_T = vector(-1.0, IMPOSSIBLE).requires_grad_()
    fixed = {name: vector(-1.0, -2.0) for name in ("anchor_T", "behavior_T", "teacher_T")}
    tokens = tokens_of(logp_T, advantage_T=vector(1.0, 1.0), **fixed)
    for objective in (ro.GspoToken(), ro.Glm5CrossStage()):
        loss_T = objective(tokens).loss_T
        assert bool(loss_T.isfinite().all()) and bool(gradient(loss_T, logp_T).isfinite().all())
    assert ro.Glm5CrossStage()(tokens).loss_T.tolist() == [0.0, 0.0]
    assert ro.GspoToken()(tokens).loss_T.tolist() == [0.0, 0.0]


def test_a_teacher_that_reports_minus_infinity_is_refused_by_name() -> None:
    tokens = build([2], [0], torch.Generator().manual_seed(0), drift=0.1).tokens
    with pytest.raises(ObjectiveError, match="finite teacher_T"):
        ro.Glm5CrossStage()(replace(tokens, teacher_T=vector(-1.0, IMPOSSIBLE)))


# Preferences and values


def test_llama3s_mean_over_unmasked_tokens_divides_by_those_only() -> None:
    """Chosen -1, -2, -6 with the last one a format token: (1 + 2) / 2; over all tokens (1 + 2 + 6) / 3."""
    side = {"pair_T": torch.zeros(3, dtype=torch.int64), "format_T": torch.tensor([False, False, True]), "pairs": 1}
    logp_T = vector(-1.0, -2.0, -6.0)
    both = preference.Responses(logp_T=logp_T, reference_T=logp_T, **side)
    for nll_on, expected in (("unmasked", 1.5), ("all", 3.0)):
        loss = preference.Llama3Dpo(nll_coefficient=1.0, nll_reduction="mean", nll_on=nll_on)(both, both)
        assert float(loss) == pytest.approx(math.log(2) + expected)


def test_no_gradient_reaches_references_labels_returns_and_frozen_values() -> None:
    fixed = vector(0.4).requires_grad_()
    moving = vector(0.1).requires_grad_()
    losses = (
        preference.dpo(moving, moving, fixed, vector(0.2), beta=0.1),
        preference.dpo(moving, moving, vector(0.2), fixed, beta=0.1),
        preference.soft_label(moving, vector(0.3), fixed),
        value.squared_value_loss(moving, fixed, factor=0.5),
        value.clipped_value_loss(moving, vector(0.2), fixed, clip=0.2, factor=0.5),
        value.clipped_value_loss(moving, fixed, vector(0.9), clip=0.2, factor=0.5),
        value.clipped_value_loss(moving, fixed, vector(0.0), clip=0.2, factor=0.5),
    )
    for loss in losses:
        (found,) = torch.autograd.grad(loss.sum(), fixed, allow_unused=True, retain_graph=True)
        assert found is None or not bool(found.any())


def test_llama2s_margins_are_the_printed_tables() -> None:
    assert preference.LLAMA2_MARGINS_LARGE == (3.0, 2.0, 1.0, 0.0)
    assert preference.LLAMA2_MARGINS_SMALL == (1.0, 2 / 3, 1 / 3, 0.0)


def test_trace_penalties_are_computed_in_double_precision() -> None:
    one = torch.tensor([1])
    rollouts = Rollouts(correct_S=one > 0, calls_S=3 * one, errors_S=one, tags_S=2 * one, turns_S=3 * one)
    assert trace_penalty(rollouts).dtype == F64 and trace_penalty(rollouts).tolist() == [1 / 3 + 1 / 3]
