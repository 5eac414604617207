"""Critic losses per token. The factor 1/2 is an argument: leaving it out doubles the critic's effective learning rate.

Suffix: T action tokens. `return_T` comes from unwhitened advantages; it and `anchor_value_T` carry no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rollbook.objectives.checks import check_limit, check_no_infinity, check_positive, check_same_floats


def squared_value_loss(value_T: Tensor, return_T: Tensor, *, factor: float) -> Tensor:
    """factor (V - return)^2. Gradient 2 factor (V - return)."""
    check_same_floats("squared_value_loss", value_T=value_T, return_T=return_T)
    check_no_infinity("squared_value_loss", return_T=return_T)
    check_positive("squared_value_loss", factor=factor)
    return factor * (value_T - return_T.detach()).square()


def clipped_value_loss(value_T: Tensor, anchor_value_T: Tensor, return_T: Tensor, *, clip: float, factor: float) -> Tensor:
    """factor max((V - return)^2, (V_anchor + clip(V - V_anchor, -clip, clip) - return)^2), V_anchor frozen for this batch.

    Gradient 2 factor (V - return) where the unclipped square is the larger or V is inside the band, else 0: a value that already
    left the band on the improving side is left alone.
    """
    check_same_floats("clipped_value_loss", value_T=value_T, anchor_value_T=anchor_value_T, return_T=return_T)
    check_no_infinity("clipped_value_loss", anchor_value_T=anchor_value_T, return_T=return_T)
    check_limit("clipped_value_loss", clip=clip)
    check_positive("clipped_value_loss", factor=factor)
    move_T = value_T - anchor_value_T.detach()
    plain_T = (value_T - return_T.detach()).square()
    bounded_T = (anchor_value_T + move_T.detach().clamp(-clip, clip) - return_T).detach().square()
    frozen_T = (move_T.abs() > clip) & (bounded_T > plain_T)
    return factor * torch.where(frozen_T, bounded_T, plain_T)
