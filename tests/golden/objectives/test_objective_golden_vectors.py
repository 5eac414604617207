"""Cases worked by hand: the golden vectors of the mechanism specification (Appendix G), value and gradient to 1e-6.

Two sequences of 3 and 4 action tokens. `value` is J, except for penalties and Kimi's square, where it is the loss itself.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import rollbook.objectives as ro
from rollbook.objectives import ActionTokens, credit, kl, sequence_weight
from rollbook.objectives.value import clipped_value_loss

F64 = torch.float64
torch.set_num_threads(1)


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


ANCHOR = vector(-1.2, -0.4, -2, -0.7, -1.5, -0.3, -2.5)
PROXIMAL = ANCHOR + vector(0.1, -0.2, 0.3, 0.05, 0.2, -0.4, 0)
REFERENCE = vector(-1.1, -0.6, -1.9, -0.8, -1.2, -0.5, -2)
TOKENS = ActionTokens(
    logp_T=vector(-1, -0.9, -1.6, -0.65, -1.1, -1, -2.45),
    advantage_T=vector(1, 1, 1, -0.5, -0.5, -0.5, -0.5),
    anchor_T=ANCHOR,
    behavior_T=ANCHOR,
    reference_T=REFERENCE,
    teacher_T=REFERENCE,
    seq_T=torch.tensor([0, 0, 0, 1, 1, 1, 1]),
    length_S=torch.tensor([3, 4]),
)
DECOUPLED = replace(TOKENS, anchor_T=PROXIMAL)
KIMI = replace(TOKENS, advantage_T=vector(0.5, 0.5, 0.5, -0.5, -0.5, -0.5, -0.5))  # rewards [1, 0] less their mean
UNEQUAL = replace(TOKENS, advantage_T=vector(0.8, 0.8, 0.8, -0.3, -0.3, -0.3, -0.3))
LOG_BOUNDS = {"bound_on": "log_ratio", "log_low": -0.3, "log_high": 0.35, "ratio_to": "anchor", "tau": 0.3}
AS_RATIO = {"bound_on": "ratio", "low": 1 - math.exp(-0.3), "high": math.exp(0.35) - 1, "ratio_to": "anchor", "tau": 0.3}

# case: objective, tokens, aggregate, value of J, d J / d logp
OBJECTIVES = {
    "ppo_clip(.2,.28) seqmean": (
        ro.Ppo(low=0.2, high=0.28), TOKENS, "sequence_mean", 0.24334097,
        [0.203567, 0.101088, 0.0, -0.065704, -0.093239, 0.0, -0.065704],
    ),
    "ppo_clip(.2,.28) tokmean": (
        ro.Ppo(low=0.2, high=0.28), TOKENS, "token_mean", 0.13010714,
        [0.174486, 0.086647, 0.0, -0.075091, -0.106559, 0.0, -0.075091],
    ),
    "drgrpo const16": (
        ro.DrGrpo(), TOKENS, "fixed_length", 0.02529210, [0.0, 0.018954, 0.0, -0.016426, -0.02331, 0.0, -0.016426]
    ),
    "gspo wide clip": (
        ro.Gspo(low=0.9, high=9), TOKENS, "sequence_mean", 0.27914020, [0.172316] * 3 + [-0.059452] * 4
    ),
    "gspo_token wide clip": (
        ro.GspoToken(low=0.9, high=9), TOKENS, "sequence_mean", 0.27914020, [0.172316] * 3 + [-0.059452] * 4
    ),
    "gspo, its own band: both sequences outside": (
        ro.Gspo(), TOKENS, "sequence_mean", 0.5 * (1.0004 * 1 - 0.9997 * 0.5), [0.0] * 7
    ),
    "sapo": (
        ro.Sapo(), TOKENS, "sequence_mean", 0.57044214,
        [0.201093, 0.097275, 0.234188, -0.065657, -0.087289, -0.028966, -0.065657],
    ),
    "cispo [0,1.28]": (
        ro.Cispo(low=1, high=0.28), TOKENS, "token_mean", -0.17621679,
        [0.174486, 0.086647, 0.182857, -0.075091, -0.091429, -0.03547, -0.075091],
    ),
    "sao (.7,6)": (
        ro.Sao(low=0.3, high=5), TOKENS, "token_mean", -0.16547836,
        [0.174486, 0.0, 0.213118, -0.075091, -0.106559, 0.0, -0.075091],
    ),
    "kimi sq loss": (
        ro.KimiK15(tau=0.3, scale="squared"), KIMI, "sequence_sum", -0.20725000, [0.141] * 3 + [-0.132] * 4
    ),
    "k2.5 (mask on log-ratio, tau all)": (
        ro.KimiK25(tau_mask="all", **LOG_BOUNDS), KIMI, "token_mean", -0.11029567,
        [0.0701, 0.042857, -0.034286, -0.079377, -0.034286, 0.06, -0.079377],
    ),
    "k2.5 unequal, masked, tau all": (
        ro.KimiK25(tau_mask="all", **LOG_BOUNDS), UNEQUAL, "token_mean", 0.00212279,
        [0.122446, 0.042857, -0.034286, -0.04934, -0.034286, 0.06, -0.04934],
    ),
    "k2.5 unequal, masked, tau kept": (
        ro.KimiK25(tau_mask="kept", **LOG_BOUNDS), UNEQUAL, "token_mean", 0.04755136,
        [0.122446, 0.0, 0.0, -0.04934, 0.0, 0.0, -0.04934],
    ),
    "k2.5 unequal, clipped value, tau all": (
        ro.KimiK25(tau_mask="all", **AS_RATIO), UNEQUAL, "token_mean", 0.15640035,
        [0.122446, 0.042857, -0.034286, -0.04934, -0.034286, 0.06, -0.04934],
    ),
    "decoupled ppo": (
        ro.DecoupledPpo(weight_rule="none"), DECOUPLED, "token_mean", 0.17920666,
        [0.174486, 0.086647, 0.213118, -0.075091, -0.106559, 0.0, -0.075091],
    ),
    "mopd (objective)": (
        ro.Mopd(), TOKENS, "sequence_mean", 0.00085547,
        [-0.020357, 0.030327, -0.074591, -0.019711, -0.018648, 0.0, 0.059134],
    ),
}  # fmt: skip

PENALTIES = {
    "k1": (kl.k1, -0.08571429, [0.142857] * 7),
    "k2": (kl.k2, 0.04821429, [0.014286, -0.042857, 0.042857, 0.021429, 0.014286, -0.071429, -0.064286]),
    "k3": (kl.k3, 0.05401333, [0.013595, -0.04998, 0.037026, 0.019899, 0.013595, -0.092674, -0.081187]),
    "V3.2 unbiased rho*k3": (
        lambda logp_T, reference_T: kl.unbiased(logp_T, ANCHOR.to(logp_T.dtype), reference_T),
        0.04482107,
        [0.017449, -0.025994, 0.063935, 0.022527, 0.021312, -0.03547, -0.067582],
    ),
}


def as_dtype(tokens: ActionTokens, dtype: torch.dtype) -> ActionTokens:
    names = ("logp_T", "advantage_T", "anchor_T", "behavior_T", "reference_T", "teacher_T")
    return replace(tokens, **{name: getattr(tokens, name).to(dtype) for name in names})


@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-6), (torch.float32, 1e-4)], ids=["fp64", "fp32"])
@pytest.mark.parametrize("case", OBJECTIVES)
def test_objective_value_and_gradient(case: str, dtype: torch.dtype, tolerance: float) -> None:
    objective, tokens, how, value, gradient = OBJECTIVES[case]
    tokens = as_dtype(tokens, dtype)
    weight_S = sequence_weight(how, tokens.length_S, torch.tensor([0, 0]), max_length=16)
    logp_T = tokens.logp_T.clone().requires_grad_()
    loss = (weight_S[tokens.seq_T] * objective(replace(tokens, logp_T=logp_T)).loss_T).sum()
    (gradient_T,) = torch.autograd.grad(-loss, logp_T)
    assert float(-loss.detach()) == pytest.approx(value, abs=tolerance)
    assert gradient_T.tolist() == pytest.approx(gradient, abs=tolerance)


def test_the_undetached_sao_is_a_different_gradient() -> None:
    """The golden row of the bug: without a stop-gradient on f the first token gets f A (1 + logp) = 0."""
    logp_T = TOKENS.logp_T.clone().requires_grad_()
    r_T = (logp_T - ANCHOR).exp()
    f_T = torch.where((r_T > 0.7) & (r_T < 6), r_T, 0)
    value = (f_T * TOKENS.advantage_T * logp_T).sum() / 7
    (wrong_T,) = torch.autograd.grad(value, logp_T)
    assert wrong_T.tolist() == pytest.approx([0.0, 0.0, -0.127871, -0.026282, 0.010656, 0.0, 0.108882], abs=1e-6)
    assert value.item() == pytest.approx(-0.16547836, abs=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-6), (torch.float32, 1e-4)], ids=["fp64", "fp32"])
@pytest.mark.parametrize("case", PENALTIES)
def test_kl_value_and_gradient(case: str, dtype: torch.dtype, tolerance: float) -> None:
    estimate, value, gradient = PENALTIES[case]
    logp_T = TOKENS.logp_T.to(dtype, copy=True).requires_grad_()
    loss = estimate(logp_T, REFERENCE.to(dtype)).mean()
    (gradient_T,) = torch.autograd.grad(loss, logp_T)
    assert loss.dtype == dtype and float(loss.detach()) == pytest.approx(value, abs=tolerance)
    assert gradient_T.tolist() == pytest.approx(gradient, abs=tolerance)


def test_gspo_sequence_ratios() -> None:
    from rollbook.objectives.ratios import sequence_ratio

    assert sequence_ratio(TOKENS.logp_T, ANCHOR, TOKENS).tolist() == pytest.approx([1.033895, 0.951229], abs=1e-6)


def test_value_clip() -> None:
    value_T = vector(0.5, 1.4, -0.2).requires_grad_()
    loss = clipped_value_loss(value_T, vector(0.4, 0.9, 0.3), vector(1, 2, -1), clip=0.2, factor=0.5).mean()
    (gradient_T,) = torch.autograd.grad(loss, value_T)
    assert float(loss.detach()) == pytest.approx(0.378333, abs=1e-6)
    assert gradient_T.tolist() == pytest.approx([-0.166667, 0, 0], abs=1e-6)


def test_skip_observation_gae() -> None:
    result = credit.gae(
        vector(0, 0, 0, 1), vector(0.2, 0.3, 0.5, 0.1), torch.tensor([0, 0, 0, 0]), gamma=1.0, lam=0.9
    )
    assert result.advantage_T.tolist() == pytest.approx([0.6121, 0.569, 0.41, 0.9], abs=1e-9)


def test_leave_one_out() -> None:
    advantage_S = credit.leave_one_out(vector(1, 0, 0, 1, 1), torch.tensor([4, 4, 4, 4, 4]))
    assert advantage_S.tolist() == pytest.approx([0.5, -0.75, -0.75, 0.5, 0.5])


def test_length_adaptive_lambda() -> None:
    length_S = torch.tensor([5, 20, 1000])
    assert credit.length_adaptive_lambda(length_S, alpha=0.05, floor=None).tolist() == pytest.approx([-3, 0, 0.98])
    expected = [0.866667, 0.966667, 0.999333]
    assert credit.length_adaptive_lambda(length_S, alpha=1.5, floor=None).tolist() == pytest.approx(expected, abs=1e-6)


def test_prime_leave_one_out_paper_and_code() -> None:
    process_T = vector(0.1, 0.2, 0.3, -0.1, 0, 0.2, 0.05)
    seq_T, group_S = torch.tensor([0, 0, 1, 2, 2, 2, 3]), torch.zeros(4, dtype=torch.int64)
    paper_T = credit.token_leave_one_out_paper(process_T, seq_T, group_S)
    code_T = credit.token_leave_one_out_code(process_T, seq_T, group_S)
    assert paper_T[:2].tolist() == pytest.approx([-0.0278, 0.0722], abs=1e-4)
    assert code_T[:2].tolist() == pytest.approx([-0.0444, 0.0889], abs=1e-4)
    assert float(paper_T[:2].mean()) == pytest.approx(0.02222, abs=1e-5)
    assert float(code_T[:2].mean()) == pytest.approx(0.02222, abs=1e-5)
