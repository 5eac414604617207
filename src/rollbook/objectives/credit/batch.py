"""Advantages normalised over a minibatch or a batch.

Suffixes: S sequences, T tokens. The vector passed is the whole population: over several ranks, gather first or `merge` moments.
Advantages are constants: they are detached, nothing here carries a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rollbook.objectives.checks import (
    check_ddof,
    check_flags,
    check_float,
    check_record,
    check_same_shape,
    check_scored,
    check_squares,
    check_std,
)
from rollbook.objectives.credit.rounding import rounding


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

    @property
    def constant(self) -> Tensor:
        """Whether the population is one value up to rounding, or empty: its std is rounding noise, and divides nothing."""
        return ~(self.most - self.least > rounding(torch.maximum(self.most.abs(), self.least.abs())))

    def std(self, *, ddof: int) -> Tensor:
        check_ddof("Moments.std", ddof)
        return (self.squares / (self.count - ddof).clamp(min=1)).sqrt()


def moments(value: Tensor, keep: Tensor | None = None) -> Moments:
    """Moments of the kept entries; refuses one that is not finite."""
    _check("moments", value, keep)
    value = value.detach()
    kept = value if keep is None else value[keep]
    count = torch.tensor(float(kept.numel()), dtype=value.dtype, device=value.device)
    mean = kept.sum() / count.clamp(min=1)
    least = kept.min() if kept.numel() else count.new_tensor(torch.inf)
    most = kept.max() if kept.numel() else count.new_tensor(-torch.inf)
    return Moments(count=count, mean=mean, squares=(kept - mean).square().sum(), least=least, most=most)


def minibatch_standardized(
    advantage_S: Tensor, *, eps: float, ddof: int, keep_S: Tensor | None, noise_S: Tensor | None = None
) -> Tensor:
    """A / (std + eps) over the kept sequences of one minibatch (Magistral's second step); dropped ones get 0.

    Centre per group first; `keep_S` must exclude the groups without signal, whose zeros would shrink the std. The minibatch's
    mean is not subtracted. That is a reading [I]: accounts of the report also give (A - mean) / std. Over whole groups the mean
    is 0 and both are one formula; members of a group cut between minibatches keep their signs here, and may lose them there.

    A minibatch whose advantages are equal up to rounding gets exactly 0, as under the other reading: its std says nothing.
    `noise_S` is what rounding may be (`GroupStatistics.noise_S`: centring leaves noise of the *rewards'* size); None: a few
    units of the advantages themselves.
    """
    check_std("minibatch_standardized", eps, ddof)
    _check("minibatch_standardized", advantage_S, keep_S)
    stats = moments(advantage_S, keep_S)
    kept_S = torch.ones_like(advantage_S, dtype=torch.bool) if keep_S is None else keep_S
    constant = stats.constant
    if noise_S is not None:
        check_same_shape("minibatch_standardized", noise_S=noise_S, advantage_S=advantage_S)
        check_float("minibatch_standardized", noise_S=noise_S)
        check_scored("minibatch_standardized", "noise_S", noise_S, keep_S)
        constant = constant | ~(stats.most - stats.least > noise_S[kept_S]).all()
    advantage_S = advantage_S.detach()
    scaled_S = advantage_S / (stats.std(ddof=ddof) + eps)
    return torch.where(kept_S & ~constant, scaled_S, torch.zeros_like(advantage_S))


def batch_normalized(
    advantage: Tensor, *, eps: float, ddof: int, keep: Tensor | None = None, population: Moments | None = None
) -> Tensor:
    """(A - mean) / (std + eps) over the whole vector: tokens when given tokens, sequences when given sequences.

    `population` are moments merged over ranks, in place of this vector's own. Values that are equal up to rounding get exactly 0.
    """
    check_std("batch_normalized", eps, ddof)
    _check("batch_normalized", advantage, keep)
    advantage = advantage.detach()
    if population is not None:
        check_record("batch_normalized", "population", population, Moments)
    stats = moments(advantage, keep) if population is None else population
    zero = torch.zeros_like(advantage)
    standardized = (advantage - stats.mean) / (stats.std(ddof=ddof) + eps)
    kept = torch.ones_like(advantage, dtype=torch.bool) if keep is None else keep
    return torch.where(kept & ~stats.constant, standardized, zero)


def _check(who: str, advantage: Tensor, keep: Tensor | None) -> None:
    check_float(who, advantage=advantage)
    if keep is not None:
        check_flags(who, "keep", keep, advantage)
    check_scored(who, "advantage", advantage, keep)
    check_squares(who, "advantage", advantage, keep)
