"""Advantages with a critic, over action tokens only: observations do not exist here, so they are skipped.

Suffixes: T action tokens, S sequences, P positions within a sequence. Rewards are constants; `gae` carries no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rollbook.objectives.checks import (
    check_at_most,
    check_packed,
    check_positive,
    check_reaches,
    check_same_shape,
    check_scored,
    check_tensor,
)
from rollbook.objectives.errors import ObjectiveError


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """Per action token: advantage, and the critic's target advantage + value, before any whitening.

    Example: reward 1 on the last of two tokens, values 0, gamma 0.9, lam 1: advantage_T = return_T = [0.9, 1.0]
    """

    advantage_T: Tensor
    return_T: Tensor


def token_rewards(terminal_S: Tensor, kl_T: Tensor | None, seq_T: Tensor, *, beta: float | None) -> Tensor:
    """-beta * kl_T, plus the sequence's terminal reward on its last action token (not one after it).

    `kl_T` is k1 at the parameters that sampled, unclipped; it may be negative. Both None: no KL in the reward.
    """
    if (kl_T is None) != (beta is None):
        raise ObjectiveError(
            "token_rewards needs kl_T and beta together",
            got=f"kl_T {'absent' if kl_T is None else 'given'}, beta = {beta}",
            why="a coefficient without its KL, or a KL without its coefficient, would be silently ignored",
            fix="pass both, or neither",
        )
    check_packed(seq_T)
    check_reaches("token_rewards", "terminal_S", terminal_S, int(seq_T.max()) + 1 if seq_T.numel() else 0)
    if not terminal_S.is_floating_point():
        got = str(terminal_S.dtype)
        raise ObjectiveError("token_rewards needs float rewards", got=got, why="integers cut advantages", fix="use .double()")
    check_scored("token_rewards", "terminal_S", terminal_S)
    if kl_T is not None:
        check_same_shape("token_rewards", kl_T=kl_T, seq_T=seq_T)
    reward_T = torch.zeros_like(seq_T, dtype=terminal_S.dtype) if kl_T is None or beta is None else -beta * kl_T.detach()
    last_T = torch.ones_like(seq_T, dtype=torch.bool)
    last_T[:-1] = seq_T[1:] != seq_T[:-1]
    return torch.where(last_T, reward_T + terminal_S[seq_T], reward_T)


def gae(
    reward_T: Tensor,
    value_T: Tensor,
    seq_T: Tensor,
    *,
    gamma: float,
    lam: float | Tensor,
    bootstrap_S: Tensor | None = None,
) -> Advantages:
    """delta_t = r_t + gamma V_{t+1} - V_t;  A_t = delta_t + gamma lam A_{t+1};  return_t = A_t + V_t.

    t+1 is the next *action* token of the same sequence, across observations in between; after the last one the value is
    `bootstrap_S` (0 when absent: the episode ended). `lam` is a number or one per sequence. No whitening happens here.
    """
    _check_aligned(reward_T, value_T, seq_T)
    with torch.no_grad():
        row_T, position_T, length_S, size = layout(seq_T)
        if isinstance(lam, Tensor):
            check_reaches("gae", "lam", lam, size)
        if bootstrap_S is not None:
            check_reaches("gae", "bootstrap_S", bootstrap_S, size)
        longest = int(length_S.max()) if length_S.numel() else 0
        value_SP = value_T.new_zeros(size, longest + 1)
        reward_SP = value_T.new_zeros(size, longest)
        value_SP[row_T, position_T] = value_T
        reward_SP[row_T, position_T] = reward_T.to(value_T.dtype)
        if bootstrap_S is not None:
            present_S = length_S > 0
            value_SP[present_S.nonzero().flatten(), length_S[present_S]] = bootstrap_S[:size][present_S].to(value_T.dtype)
        decay_S = gamma * (lam[:size].to(value_T.dtype) if isinstance(lam, Tensor) else value_T.new_full((size,), lam))
        advantage_SP = value_T.new_zeros(size, longest + 1)
        for p in range(longest - 1, -1, -1):
            delta_S = reward_SP[:, p] + gamma * value_SP[:, p + 1] - value_SP[:, p]
            advantage_SP[:, p] = torch.where(p < length_S, delta_S + decay_S * advantage_SP[:, p + 1], 0.0)
        advantage_T = advantage_SP[row_T, position_T]
        return Advantages(advantage_T=advantage_T, return_T=advantage_T + value_T)


def discounted_sum(reward_T: Tensor, seq_T: Tensor, *, gamma: float) -> Tensor:
    """sum_{s >= t} gamma^{s-t} r_s within each sequence."""
    return gae(reward_T, torch.zeros_like(reward_T), seq_T, gamma=gamma, lam=1.0).advantage_T


def length_adaptive_lambda(length_S: Tensor, *, alpha: float, floor: float | None) -> Tensor:
    """lambda = 1 - 1/(alpha l) per sequence (VAPO alpha 0.05, SAO 1.5): sum_k lambda^k = alpha l.

    Negative below l = 1/alpha, where the papers are silent: `floor` is the least value allowed, None the printed formula. An
    empty sequence counts as length 1.
    """
    check_positive("length_adaptive_lambda", alpha=alpha)
    check_tensor("length_adaptive_lambda", "length_S", length_S)
    if bool((length_S < 0).any()):
        raise ObjectiveError("length_S must be >= 0", got=str(length_S.tolist()), why="it counts tokens", fix="count them")
    if floor is not None:
        check_at_most("length_adaptive_lambda", 1, floor=floor)
    lam_S = 1 - 1 / (alpha * length_S.clamp(min=1).to(torch.float64))
    return lam_S if floor is None else lam_S.clamp(min=floor)


def segment_discount(
    advantage_T: Tensor, seq_T: Tensor, length_S: Tensor, trajectory_S: Tensor, order_S: Tensor, *, gamma: float, lam: float
) -> Tensor:
    """CompactionRL (2607.05378): A_local * (gamma lam)^(action tokens in later segments of the same trajectory).

    A sequence is a segment; `order_S` is its place in its trajectory. One segment, or gamma lam = 1, changes nothing.
    """
    check_same_shape("segment_discount", advantage_T=advantage_T, seq_T=seq_T)
    check_same_shape("segment_discount", length_S=length_S, trajectory_S=trajectory_S, order_S=order_S)
    check_reaches("segment_discount", "length_S", length_S, int(seq_T.max()) + 1 if seq_T.numel() else 0)
    later_SS = (trajectory_S[:, None] == trajectory_S[None, :]) & (order_S[None, :] > order_S[:, None])
    after_S = (later_SS.to(torch.float64) * length_S.to(torch.float64)[None, :]).sum(1)
    return advantage_T * torch.pow(gamma * lam, after_S).to(advantage_T.dtype)[seq_T]


def layout(seq_T: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Row and position of each packed token, the length of each row, and the number of rows (max id + 1)."""
    size = int(seq_T.max()) + 1 if seq_T.numel() else 0
    length_S = torch.bincount(seq_T, minlength=size)
    index_T = torch.arange(seq_T.shape[0], device=seq_T.device)
    first_S = torch.full((size,), seq_T.shape[0], device=seq_T.device).scatter_reduce(0, seq_T, index_T, "amin")
    return seq_T, index_T - first_S[seq_T], length_S, size


def _check_aligned(reward_T: Tensor, value_T: Tensor, seq_T: Tensor) -> None:
    check_same_shape("gae", reward_T=reward_T, value_T=value_T, seq_T=seq_T)
    if not (value_T.is_floating_point() and reward_T.is_floating_point()):
        raise ObjectiveError(
            "gae needs float rewards and values",
            got=f"{reward_T.dtype} and {value_T.dtype}",
            why="integers would cut advantages to whole numbers",
            fix="convert them with .float() or .double()",
        )
    check_packed(seq_T)
    check_scored("gae", "reward_T", reward_T)
