"""Weights made of other weights: averages, moving averages, task vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

import torch
from torch import Tensor

from rollbook.records import RecipeError
from rollbook.records.recipe import Merge

Weights = Mapping[str, Tensor]


def merged_weights(stage: Merge, parts: Sequence[tuple[Weights, float]], base: Weights | None) -> dict[str, Tensor]:
    """The merged parameters by name, fp32; sums are taken in fp64, in the order given."""
    names = list(parts[0][0])
    total = sum(weight for _, weight in parts)
    match stage.method:
        case "average":
            return {name: _sum([(held[name], weight / total) for held, weight in parts]) for name in names}
        case "moving_average":
            if stage.decay is None:
                raise RecipeError("a moving average needs a decay", got="none", fix="set decay")
            shares = [(1 - stage.decay if at else 1.0) * stage.decay ** (len(parts) - 1 - at) for at in range(len(parts))]
            return {name: _sum([(held[name], share) for (held, _), share in zip(parts, shares, strict=True)]) for name in names}
        case "task_vector":
            if base is None:
                raise RecipeError("task vectors need a base", got="none", why="they are differences to it", fix="set base")
            return {name: _sum([(base[name], 1 - total), *((held[name], weight) for held, weight in parts)]) for name in names}
        case _:
            assert_never(stage.method)


def _sum(terms: Sequence[tuple[Tensor, float]]) -> Tensor:
    return torch.stack([value.double() * weight for value, weight in terms]).sum(0).float()
