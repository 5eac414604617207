"""Preference optimisation and reward-model losses."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import F64
from torch import Tensor

from rollbook.objectives import ObjectiveError
from rollbook.objectives.preference import (
    LLAMA2_MARGINS_LARGE,
    LLAMA2_MARGINS_SMALL,
    Dpo,
    Llama3Dpo,
    Responses,
    clamp_reasoned_label,
    dpo,
    implicit_outcome,
    listwise,
    margin,
    option_label,
    pairwise,
    ranked,
    soft_label,
)

FEW = settings(max_examples=50, deadline=None)
scores = st.floats(-10, 10)


def vector(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=F64, requires_grad=grad)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@given(w=scores, rejected=scores, beta=st.floats(0.01, 2))
@FEW
def test_dpos_gradient_is_beta_sigmoid_minus_h_with_opposite_signs(w: float, rejected: float, beta: float) -> None:
    chosen_B, rejected_B = vector(w, grad=True), vector(rejected, grad=True)
    loss_B = dpo(chosen_B, rejected_B, vector(0.5), vector(-0.5), beta=beta)
    up, down = torch.autograd.grad(loss_B.sum(), (chosen_B, rejected_B))
    h = beta * ((w - 0.5) - (rejected + 0.5))
    assert float(up) == pytest.approx(-beta * sigmoid(-h)) and float(down) == pytest.approx(beta * sigmoid(-h))
    swapped_B = dpo(rejected_B, chosen_B, vector(-0.5), vector(0.5), beta=beta)
    assert float((swapped_B - loss_B).detach()) == pytest.approx(h, abs=1e-9)


def test_at_the_reference_dpo_is_log_two_with_gradient_half_beta() -> None:
    chosen_B = vector(-3.0, grad=True)
    loss_B = Dpo().beta * 0 + dpo(chosen_B, vector(-4.0), vector(-3.0), vector(-4.0), beta=0.1)
    assert float(loss_B.detach()) == pytest.approx(math.log(2))
    assert float(torch.autograd.grad(loss_B.sum(), chosen_B)[0]) == pytest.approx(-0.05)


def side(logp_T: Tensor, reference_T: Tensor, formats: list[bool]) -> Responses:
    """Two pairs: tokens 0..2 and 3."""
    pair_T = torch.tensor([0, 0, 0, 1])
    return Responses(logp_T=logp_T, reference_T=reference_T, pair_T=pair_T, format_T=torch.tensor(formats), pairs=2)


FORMATS = [True, False, True, False]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_llama3_masks_formatting_tokens_on_both_sides(reduction: str) -> None:
    settings_ = Llama3Dpo(nll_reduction=reduction, nll_on="unmasked")
    chosen_T, rejected_T = vector(-1, -2, -0.5, -1, grad=True), vector(-2, -1, -0.5, -3, grad=True)
    reference_T = vector(-1.5, -1.5, -1.5, -1.5)
    loss_B = settings_(side(chosen_T, reference_T, FORMATS), side(rejected_T, reference_T, FORMATS))
    up_T, down_T = torch.autograd.grad(loss_B.sum(), (chosen_T, rejected_T))
    masked_T = torch.tensor(FORMATS)
    assert bool((up_T[masked_T] == 0).all()) and bool((down_T[masked_T] == 0).all())
    assert bool((up_T[~masked_T] < 0).all()) and bool((down_T[~masked_T] > 0).all())


def test_llama3_is_dpo_plus_a_fifth_of_the_chosen_nll() -> None:
    logp_T, other_T, reference_T = vector(-1, -2, -0.5, -1), vector(-2, -1, -0.5, -3), vector(-1.5, -1.5, -1.5, -1.5)
    plain = [False] * 4
    chosen, rejected = side(logp_T, reference_T, plain), side(other_T, reference_T, plain)
    base_B = Dpo(beta=0.1)(chosen, rejected)
    summed_B = Llama3Dpo(nll_reduction="sum", nll_on="all")(chosen, rejected)
    averaged_B = Llama3Dpo(nll_reduction="mean", nll_on="all")(chosen, rejected)
    assert (summed_B - base_B).tolist() == pytest.approx([0.2 * 3.5, 0.2 * 1])
    assert (averaged_B - base_B).tolist() == pytest.approx([0.2 * 3.5 / 3, 0.2 * 1])
    everything = Llama3Dpo(nll_reduction="sum", nll_on="all")(side(logp_T, reference_T, FORMATS), rejected)
    unmasked = Llama3Dpo(nll_reduction="sum", nll_on="unmasked")(side(logp_T, reference_T, FORMATS), rejected)
    assert (everything - unmasked).tolist() == pytest.approx([0.2 * 1.5, 0])


def test_common_tokens_of_equal_probability_cancel() -> None:
    reference_T = vector(-1, -1, -1, -1)
    one, two = side(vector(-1, -2, -3, -1), reference_T, [False] * 4), side(vector(-1, -4, -3, -1), reference_T, [False] * 4)
    without = [False, False, True, False]
    same_one, same_two = side(one.logp_T, reference_T, without), side(two.logp_T, reference_T, without)
    plain = Llama3Dpo(nll_reduction="sum", nll_on="all", nll_coefficient=0.0)
    torch.testing.assert_close(plain(one, two), plain(same_one, same_two))


@given(values=st.lists(scores, min_size=2, max_size=6), shift=scores)
@FEW
def test_reward_model_losses_ignore_a_common_shift(values: list[float], shift: float) -> None:
    score_K = vector(*values)
    rank_K = torch.arange(len(values))
    positive_K = rank_K < 1
    torch.testing.assert_close(ranked(score_K + shift, rank_K), ranked(score_K, rank_K))
    torch.testing.assert_close(listwise(score_K + shift, positive_K), listwise(score_K, positive_K))


@given(values=st.lists(scores, min_size=3, max_size=6), positives=st.integers(1, 2))
@FEW
def test_listwise_is_the_mean_of_pairwise_and_its_gradients_sum_to_zero(values: list[float], positives: int) -> None:
    score_K = vector(*values, grad=True)
    positive_K = torch.arange(len(values)) < positives
    pairs = [pairwise(score_K[p], score_K[n]) for p in range(positives) for n in range(positives, len(values))]
    loss = listwise(score_K, positive_K)
    torch.testing.assert_close(loss, torch.stack(pairs).mean())
    (gradient_K,) = torch.autograd.grad(loss, score_K)
    assert float(gradient_K.sum()) == pytest.approx(0, abs=1e-12)


def test_ranked_averages_all_pairs_of_a_prompt() -> None:
    score_K, rank_K = vector(0.5, 2.0, -1.0), torch.tensor([1, 0, 2])
    expected = (pairwise(score_K[1], score_K[0]) + pairwise(score_K[1], score_K[2]) + pairwise(score_K[0], score_K[2])) / 3
    torch.testing.assert_close(ranked(score_K, rank_K), expected)
    tied = ranked(score_K, torch.tensor([0, 0, 1]))
    torch.testing.assert_close(tied, (pairwise(score_K[0], score_K[2]) + pairwise(score_K[1], score_K[2])) / 2)


@given(gap=scores, m=st.sampled_from(LLAMA2_MARGINS_LARGE + LLAMA2_MARGINS_SMALL))
@FEW
def test_llama2s_margin_is_subtracted_inside_the_sigmoid(gap: float, m: float) -> None:
    chosen_B, rejected_B = vector(gap, grad=True), vector(0.0, grad=True)
    loss_B = margin(chosen_B, rejected_B, vector(m))
    up, down = torch.autograd.grad(loss_B.sum(), (chosen_B, rejected_B))
    assert float(loss_B.detach()) == pytest.approx(math.log1p(math.exp(-(gap - m))))
    assert float(up) == pytest.approx(-sigmoid(-(gap - m))) and float(down) == pytest.approx(sigmoid(-(gap - m)))


@given(gap=scores, q=st.floats(0, 1))
@FEW
def test_soft_labels_have_gradient_sigmoid_of_the_gap_minus_q(gap: float, q: float) -> None:
    first_B = vector(gap, grad=True)
    loss_B = soft_label(first_B, vector(0.0), vector(q))
    assert float(torch.autograd.grad(loss_B.sum(), first_B)[0]) == pytest.approx(sigmoid(gap) - q, abs=1e-12)
    swapped_B = soft_label(vector(0.0), vector(gap), vector(1 - q))
    torch.testing.assert_close(swapped_B, loss_B.detach())


@given(beta=st.floats(0.01, 2), shift=st.floats(-3, 3))
@FEW
def test_primes_reward_model_moves_every_token_of_a_right_answer_up_by_beta_times_one_minus_sigmoid(
    beta: float, shift: float
) -> None:
    """Sequence 0 (right) has sum of log-ratios 0.1 + shift, sequence 1 (wrong) has 0.3; the reference stays where it is."""
    logp_T = vector(-1.0 + shift, -0.5, -0.7, grad=True)
    reference_T = vector(-1.0, -0.6, -1.0, grad=True)
    loss_S = implicit_outcome(logp_T, reference_T, torch.tensor([0, 0, 1]), vector(1.0, 0.0), beta=beta)
    right, wrong = sigmoid(beta * (0.1 + shift)), sigmoid(beta * 0.3)
    assert loss_S.tolist() == pytest.approx([-math.log(right), -math.log(1 - wrong)])
    found_T, none = torch.autograd.grad(loss_S.sum(), (logp_T, reference_T), allow_unused=True)
    assert found_T.tolist() == pytest.approx([-beta * (1 - right)] * 2 + [beta * wrong]) and none is None


def test_option_labels_are_normalised_over_the_two_options_only() -> None:
    first_B, second_B = vector(-3.0, -9.0), vector(-4.0, -7.0)
    label_B = option_label(first_B, second_B)
    total = first_B.exp() + second_B.exp()
    torch.testing.assert_close(label_B, first_B.exp() / total)
    torch.testing.assert_close(label_B + option_label(second_B, first_B), torch.ones(2, dtype=F64))


def test_only_reasoned_labels_are_clamped_and_clamping_is_idempotent() -> None:
    label_B = vector(0.05, 0.5, 0.97)
    clamped_B = clamp_reasoned_label(label_B, low=0.4, high=0.6)
    assert clamped_B.tolist() == [0.4, 0.5, 0.6]
    assert torch.equal(clamp_reasoned_label(clamped_B, low=0.4, high=0.6), clamped_B)
    assert float(option_label(vector(-0.05), vector(-3.0))) > 0.9


@pytest.mark.parametrize(
    "call",
    [
        lambda: listwise(vector(1, 2), torch.tensor([True, True])),
        lambda: listwise(vector(1, 2), torch.tensor([False, False])),
        lambda: ranked(vector(1, 2), torch.tensor([0, 0])),
        lambda: Dpo(beta=0),
        lambda: implicit_outcome(vector(1, 2), vector(1), torch.tensor([0, 1]), vector(1, 0), beta=0.05),
        lambda: implicit_outcome(vector(1, 2), vector(1, 2), torch.tensor([0, 2]), vector(1, 0), beta=0.05),
        lambda: implicit_outcome(vector(1, 2, 3), vector(1, 2, 3), torch.tensor([0, 1, 0]), vector(1, 0), beta=0.05),
        lambda: implicit_outcome(vector(1, 2), vector(1, 2), torch.tensor([0, 1]), vector(1, 2), beta=0.05),
        lambda: Llama3Dpo(nll_reduction="median", nll_on="all"),
        lambda: Responses(
            logp_T=vector(1), reference_T=vector(1, 2), pair_T=torch.tensor([0]), format_T=torch.tensor([False]), pairs=1
        ),
    ],
)
def test_pairs_that_do_not_exist_are_refused(call) -> None:
    with pytest.raises(ObjectiveError):
        call()
