"""What the update functions of all families share: what one step gives back, and how elements are cut into micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from rollbook.records import Diverged
from rollbook.training.optimizer import Stepped

E = TypeVar("E")


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyStep:
    """One optimizer step of any family: the loss by term, trained tokens, what went into the loss, the optimizer's step."""

    loss: dict[str, float]
    tokens: int
    tensors: dict[str, Tensor]
    stepped: Stepped


def cut(elements: Sequence[E], size: Callable[[E], int], max_tokens: int) -> list[list[int]]:
    """Places of the elements, longest first, in parts of at most `max_tokens` tokens; a longer element stands alone."""
    parts: list[list[int]] = []
    used = 0
    for place in sorted(range(len(elements)), key=lambda at: (-size(elements[at]), at)):
        if not parts or used + size(elements[place]) > max_tokens:
            parts.append([])
            used = 0
        parts[-1].append(place)
        used += size(elements[place])
    return parts


def check_finite(loss: Tensor, where: str) -> None:
    """Raises `Diverged` before a gradient is taken of a loss that is no number."""
    if not math.isfinite(float(loss.detach())):
        raise Diverged(f"the loss of {where} is not finite", got=str(float(loss.detach())),
                       why="a score or log-prob in the batch is not finite",
                       fix="look at the elements kept in the run; lower the learning rate")
