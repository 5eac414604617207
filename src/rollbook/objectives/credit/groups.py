"""Advantages from rewards of the same group (prompt). Rewards are constants: they are detached, no advantage carries a gradient.

Suffixes: S sequences, G groups. Group ids are any integers. A group whose rewards are equal up to rounding (`rounding`) gets
exactly 0, whatever floating-point noise its mean has; a sequence outside `keep_S` gets 0 and is left out of every statistic.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rollbook.objectives.checks import check_flags, check_ids, check_scored, check_squares, check_std, check_tensor
from rollbook.objectives.core import number_ids
from rollbook.objectives.credit.rounding import ULPS, rounding
from rollbook.objectives.errors import ObjectiveError


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Per sequence: its group's size, mean and sum of squared deviations, and whether the group's rewards differ at all.

    `noise_S`: how far apart two rewards that are as far from their groups' means may stand once the means are taken off.
    """

    count_S: Tensor
    mean_S: Tensor
    squares_S: Tensor
    differs_S: Tensor
    noise_S: Tensor
    kept_S: Tensor


def group_statistics(reward_S: Tensor, group_S: Tensor, keep_S: Tensor | None = None) -> GroupStatistics:
    """Count, mean, squared deviations per group, over kept sequences."""
    check_groups(reward_S, group_S, keep_S)
    kept_S = torch.ones_like(group_S, dtype=torch.bool) if keep_S is None else keep_S
    member_S, size = number_ids(group_S)
    value_S = torch.where(kept_S, reward_S, torch.zeros_like(reward_S)).detach()
    zero_G = value_S.new_zeros(size)
    count_G = zero_G.index_add(0, member_S, kept_S.to(value_S.dtype))
    mean_G = zero_G.index_add(0, member_S, value_S) / count_G.clamp(min=1)
    off_S = torch.where(kept_S, value_S - mean_G[member_S], torch.zeros_like(value_S))
    squares_G = zero_G.index_add(0, member_S, off_S.square())
    most_G = torch.full_like(zero_G, -torch.inf).scatter_reduce(0, member_S[kept_S], value_S[kept_S], "amax")
    least_G = torch.full_like(zero_G, torch.inf).scatter_reduce(0, member_S[kept_S], value_S[kept_S], "amin")
    largest_G = zero_G.scatter_reduce(0, member_S, value_S.abs(), "amax")
    return GroupStatistics(
        count_S=count_G[member_S],
        mean_S=mean_G[member_S],
        squares_S=squares_G[member_S],
        differs_S=(most_G - least_G > rounding(largest_G))[member_S],
        noise_S=rounding(largest_G, ulps=count_G + ULPS)[member_S],  # a mean of n is off by n/2 units at most, of either group
        kept_S=kept_S,
    )


def has_signal(reward_S: Tensor, group_S: Tensor, keep_S: Tensor | None = None) -> Tensor:
    """Whether the rewards of a sequence's group differ by more than rounding; False for dropped sequences and groups of one."""
    stats = group_statistics(reward_S, group_S, keep_S)
    return stats.differs_S & stats.kept_S


def group_centered(reward_S: Tensor, group_S: Tensor, *, keep_S: Tensor | None = None) -> Tensor:
    """A = R - mean of the group. Adding a constant to a group changes nothing; a group's advantages sum to 0."""
    stats = group_statistics(reward_S, group_S, keep_S)
    reward_S = reward_S.detach()
    return torch.where(stats.differs_S & stats.kept_S, reward_S - stats.mean_S, torch.zeros_like(reward_S))


def group_normalized(reward_S: Tensor, group_S: Tensor, *, eps: float, ddof: int, keep_S: Tensor | None = None) -> Tensor:
    """A = (R - mean) / (std + eps) of the group, std with divisor n - ddof. Constant groups and groups of one get exactly 0."""
    check_std("group_normalized", eps, ddof)
    stats = group_statistics(reward_S, group_S, keep_S)
    std_S = (stats.squares_S / (stats.count_S - ddof).clamp(min=1)).sqrt()
    centered_S = group_centered(reward_S, group_S, keep_S=keep_S)
    return torch.where(centered_S == 0, centered_S, centered_S / (std_S + eps))


def leave_one_out(reward_S: Tensor, group_S: Tensor, *, keep_S: Tensor | None = None) -> Tensor:
    """A_i = R_i - mean_{j != i} R_j = G/(G-1) (R_i - mean). Undefined, and refused, for a group of one."""
    stats = group_statistics(reward_S, group_S, keep_S)
    alone_S = stats.kept_S & (stats.count_S < 2)
    if bool(alone_S.any()):
        raise ObjectiveError(
            "leave_one_out needs at least 2 sequences per group",
            got=f"1 in group {group_S[alone_S].tolist()[0]}",
            why="the baseline is the mean of the other sequences of the same group; there are none",
            fix="sample at least 2 per task, drop the group, or use another credit rule",
        )
    return group_centered(reward_S, group_S, keep_S=keep_S) * stats.count_S / (stats.count_S - 1).clamp(min=1)


def check_groups(reward_S: Tensor, group_S: Tensor, keep_S: Tensor | None) -> None:
    """Refuse rewards and groups that do not belong together, and kept rewards that are not finite."""
    check_tensor("credit", "reward_S", reward_S)
    check_tensor("credit", "group_S", group_S)
    if reward_S.dim() != 1 or not reward_S.is_floating_point():
        raise ObjectiveError(
            "reward_S must be a float vector",
            got=f"{reward_S.dtype} of shape {tuple(reward_S.shape)}",
            why="one reward per sequence",
            fix="pass reward_S with one float per sequence",
        )
    check_ids("credit", group_S=group_S)
    if group_S.shape != reward_S.shape:
        raise ObjectiveError(
            "group_S must be one integer per sequence",
            got=f"{group_S.dtype} of shape {tuple(group_S.shape)} for {reward_S.shape[0]} rewards",
            why="groups are ids that travel with their sequence",
            fix="pass the group id of every sequence",
        )
    if keep_S is not None:
        check_flags("credit", "keep_S", keep_S, reward_S)
    check_scored("credit", "reward_S", reward_S, keep_S)
    check_squares("credit", "reward_S", reward_S, keep_S)
