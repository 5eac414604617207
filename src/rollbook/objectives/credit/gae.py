"""Advantages with a critic, over action tokens only: observations do not exist here, so they are skipped.

Suffixes: T action tokens, S sequences, P positions within a sequence. Rewards and values are constants here: they are detached,
nothing of this file carries a gradient. What is computed with must be finite; leave out or mask what was not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rollbook.objectives.checks import (
    check_at_most,
    check_float,
    check_ids,
    check_not_negative,
    check_packed,
    check_positive,
    check_reaches,
    check_same_shape,
    check_scored,
    check_share,
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
    check_reaches("token_rewards", "terminal_S", terminal_S, _rows(seq_T))
    check_float("token_rewards", terminal_S=terminal_S)
    check_scored("token_rewards", "terminal_S", terminal_S)
    terminal_S = terminal_S.detach()
    if kl_T is not None and beta is not None:
        check_same_shape("token_rewards", kl_T=kl_T, seq_T=seq_T)
        check_float("token_rewards", kl_T=kl_T)
        check_scored("token_rewards", "kl_T", kl_T)
        check_not_negative("token_rewards", beta=beta)
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
    `bootstrap_S` (0 when absent: the episode ended). gamma is a share; `lam` is a number or one per sequence, 1 at most, and may
    be negative (`length_adaptive_lambda`). No whitening happens here.
    """
    _check_aligned(reward_T, value_T, seq_T)
    with torch.no_grad():
        row_T, position_T, length_S, size = layout(seq_T)
        check_share("gae", gamma=gamma)
        _check_lambda(lam, size)
        if bootstrap_S is not None:
            check_reaches("gae", "bootstrap_S", bootstrap_S, size)
            check_float("gae", bootstrap_S=bootstrap_S)
            check_scored("gae", "bootstrap_S", bootstrap_S[:size], length_S > 0)
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
        _check_converged(advantage_T)
        return Advantages(advantage_T=advantage_T, return_T=advantage_T + value_T)


def discounted_sum(reward_T: Tensor, seq_T: Tensor, *, gamma: float) -> Tensor:
    """sum_{s >= t} gamma^{s-t} r_s within each sequence."""
    check_float("discounted_sum", reward_T=reward_T)
    return gae(reward_T, torch.zeros_like(reward_T), seq_T, gamma=gamma, lam=1.0).advantage_T


def length_adaptive_lambda(length_S: Tensor, *, alpha: float, floor: float | None) -> Tensor:
    """lambda = 1 - 1/(alpha l) per sequence (VAPO alpha 0.05, SAO 1.5): sum_k lambda^k = alpha l.

    Negative below l = 1/alpha, where the papers are silent: `floor` is the least value allowed, None the printed formula. An
    empty sequence counts as length 1.
    """
    check_positive("length_adaptive_lambda", alpha=alpha)
    check_tensor("length_adaptive_lambda", "length_S", length_S)
    if length_S.dtype == torch.bool or length_S.is_complex() or not bool(((length_S >= 0) & length_S.isfinite()).all()):
        raise ObjectiveError("length_S must be >= 0", got=str(length_S.tolist()), why="it counts tokens", fix="count them")
    if floor is not None:
        check_at_most("length_adaptive_lambda", 1, floor=floor)
    lam_S = 1 - 1 / (alpha * length_S.clamp(min=1).to(torch.float64))
    return lam_S if floor is None else lam_S.clamp(min=floor)


