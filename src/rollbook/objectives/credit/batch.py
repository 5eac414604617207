"""Advantages normalised over a minibatch or a batch.

Suffixes: S sequences, T tokens. The vector passed is the whole population: over several ranks, gather first or `merge` moments.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rollbook.objectives.checks import check_flags, check_scored, check_std, check_tensor
from rollbook.objectives.errors import ObjectiveError


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Count, mean and sum of squared deviations of a population, and its extremes; merges exactly over ranks.

    Example: moments(tensor([1., 3.])) -> count 2, mean 2, squares 2, least 1, most 3
    """

    count: Tensor
    mean: Tensor
    squares: Tensor
    least: Tensor
    most: Tensor

    def merge(self, other: Moments) -> Moments:
        count = self.count + other.count
        weight = torch.where(count > 0, other.count / count.clamp(min=1), torch.zeros_like(count))
        gap = other.mean - self.mean
        return Moments(
            count=count,
            mean=self.mean + gap * weight,
            squares=self.squares + other.squares + gap.square() * self.count * weight,
            least=torch.minimum(self.least, other.least),
            most=torch.maximum(self.most, other.most),
        )

    def std(self, *, ddof: int) -> Tensor:
        return (self.squares / (self.count - ddof).clamp(min=1)).sqrt()


def moments(value: Tensor, keep: Tensor | None = None) -> Moments:
    """Moments of the kept entries."""
    kept = value if keep is None else value[keep]
    count = torch.tensor(float(kept.numel()), dtype=value.dtype, device=value.device)
    mean = kept.sum() / count.clamp(min=1)
    least = kept.min() if kept.numel() else count.new_tensor(torch.inf)
    most = kept.max() if kept.numel() else count.new_tensor(-torch.inf)
    return Moments(count=count, mean=mean, squares=(kept - mean).square().sum(), least=least, most=most)


def minibatch_standardized(advantage_S: Tensor, *, eps: float, ddof: int, keep_S: Tensor | None) -> Tensor:
    """A / (std + eps) over the kept sequences of one minibatch (Magistral's second step); dropped ones, and equal ones, get 0.

    The minibatch's mean is not subtracted: the report only divides. With whole groups it is 0 and makes no difference; a group
    cut between minibatches keeps its signs. Centre per group first. `keep_S` must exclude the groups without signal: their
    zeros would shrink the std.
    """
    check_std("minibatch_standardized", eps, ddof)
    _check("minibatch_standardized", advantage_S, keep_S)
    stats = moments(advantage_S, keep_S)
    kept_S = torch.ones_like(advantage_S, dtype=torch.bool) if keep_S is None else keep_S
    scaled_S = advantage_S / (stats.std(ddof=ddof) + eps)
    return torch.where(kept_S & (stats.most != stats.least), scaled_S, torch.zeros_like(advantage_S))


def batch_normalized(
    advantage: Tensor, *, eps: float, ddof: int, keep: Tensor | None = None, population: Moments | None = None
) -> Tensor:
    """(A - mean) / (std + eps) over the whole vector: tokens when given tokens, sequences when given sequences.

    `population` are moments merged over ranks, in place of this vector's own. Equal values get exactly 0.
    """
    check_std("batch_normalized", eps, ddof)
    _check("batch_normalized", advantage, keep)
    stats = moments(advantage, keep) if population is None else population
    zero = torch.zeros_like(advantage)
    standardized = (advantage - stats.mean) / (stats.std(ddof=ddof) + eps)
    kept = torch.ones_like(advantage, dtype=torch.bool) if keep is None else keep
    return torch.where(kept & (stats.most != stats.least), standardized, zero)


def _check(who: str, advantage: Tensor, keep: Tensor | None) -> None:
    check_tensor(who, "advantage", advantage)
    if not advantage.is_floating_point():
        got = str(advantage.dtype)
        raise ObjectiveError(f"{who} needs float advantages", got=got, why="it divides by a std", fix="use .double()")
    if keep is not None:
        check_flags(who, "keep", keep, advantage)
    check_scored(who, "advantage", advantage, keep)
