"""Estimators of KL(pi || reference) per sampled token, d = logp - reference (Schulman's note).

Suffix: T tokens. The reference never receives a gradient. It and the anchor are finite, each value on its own token.

    name       value               gradient wrt logp
    k1         d                   1            belongs in a reward: as a loss its expected gradient is 0
    k2         d^2 / 2             d            biased value; on-policy the gradient of the true KL
    k3         e^-d - 1 + d        1 - e^-d     unbiased, >= 0; gradient biased
    unbiased   rho * k3            rho * d      DeepSeek V3.2; the gradient flows through rho = exp(logp - anchor)
"""

from __future__ import annotations

import torch
from torch import Tensor

from rollbook.objectives.checks import check_no_infinity, check_same_floats
from rollbook.objectives.ratios import beyond_guard, expm1_guarded, ratio


def k1(logp_T: Tensor, reference_T: Tensor) -> Tensor:
    """d = logp - reference. May be negative per token; never clip it at 0 in a reward. Gradient 1."""
    _check("k1", logp_T, reference_T=reference_T)
    return logp_T - reference_T.detach()


def k2(logp_T: Tensor, reference_T: Tensor) -> Tensor:
    """d^2 / 2. Gradient d."""
    _check("k2", logp_T, reference_T=reference_T)
    return (logp_T - reference_T.detach()).square() / 2


def k3(logp_T: Tensor, reference_T: Tensor) -> Tensor:
    """e^-d - 1 + d. Non-negative, unbiased on-policy. Gradient 1 - e^-d, beyond -d = 20 nats held at 1 - e^20.

    Where logp is -inf the value is infinite.
    """
    _check("k3", logp_T, reference_T=reference_T)
    return k3_anyway(logp_T, reference_T)


def k3_anyway(logp_T: Tensor, reference_T: Tensor) -> Tensor:
    """`k3` for diagnostics: of whatever is there, also of an infinite reference."""
    x_T = reference_T.detach() - logp_T
    grown_T = expm1_guarded(x_T)
    return torch.where(x_T == torch.inf, grown_T, grown_T - x_T)  # inf - inf is not inf


def unbiased(logp_T: Tensor, anchor_T: Tensor, reference_T: Tensor) -> Tensor:
    """rho * k3 (DeepSeek V3.2, 2512.02556 section 3.1). Gradient exactly rho * d, because it flows through rho as well.

    Up to logp - anchor = 20 nats rho is the ratio; beyond, rho and its slope are the tangent's (`exp_guarded`), and the gradient
    is slope * d. The gradient is stated and not left to the product rule: its two parts, rho * k3 and rho (1 - e^-d), cancel and
    would leave noise at d << 0. Beyond -d = 20 nats the value is the same quantity written as pi_ref/pi_anchor + rho (d - 1), in
    which e^-d does not appear; that first ratio is guarded too. Where logp is -inf the value is pi_ref/pi_anchor and the
    gradient 0, their limits.
    """
    _check("unbiased", logp_T, anchor_T=anchor_T, reference_T=reference_T)
    anchor_T, reference_T = anchor_T.detach(), reference_T.detach()
    rho_T, d_T = ratio(logp_T, anchor_T), logp_T - reference_T
    gone_T = logp_T == -torch.inf  # rho d is 0 there: rho falls faster than d grows
    d_T = torch.where(gone_T, torch.zeros_like(d_T), d_T)
    carried_T = rho_T * d_T.detach()
    rewritten_T = ratio(reference_T, anchor_T) + rho_T * (d_T - 1)
    value_T = torch.where(beyond_guard(-d_T) | gone_T, rewritten_T, rho_T * k3(logp_T, reference_T))
    return carried_T + (value_T - carried_T).detach()


def _check(who: str, logp_T: Tensor, **others: Tensor) -> None:
    check_same_floats(who, logp_T=logp_T, **others)
    check_no_infinity(who, **others)
