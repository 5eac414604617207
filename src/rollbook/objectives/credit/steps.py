"""Advantages from more than one reward per sequence: process supervision, state groups (GiGPO), implicit rewards (PRIME).

Suffixes: T action tokens, S sequences, K steps. Rewards and PRIME's log-ratios are constants: they are detached, nothing here
carries a gradient. A sequence outside `keep_S` gets 0 and is left out of every baseline and statistic, whatever it holds.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rollbook.objectives.checks import (
    check_choice,
    check_flags,
    check_float,
    check_ids,
    check_packed,
    check_positive,
    check_reaches,
    check_record,
    check_same_shape,
    check_scored,
    check_squares,
)
from rollbook.objectives.core import number_ids
from rollbook.objectives.credit.batch import batch_normalized
from rollbook.objectives.credit.gae import discounted_sum
from rollbook.objectives.credit.groups import group_centered, group_normalized, leave_one_out
from rollbook.objectives.credit.rules import ImplicitProcessCode, check_unused
from rollbook.objectives.errors import ObjectiveError


def process_rewards(
    reward_K: Tensor, seq_K: Tensor, end_K: Tensor, seq_T: Tensor, group_S: Tensor, *, eps: float, ddof: int
) -> Tensor:
    """DeepSeekMath process supervision: a group's step rewards normalised together; A_t = sum over steps ending at or after t.

    `end_K` is the position in the packed vector of the step's last token, `seq_K` its sequence.
    """
    check_same_shape("process_rewards", reward_K=reward_K, seq_K=seq_K, end_K=end_K)
    check_packed(seq_T)
    check_ids("process_rewards", seq_K=seq_K, end_K=end_K)
    seq_K, end_K = seq_K.long(), end_K.long()
    check_reaches("process_rewards", "group_S", group_S, int(seq_T.max()) + 1 if seq_T.numel() else 0)
    inside = bool(((end_K >= 0) & (end_K < seq_T.shape[0])).all())
    if not inside or bool((seq_T[end_K] != seq_K).any()):
        raise ObjectiveError(
            "process_rewards: a step must end inside its own sequence",
            got=f"ends {end_K.tolist()} for sequences {seq_K.tolist()}",
            why="its reward is credited to the tokens before it in the same sequence",
            fix="give end_K as positions in seq_T",
        )
    normalized_K = group_normalized(reward_K, group_S[seq_K], eps=eps, ddof=ddof)
    ends_T = torch.zeros_like(seq_T, dtype=reward_K.dtype).index_add(0, end_K, normalized_K)
    return discounted_sum(ends_T, seq_T, gamma=1.0)


def step_groups(
    return_K: Tensor,
    state_K: Tensor,
    group_K: Tensor,
    *,
    normalizer: Literal["std", "one"],
    eps: float | None = None,
    ddof: int | None = None,
    keep_K: Tensor | None = None,
) -> Tensor:
    """GiGPO's step advantage (2505.10978): (return - mean) / F among all visits of one state within one task group.

    `state_K` is a hash of the environment state without step counters; visits count across trajectories and time steps, also
    repeated ones. A state visited once gets exactly 0, as do visits outside `keep_K`. F is the visits' std + eps, or 1.
    """
    check_choice("step_groups", "normalizer", normalizer, ("std", "one"))
    check_same_shape("step_groups", return_K=return_K, state_K=state_K, group_K=group_K)
    check_ids("step_groups", state_K=state_K, group_K=group_K)
    group_K, state_K = group_K.long(), state_K.long()
    anchor_K = number_ids(torch.stack([group_K, state_K], dim=1))[0]
    if normalizer == "one":
        check_unused("step_groups", eps, ddof)
        return group_centered(return_K, anchor_K, keep_S=keep_K)
    if eps is None or ddof is None:
        raise ObjectiveError("step_groups needs eps and ddof", got="None", why="it divides by std + eps", fix="pass both")
    return group_normalized(return_K, anchor_K, eps=eps, ddof=ddof, keep_S=keep_K)


def step_returns(reward_K: Tensor, trajectory_K: Tensor, *, gamma: float) -> Tensor:
    """sum_{k >= t} gamma^{k-t} r_k over the steps of each trajectory, in order."""
    return discounted_sum(reward_K, trajectory_K, gamma=gamma)


def token_leave_one_out_paper(process_T: Tensor, seq_T: Tensor, group_S: Tensor, *, keep_S: Tensor | None = None) -> Tensor:
    """PRIME Eq. 5: r_t - mean over the *other* sequences of the group of their mean token reward."""
    process_T = _checked("token_leave_one_out_paper", "process_T", process_T, seq_T, group_S, keep_S)
    kept_T = _kept(group_S, keep_S)[seq_T]
    sum_T, own_S, count_S = _baseline(process_T, seq_T, group_S, keep_S)
    alone_T = process_T - (sum_T - own_S[seq_T]) / (count_S - 1).clamp(min=1)[seq_T]
    return torch.where(kept_T, alone_T, torch.zeros_like(process_T))


def token_leave_one_out_code(process_T: Tensor, seq_T: Tensor, group_S: Tensor, *, keep_S: Tensor | None = None) -> Tensor:
    """PRIME's released code: K/(K-1) r_t - (sum over *all* K of the mean token reward)/(K-1).

    Its own mean is replaced by its own token; the mean over a sequence agrees with the paper, single tokens do not.
    """
    process_T = _checked("token_leave_one_out_code", "process_T", process_T, seq_T, group_S, keep_S)
    kept_T = _kept(group_S, keep_S)[seq_T]
    sum_T, _, count_S = _baseline(process_T, seq_T, group_S, keep_S)
    others_T = (count_S - 1).clamp(min=1)[seq_T]
    return torch.where(kept_T, process_T * count_S[seq_T] / others_T - sum_T / others_T, torch.zeros_like(process_T))


def implicit_process_paper(
    log_ratio_T: Tensor,
    outcome_S: Tensor,
    seq_T: Tensor,
    group_S: Tensor,
    *,
    beta: float,
    gamma: float,
    keep_S: Tensor | None = None,
) -> Tensor:
    """PRIME's advantage as printed (2502.01456 Eq. 5), r_t = beta (logp_prm - reference):

        A_t = sum_{s>=t} gamma^{s-t} [r_s - mean_{j != i} rbar_j] + R_i - mean_{j != i} R_j

    The PRM is updated before it scores. With logp_prm = reference only the outcome's leave-one-out remains.
    """
    check_positive("implicit_process_paper", beta=beta)
    log_ratio_T = _checked("implicit_process_paper", "log_ratio_T", log_ratio_T, seq_T, group_S, keep_S)
    centered_T = token_leave_one_out_paper(beta * log_ratio_T.detach(), seq_T, group_S, keep_S=keep_S)
    return discounted_sum(centered_T, seq_T, gamma=gamma) + leave_one_out(outcome_S, group_S, keep_S=keep_S)[seq_T]


def implicit_process_code(
    log_ratio_T: Tensor,
    outcome_S: Tensor,
    seq_T: Tensor,
    group_S: Tensor,
    *,
    rule: ImplicitProcessCode,
    keep_S: Tensor | None = None,
) -> Tensor:
    """PRIME's advantage as its released code computes it. Differs from the paper in that

    the last token's process reward is left out; rewards are divided by the batch's largest |reverse cumulative sum|; the
    leave-one-out replaces the own mean by the own token; gamma is 1; the result is whitened over the batch's tokens (ddof 1).
    """
    check_record("implicit_process_code", "rule", rule, ImplicitProcessCode)
    log_ratio_T = _checked("implicit_process_code", "log_ratio_T", log_ratio_T, seq_T, group_S, keep_S)
    last_T = torch.ones_like(seq_T, dtype=torch.bool)
    last_T[:-1] = seq_T[1:] != seq_T[:-1]
    kept_T = _kept(group_S, keep_S)[seq_T]
    process_T = torch.where(last_T | ~kept_T, 0.0, rule.beta * log_ratio_T.detach())
    largest = discounted_sum(process_T, seq_T, gamma=1.0).abs().max() if process_T.numel() else process_T.new_zeros(())
    process_T = process_T / torch.where(largest > 0, largest, torch.ones_like(largest))
    process_T = rule.process_coefficient * token_leave_one_out_code(process_T, seq_T, group_S, keep_S=keep_S)
    outcome_T = torch.where(last_T, rule.outcome_coefficient * leave_one_out(outcome_S, group_S, keep_S=keep_S)[seq_T], 0.0)
    return batch_normalized(discounted_sum(process_T + outcome_T, seq_T, gamma=1.0), eps=rule.eps, ddof=1, keep=kept_T)


def _checked(who: str, name: str, value_T: Tensor, seq_T: Tensor, group_S: Tensor, keep_S: Tensor | None) -> Tensor:
    """The per-token values as constants, 0 where they were dropped; refuses what does not line up or was not measured."""
    check_same_shape(who, **{name: value_T, "seq_T": seq_T})
    check_packed(seq_T)
    check_float(who, **{name: value_T})
    check_ids(who, group_S=group_S)
    check_reaches(who, "group_S", group_S, int(seq_T.max()) + 1 if seq_T.numel() else 0)
    if keep_S is not None:
        check_flags(who, "keep_S", keep_S, group_S)
    kept_T = _kept(group_S, keep_S)[seq_T]
    check_scored(who, name, value_T, kept_T)
    check_squares(who, name, value_T, kept_T)
    return torch.where(kept_T, value_T, torch.zeros_like(value_T)).detach()


def _kept(group_S: Tensor, keep_S: Tensor | None) -> Tensor:
    return torch.ones_like(group_S, dtype=torch.bool) if keep_S is None else keep_S


def _baseline(process_T: Tensor, seq_T: Tensor, group_S: Tensor, keep_S: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Per token: the group's sum of sequence means; per sequence: own mean, group size. Refuses groups of one.

    `process_T` holds 0 where it was dropped (`_checked`).
    """
    kept_S = _kept(group_S, keep_S)
    zero_S = process_T.new_zeros(group_S.shape[0])
    own_S = zero_S.index_add(0, seq_T, process_T) / torch.bincount(seq_T, minlength=group_S.shape[0]).clamp(min=1)
    member_S, size = number_ids(group_S)
    sum_G = process_T.new_zeros(size).index_add(0, member_S, own_S)
    count_S = process_T.new_zeros(size).index_add(0, member_S, kept_S.to(process_T.dtype))[member_S]
    if bool((kept_S & (count_S < 2)).any()):
        leave_one_out(own_S, group_S, keep_S=keep_S)
    return sum_G[member_S][seq_T], own_S, count_S
