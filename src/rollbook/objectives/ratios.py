"""Shared parts of policy objectives: guarded ratios, the clipped surrogate, weighted log-likelihood.

Suffixes: T tokens, S sequences. No hyper-parameter has a default here.

Bounds are the double-precision numbers 1 - low and 1 + high, rounded to the precision of the ratio they are compared with; open
or closed is about *those* numbers. They are the printed decimals where low and high are sums of powers of two (0.25, 0.5, 5).
Elsewhere they can lie one unit off: 1 - 0.8 is 0.19999999999999996, so that in fp64 a ratio of 0.2 is still inside an open
interval with low = 0.8, while in fp32 the bound rounds to 0.2 and that ratio is outside.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from rollbook.objectives.checks import check_bounds, check_float, check_ids, check_no_infinity, check_number, check_same_shape
from rollbook.objectives.core import ActionTokens, TokenLoss, mean_S
from rollbook.objectives.errors import ObjectiveError

LOG_LIMIT: Final = 20.0
"""Nats. e^20 = 4.9e8 is the slope of the guard, the most that a ratio multiplies a gradient by. Squared, as Adam does, it is
2.4e17, which leaves fp32 (3.4e38) room for what else multiplies or sums it, up to 1e10. The value keeps growing, by e^20 a nat;
its own square fits fp32 up to 1e10 nats."""


def exp_guarded(log_T: Tensor) -> Tensor:
    """e^x up to x = LOG_LIMIT, bit for bit; beyond it the tangent e^20 (1 + x - 20), whose gradient stays e^20.

    A plain exp overflows and then multiplies a zero gradient by infinity; a clamp would lose the gradient altogether. At -inf
    value and gradient are 0; at +inf the value is infinite, which `ActionTokens.read` and the corrections refuse beforehand.
    """
    return torch.exp(log_T.clamp(max=LOG_LIMIT)) * (1 + torch.relu(log_T - LOG_LIMIT))


def expm1_guarded(log_T: Tensor) -> Tensor:
    """e^x - 1 up to x = LOG_LIMIT; beyond it the tangent."""
    tangent = float(torch.tensor(LOG_LIMIT, dtype=torch.float64).exp())
    return torch.expm1(log_T.clamp(max=LOG_LIMIT)) + tangent * torch.relu(log_T - LOG_LIMIT)


def beyond_guard(log_T: Tensor) -> Tensor:
    """Where the guard changed a value; counted by the diagnostics."""
    return log_T > LOG_LIMIT


def ratio(logp_T: Tensor, other_T: Tensor) -> Tensor:
    """pi / pi_other of the sampled token = exp(logp - other)."""
    return exp_guarded(logp_T - other_T)


def sequence_ratio(logp_T: Tensor, other_T: Tensor, tokens: ActionTokens) -> Tensor:
    """Length-normalised ratio s_i = exp((1/L_i) sum_t (logp - other)) per sequence (GSPO)."""
    return exp_guarded(mean_S(logp_T - other_T, tokens))


def clipped_surrogate(ratio_T: Tensor, advantage_T: Tensor, *, low: float, high: float) -> TokenLoss:
    """-min(rho A, clip(rho, 1-low, 1+high) A). Gradient -rho A, or 0 iff (A>0 and rho>1+high) or (A<0 and rho<1-low).

    At equality the token keeps its gradient: the clip is an inclusive no-op there.
    """
    check_bounds("clipped_surrogate", low=low, high=high)
    clipped_T = ((advantage_T > 0) & (ratio_T > 1 + high)) | ((advantage_T < 0) & (ratio_T < 1 - low))
    bounded_T = ratio_T.detach().clamp(1 - low, 1 + high)
    return TokenLoss(-torch.where(clipped_T, bounded_T, ratio_T) * advantage_T, clipped_T)


def dual_clipped_surrogate(ratio_T: Tensor, advantage_T: Tensor, *, low: float, high: float, dual: float) -> TokenLoss:
    """PPO dual clip: for A<0, -max(min(rho A, clip(rho) A), dual A); the gradient is also 0 when rho > dual.

    `dual` > 1 bounds the loss of a token that became much likelier although it was bad (artifacts use 3).
    """
    plain = clipped_surrogate(ratio_T, advantage_T, low=low, high=high)
    check_dual(dual, high)
    over_T = (advantage_T < 0) & (ratio_T > dual)
    return TokenLoss(torch.where(over_T, -dual * advantage_T, plain.loss_T), plain.clipped_T | over_T)


def check_dual(dual: float, high: float) -> None:
    """Refuse a dual bound inside the clip."""
    check_number("the dual clip", "dual", dual)
    if not dual > 1 + high:
        raise ObjectiveError(
            "the dual clip must exceed 1 + high",
            got=f"dual = {dual}, 1 + high = {1 + high}",
            why="it bounds ratios that the clip leaves alone; at or below 1 it would cut on-policy tokens",
            fix="set dual above 1 + high (artifacts use 3), or leave dual clipping off",
        )


def weighted_logp(weight_T: Tensor, logp_T: Tensor) -> Tensor:
    """-sg[weight] log pi: gradient -weight on each token. The value contains log pi and is no monitor.

    Where log pi is -inf the value is infinite, and 0 where the weight is 0; the gradient is -weight there too.
    """
    weight_T = weight_T.detach()
    return torch.where(weight_T == 0, torch.zeros_like(logp_T), -weight_T * logp_T)


def weighted(weight_T: Tensor, loss: TokenLoss) -> TokenLoss:
    """A loss per token times a constant weight; a token of weight 0 has loss 0, no gradient, and counts as clipped."""
    none_T = weight_T == 0
    return TokenLoss(torch.where(none_T, torch.zeros_like(loss.loss_T), weight_T * loss.loss_T), loss.clipped_T | none_T)


def only(inside_T: Tensor, value_T: Tensor) -> Tensor:
    """The value where inside, 0 outside. NaN stays NaN: what was not measured is not outside."""
    return torch.where(inside_T | value_T.isnan(), value_T, torch.zeros_like(value_T))


def inside_open(ratio_T: Tensor, *, low: float, high: float) -> Tensor:
    """1-low < ratio < 1+high, strict on both sides (SAO, GLM-5)."""
    check_bounds("inside_open", low=low, high=high)
    return (ratio_T > 1 - low) & (ratio_T < 1 + high)


def inside_closed(ratio_T: Tensor, *, low: float, high: float) -> Tensor:
    """1-low <= ratio <= 1+high (IcePop, MOPD, K2.5)."""
    check_bounds("inside_closed", low=low, high=high)
    return (ratio_T >= 1 - low) & (ratio_T <= 1 + high)


def interpolated_anchor(
    logp_T: Tensor, behavior_T: Tensor, *, behavior_version_T: Tensor, anchor_version: int, current_version: int
) -> Tensor:
    """A-3PO's proximal policy without a forward pass: behavior + alpha (logp - behavior), detached (2512.06547, artifact).

    alpha = (v_anchor - v_behavior) / (v_current - v_behavior), per token; 0 for a token sampled by the current version. Versions
    are whole numbers, a token's own no later than the anchor's, the anchor's no later than the current one.
    """
    check_float("interpolated_anchor", logp_T=logp_T, behavior_T=behavior_T)
    check_same_shape("interpolated_anchor", logp_T=logp_T, behavior_T=behavior_T, behavior_version_T=behavior_version_T)
    check_no_infinity("interpolated_anchor", behavior_T=behavior_T)
    _check_versions(behavior_version_T, anchor_version, current_version)
    lag_T = (current_version - behavior_version_T).to(logp_T.dtype)
    share_T = (anchor_version - behavior_version_T).to(logp_T.dtype) / torch.where(lag_T == 0, torch.ones_like(lag_T), lag_T)
    alpha_T = torch.where(lag_T == 0, torch.zeros_like(lag_T), share_T)
    moved_T = behavior_T + alpha_T * (logp_T - behavior_T)
    return torch.where(alpha_T == 0, behavior_T, moved_T).detach()


def _check_versions(behavior_version_T: Tensor, anchor_version: object, current_version: object) -> None:
    """Refuse versions that are out of order: alpha would leave 0 .. 1."""
    check_ids("interpolated_anchor", behavior_version_T=behavior_version_T)
    if type(anchor_version) is int and type(current_version) is int and anchor_version <= current_version < 2**53:
        if not bool(((behavior_version_T > anchor_version) & (behavior_version_T != current_version)).any()):
            return
    raise ObjectiveError(
        "interpolated_anchor needs whole versions in order: behavior, anchor, current",
        got=f"{behavior_version_T.tolist()}, {anchor_version!r}, {current_version!r}",
        why="the anchor lies between the policy that sampled and the current one",
        fix="pass the version that sampled each token, the anchor's and the trained policy's, counted alike",
    )
