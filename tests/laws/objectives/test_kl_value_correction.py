"""KL estimators, critic losses, off-policy weights, the entropy coefficient."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import F64
from torch import Tensor

from rollbook.objectives import ObjectiveError, correction, kl, sequence_weight
from rollbook.objectives.diagnostics import effective_sample_size
from rollbook.objectives.terms import AdaptiveEntropy, KlTerm, entropy_bonus, positive_nll, ptx
from rollbook.objectives.value import clipped_value_loss, squared_value_loss

FEW = settings(max_examples=50, deadline=None)
nats = st.floats(-8, 8)


def scalar(x: float, *, grad: bool = False) -> Tensor:
    return torch.tensor([x], dtype=F64, requires_grad=grad)


def gradient(function, x: float) -> float:
    at = scalar(x, grad=True)
    return float(torch.autograd.grad(function(at).sum(), at)[0])


# KL


@given(p=nats, q=nats)
@FEW
def test_kl_gradients_are_one_d_and_one_minus_exp_minus_d(p: float, q: float) -> None:
    d = p - q
    assert gradient(lambda x: kl.k1(x, scalar(q)), p) == 1
    assert gradient(lambda x: kl.k2(x, scalar(q)), p) == pytest.approx(d)
    assert gradient(lambda x: kl.k3(x, scalar(q)), p) == pytest.approx(1 - math.exp(-d), abs=1e-9)


@given(p=nats, anchor=nats, q=nats)
@FEW
def test_the_unbiased_kl_has_gradient_rho_times_d(p: float, anchor: float, q: float) -> None:
    rho, d = math.exp(p - anchor), p - q
    assert gradient(lambda x: kl.unbiased(x, scalar(anchor), scalar(q)), p) == pytest.approx(rho * d, rel=1e-8, abs=1e-8 * rho)
    assert float(kl.unbiased(scalar(p), scalar(anchor), scalar(q))) == pytest.approx(rho * float(kl.k3(scalar(p), scalar(q))))


@given(p=nats, q=nats)
@FEW
def test_k3_is_never_negative_and_k1_may_be(p: float, q: float) -> None:
    assert float(kl.k3(scalar(p), scalar(q))) >= 0
    assert float(kl.k1(scalar(p), scalar(q))) == p - q


def test_k1_and_k3_are_unbiased_on_policy_and_k2s_gradient_is_the_true_kls() -> None:
    """Enumerating a vocabulary of four: E[k1] = E[k3] = KL, E[d k2 dlogp] = dKL."""
    logits = torch.tensor([0.3, -1.0, 0.5, 0.1], dtype=F64, requires_grad=True)
    log_p, log_q = logits.log_softmax(0), torch.tensor([0.1, 0.2, -0.5, 0.4], dtype=F64).log_softmax(0)
    true = (log_p.exp() * (log_p - log_q)).sum()
    p = log_p.exp().detach()
    for estimate in (kl.k1, kl.k3):
        assert float((p * estimate(log_p, log_q)).sum().detach()) == pytest.approx(float(true.detach()))
    (expected,) = torch.autograd.grad(true, logits, retain_graph=True)
    (sampled,) = torch.autograd.grad((p * kl.k2(log_p, log_q)).sum(), logits, retain_graph=True)
    torch.testing.assert_close(sampled, expected)
    (nothing,) = torch.autograd.grad((p * kl.k1(log_p, log_q)).sum(), logits)
    torch.testing.assert_close(nothing, torch.zeros_like(nothing), atol=1e-12, rtol=0)


def test_the_reference_receives_no_gradient_and_k1_is_not_offered_as_a_loss() -> None:
    reference = scalar(-1.0, grad=True)
    for value in (
        kl.k2(scalar(-2.0, grad=True), reference),
        kl.k3(scalar(-2.0, grad=True), reference),
        kl.unbiased(scalar(-2.0, grad=True), reference, reference),
    ):
        assert torch.autograd.grad(value.sum(), reference, allow_unused=True)[0] is None
    with pytest.raises(ObjectiveError):
        KlTerm(estimator="k1", coefficient=0.1, aggregate="token_mean")


# critic


@given(v=nats, old=nats, target=nats, clip=st.floats(0.01, 3), factor=st.sampled_from([0.5, 1.0]))
@FEW
def test_the_clipped_value_loss_is_the_larger_square_and_stops_where_the_clip_is_larger(
    v: float, old: float, target: float, clip: float, factor: float
) -> None:
    plain = (v - target) ** 2
    bounded = (old + max(-clip, min(clip, v - old)) - target) ** 2
    at = scalar(v, grad=True)
    loss = clipped_value_loss(at, scalar(old), scalar(target), clip=clip, factor=factor)
    assert float(loss.detach()) == pytest.approx(factor * max(plain, bounded))
    expected = 0.0 if abs(v - old) > clip and bounded > plain else 2 * factor * (v - target)
    assert float(torch.autograd.grad(loss.sum(), at)[0]) == pytest.approx(expected, abs=1e-12)
    assert gradient(lambda x: squared_value_loss(x, scalar(target), factor=factor), v) == pytest.approx(2 * factor * (v - target))


def test_a_value_beyond_the_band_on_the_good_side_gets_no_gradient() -> None:
    assert gradient(lambda x: clipped_value_loss(x, scalar(0.9), scalar(2.0), clip=0.2, factor=0.5), 1.4) == 0


def test_the_factor_one_half_must_be_said() -> None:
    with pytest.raises(TypeError):
        squared_value_loss(scalar(1.0), scalar(0.0))


# corrections


SEQ = torch.tensor([0, 0, 1])


def mismatch(*log_c: float) -> tuple[Tensor, Tensor]:
    """Anchor and behavior with the given log c."""
    behavior_T = torch.full((len(log_c),), -2.0, dtype=F64)
    return behavior_T + torch.tensor(log_c, dtype=F64), behavior_T


@given(log_c=st.lists(st.floats(-3, 3), min_size=3, max_size=3), cap=st.floats(0.5, 4))
@FEW
def test_each_correction_is_its_printed_weight(log_c: list[float], cap: float) -> None:
    anchor_T, behavior_T = mismatch(*log_c)
    c = [math.exp(x) for x in (anchor_T - behavior_T).tolist()]
    product = [c[0] * c[1]] * 2 + [c[2]]
    assert correction.token_tis(anchor_T, behavior_T, cap=cap).tolist() == pytest.approx([min(x, cap) for x in c])
    assert correction.icepop(anchor_T, behavior_T, low=0.5, high=1.0).tolist() == pytest.approx(
        [x if 0.5 <= x <= 2 else 0 for x in c]
    )
    assert correction.sequence_tis(anchor_T, behavior_T, SEQ, cap=cap).tolist() == pytest.approx([min(x, cap) for x in product])
    assert correction.sequence_mis(anchor_T, behavior_T, SEQ, cap=cap).tolist() == pytest.approx(
        [x if x <= cap else 0 for x in product]
    )
    geometric = [math.sqrt(product[0])] * 2 + [c[2]]
    assert correction.geometric_band(anchor_T, behavior_T, SEQ, low=0.3, high=0.5).tolist() == [
        float(0.7 <= x <= 1.5) for x in geometric
    ]


@given(log_c=st.floats(-2, 2), cap=st.floats(0.5, 4))
@FEW
def test_on_a_sequence_of_one_token_sequence_weights_are_token_weights(log_c: float, cap: float) -> None:
    anchor_T, behavior_T = mismatch(log_c)
    lone = torch.tensor([0])
    assert torch.equal(
        correction.sequence_tis(anchor_T, behavior_T, lone, cap=cap), correction.token_tis(anchor_T, behavior_T, cap=cap)
    )
    band = {"low": 0.5, "high": 0.5}
    inside_T = correction.geometric_band(anchor_T, behavior_T, lone, **band) > 0
    assert torch.equal(inside_T, correction.icepop(anchor_T, behavior_T, **band) > 0)


def test_an_infinite_cap_is_the_plain_importance_weight() -> None:
    anchor_T, behavior_T = mismatch(2.0, -3.0, 0.5)
    torch.testing.assert_close(correction.token_tis(anchor_T, behavior_T, cap=math.inf), (anchor_T - behavior_T).exp())


def test_icepops_band_at_equality_is_kept() -> None:
    anchor_T, behavior_T = mismatch(0.25, -0.25, 0.0)
    c = (anchor_T - behavior_T).exp().tolist()
    kept_T = correction.icepop(anchor_T, behavior_T, low=1 - c[1], high=c[0] - 1)
    assert kept_T.tolist() == c
    assert correction.icepop(anchor_T, behavior_T, low=1 - c[1] - 1e-9, high=c[0] - 1 - 1e-9).tolist() == [0, 0, 1]


def test_tokens_that_a_band_rejects_leave_the_denominator_only_when_it_is_made_of_the_kept_ones() -> None:
    """Sequences of 3 and 1 tokens, one of the first rejected: a token mean over 4 tokens, or over the 3 that are kept."""
    anchor_T, behavior_T = mismatch(0.0, 2.0, 0.0, 0.0)
    kept_T, seq_T = correction.icepop(anchor_T, behavior_T, low=0.5, high=1.0), torch.tensor([0, 0, 0, 1])
    length_S = torch.tensor([3, 1])
    kept_S = torch.zeros_like(length_S).index_add(0, seq_T, (kept_T != 0).long())
    for counted_S, expected in ((length_S, 3 / 4), (kept_S, 1.0)):
        weight_S = sequence_weight("token_mean", counted_S, None)
        assert float((weight_S[seq_T] * kept_T).sum()) == pytest.approx(expected)


def test_products_of_many_ratios_do_not_overflow() -> None:
    anchor_T, behavior_T = mismatch(*[5.0] * 400)
    seq_T = torch.zeros(400, dtype=torch.int64)
    for weight_T in (
        correction.sequence_tis(anchor_T.float(), behavior_T.float(), seq_T, cap=2.0),
        correction.sequence_mis(anchor_T.float(), behavior_T.float(), seq_T, cap=2.0),
    ):
        assert bool(weight_T.isfinite().all())


@given(advantage=st.sampled_from([1.0, -1.0, 0.0]), drift=st.floats(-1, 1), delta=st.floats(0, 0.5))
@FEW
def test_the_sequence_mask_rejects_only_negative_sequences_that_drifted_down(
    advantage: float, drift: float, delta: float
) -> None:
    logp_T = torch.tensor([-1.0, -2.0], dtype=F64)
    behavior_T = logp_T + torch.tensor([2 * drift, 0.0], dtype=F64)
    seq_T = torch.tensor([0, 0])
    weight_T = correction.sequence_mask(logp_T, behavior_T, torch.full((2,), advantage, dtype=F64), seq_T, delta=delta)
    measured = float((behavior_T - logp_T).sum() / 2)
    assert weight_T.tolist() == [0.0 if advantage < 0 and measured > delta else 1.0] * 2


def test_weights_carry_no_gradient() -> None:
    anchor_T = torch.tensor([-1.0, -2.0, -1.5], dtype=F64, requires_grad=True)
    behavior_T = torch.tensor([-1.1, -2.1, -1.4], dtype=F64, requires_grad=True)
    advantage_T = torch.ones(3, dtype=F64)
    weights = [
        correction.token_tis(anchor_T, behavior_T, cap=2.0),
        correction.icepop(anchor_T, behavior_T, low=0.5, high=1.0),
        correction.sequence_tis(anchor_T, behavior_T, SEQ, cap=2.0),
        correction.sequence_mis(anchor_T, behavior_T, SEQ, cap=2.0),
        correction.geometric_band(anchor_T, behavior_T, SEQ, low=0.5, high=1.0),
        correction.sequence_mask(anchor_T, behavior_T, advantage_T, SEQ, delta=0.1),
    ]
    assert not any(weight_T.requires_grad for weight_T in weights)


def test_equal_weights_have_a_full_effective_sample_size() -> None:
    assert float(effective_sample_size(torch.full((7,), 0.3))) == pytest.approx(1)
    assert float(effective_sample_size(torch.tensor([1.0, 0, 0, 0]))) == pytest.approx(0.25)


# other terms


def test_skyworks_coefficient_rises_below_the_target_and_falls_above() -> None:
    rule = AdaptiveEntropy(step=0.005, maximum=0.012)
    alpha, path = 0.0, []
    for entropy in (0.1, 0.1, 0.1, 0.3, 0.3, 0.3, 0.3, 0.2):
        alpha = rule.advance(alpha, entropy)
        path.append(alpha)
    assert path == pytest.approx([0.005, 0.010, 0.012, 0.007, 0.002, 0.0, 0.0, 0.0])
    assert rule.coefficient(0.01, 0.2) == 0.01 and rule.coefficient(0.01, 0.2000001) == 0.0
    assert AdaptiveEntropy(step=1.0, maximum=None).advance(5.0, 0.0) == 6.0


def test_the_entropy_bonus_raises_entropy_with_gradient_minus_p_log_p_plus_h() -> None:
    logits = torch.tensor([[0.3, -1.0, 0.5]], dtype=F64, requires_grad=True)
    log_p = logits.log_softmax(-1)
    entropy_T = -(log_p.exp() * log_p).sum(-1)
    (gradient_TV,) = torch.autograd.grad(entropy_bonus(entropy_T).sum(), logits)
    expected = log_p.exp() * (log_p + entropy_T[:, None])
    torch.testing.assert_close(gradient_TV, expected.detach())


def test_nll_terms_have_gradient_minus_one() -> None:
    assert gradient(positive_nll, -2.0) == gradient(ptx, -2.0) == -1


def test_the_gradient_of_the_unbiased_kl_is_rho_d_in_single_precision_too():
    d_T = torch.linspace(-25.0, 3.0, 57)
    logp_T = (d_T - 30.0).requires_grad_(True)
    anchor_T, reference_T = logp_T.detach() - math.log(0.99), logp_T.detach() - d_T
    kl.unbiased(logp_T, anchor_T, reference_T).sum().backward()
    torch.testing.assert_close(logp_T.grad, 0.99 * d_T, rtol=1e-5, atol=1e-5)
