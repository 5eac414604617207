"""When measured numbers are one number: a difference that rounding alone can make is no signal, and no divisor."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

ULPS: Final = 4  # a reward is a sum of a few parts; added in another order it ends up this many units away at most


def rounding(magnitude: Tensor, *, ulps: Tensor | int = ULPS) -> Tensor:
    """How far apart numbers of this magnitude may stand and still be equal: `ulps` units of their own precision.

    Or so little that its square is 0 and no std can hold it. Half precision counts as fp32 here: whatever differs there at all
    is told apart.
    """
    kind = torch.finfo(torch.float64 if magnitude.dtype == torch.float64 else torch.float32)
    room: Tensor = magnitude * (kind.eps * ulps) + kind.tiny**0.5
    return room