def segment_discount(
    advantage_T: Tensor, seq_T: Tensor, length_S: Tensor, trajectory_S: Tensor, order_S: Tensor, *, gamma: float, lam: float
) -> Tensor:
    """CompactionRL (2607.05378): A_local * (gamma lam)^(action tokens in later segments of the same trajectory).

    A sequence is a segment; `order_S` is its place in its trajectory, each place once. One segment, or gamma lam = 1, changes
    nothing. gamma and lam are shares.
    """
    check_same_shape("segment_discount", advantage_T=advantage_T, seq_T=seq_T)
    check_same_shape("segment_discount", length_S=length_S, trajectory_S=trajectory_S, order_S=order_S)
    check_packed(seq_T)
    check_reaches("segment_discount", "length_S", length_S, _rows(seq_T))
    check_float("segment_discount", advantage_T=advantage_T)
    check_ids("segment_discount", length_S=length_S, trajectory_S=trajectory_S, order_S=order_S)
    check_share("segment_discount", gamma=gamma, lam=lam)
    check_scored("segment_discount", "advantage_T", advantage_T)
    _check_segments(length_S, trajectory_S, order_S)
    advantage_T = advantage_T.detach()
    later_SS = (trajectory_S[:, None] == trajectory_S[None, :]) & (order_S[None, :] > order_S[:, None])
    after_S = (later_SS.to(torch.float64) * length_S.to(torch.float64)[None, :]).sum(1)
    return advantage_T * torch.pow(gamma * lam, after_S).to(advantage_T.dtype)[seq_T]


def layout(seq_T: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Row and position of each packed token, the length of each row, and the number of rows (max id + 1)."""
    seq_T, size = seq_T.long(), _rows(seq_T)
    length_S = torch.bincount(seq_T, minlength=size)
    index_T = torch.arange(seq_T.shape[0], device=seq_T.device)
    first_S = torch.full((size,), seq_T.shape[0], device=seq_T.device).scatter_reduce(0, seq_T, index_T, "amin")
    return seq_T, index_T - first_S[seq_T], length_S, size


def _rows(seq_T: Tensor) -> int:
    return int(seq_T.max()) + 1 if seq_T.numel() else 0


def _check_aligned(reward_T: Tensor, value_T: Tensor, seq_T: Tensor) -> None:
    check_same_shape("gae", reward_T=reward_T, value_T=value_T, seq_T=seq_T)
    check_float("gae", reward_T=reward_T, value_T=value_T)
    check_packed(seq_T)
    check_scored("gae", "reward_T", reward_T)
    check_scored("gae", "value_T", value_T)


def _check_lambda(lam: float | Tensor, size: int) -> None:
    """Refuse a lambda whose sum diverges, or that is not measured."""
    if isinstance(lam, Tensor):
        check_reaches("gae", "lam", lam, size)
        check_float("gae", lam=lam)
        check_scored("gae", "lam", lam[:size])
        check_at_most("gae", 1, lam=float(lam[:size].max()) if size else 0.0)
        return
    check_at_most("gae", 1, lam=lam)
    if lam == -float("inf"):
        raise ObjectiveError("gae.lam must be finite", got=repr(lam), why="infinity times 0 is NaN", fix="set a finite lam")


def _check_converged(advantage_T: Tensor) -> None:
    """Refuse a sum that left the range of its precision."""
    if not bool(advantage_T.isfinite().all()):
        raise ObjectiveError(
            "gae: the advantages must stay finite",
            got=f"one that is not, at position {(~advantage_T.isfinite()).nonzero().tolist()[0][0]}",
            why="a lambda far below -1 grows with every token, and very large rewards overflow",
            fix="set a floor for lambda, or scale the rewards",
        )


def _check_segments(length_S: Tensor, trajectory_S: Tensor, order_S: Tensor) -> None:
    """Refuse negative lengths, and two segments of a trajectory in one place."""
    if bool((length_S < 0).any()):
        raise ObjectiveError("length_S must be >= 0", got=str(length_S.tolist()), why="it counts tokens", fix="count them")
    places = torch.stack([trajectory_S.long(), order_S.long()], dim=1)
    if places.shape[0] and torch.unique(places, dim=0).shape[0] != places.shape[0]:
        raise ObjectiveError(
            "segment_discount: order_S must give each segment of a trajectory its own place",
            got=f"orders {order_S.tolist()} of trajectories {trajectory_S.tolist()}",
            why="which of two segments in one place is the later one is not defined",
            fix="number the segments of each trajectory in the order they were sampled",
        )
