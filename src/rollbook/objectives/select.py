"""Which groups and rollouts are worth training on.

Suffixes: S rollouts, G groups. Decisions are made on accuracy, never on a shaped reward.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Literal

import torch
from torch import Tensor

from rollbook.objectives.checks import (
    check_choice,
    check_flags,
    check_float,
    check_ids,
    check_record,
    check_same_shape,
    check_tensor,
)
from rollbook.objectives.core import number_ids
from rollbook.objectives.errors import ObjectiveError


def informative(correct_S: Tensor, group_S: Tensor) -> Tensor:
    """Dynamic sampling (DAPO): whether 0 < correct < n in a rollout's group; a length penalty revives no group."""
    check_tensor("informative", "correct_S", correct_S)
    if correct_S.dtype != torch.bool:
        raise ObjectiveError(
            "informative needs booleans",
            got=str(correct_S.dtype),
            why="a shaped reward varies in groups whose answers are all wrong",
            fix="pass correctness, not reward",
        )
    check_same_shape("informative", correct_S=correct_S, group_S=group_S)
    check_ids("informative", group_S=group_S)
    member_S, size = number_ids(group_S)
    right_G = torch.zeros(size, dtype=torch.int64, device=group_S.device).index_add(0, member_S, correct_S.to(torch.int64))
    return ((right_G > 0) & (right_G < torch.bincount(member_S, minlength=size)))[member_S]


def mixed(positive_K: Tensor) -> bool:
    """Whether a group of candidates has both labels (what `preference.listwise` needs)."""
    check_tensor("mixed", "positive_K", positive_K)
    check_flags("mixed", "positive_K", positive_K, positive_K)
    return bool(positive_K.any()) and not bool(positive_K.all())


def variance_priority(success_G: Tensor) -> Tensor:
    """p (1-p): the variance of a 0/1 reward, largest at p = 0.5, 0 where all succeed or fail."""
    return _rate(success_G) * (1 - success_G)


def failure_priority(success_G: Tensor) -> Tensor:
    """Kimi k1.5's prioritised sampling: proportional to 1 - success rate."""
    return 1 - _rate(success_G)


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """Unbiased estimate 1 - C(n-c, k) / C(n, k) from c correct of n samples."""
    for name, value in {"correct": correct, "samples": samples, "k": k}.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ObjectiveError(
                f"pass_at_k: {name} must be a whole number", got=repr(value), why="it counts samples", fix=f"pass int({name})"
            )
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ObjectiveError(
            "pass_at_k needs 0 <= correct <= samples and 1 <= k <= samples",
            got=f"{correct} of {samples}, k = {k}",
            why="it counts subsets of size k",
            fix="draw at least k samples",
        )
    return 1 - comb(samples - correct, k) / comb(samples, k)


def best_of(reward_S: Tensor, group_S: Tensor) -> Tensor:
    """Index of the best rollout of each group (rejection sampling), in order of group id; ties go to the lowest index."""
    check_same_shape("best_of", reward_S=reward_S, group_S=group_S)
    check_float("best_of", reward_S=reward_S)
    check_ids("best_of", group_S=group_S)
    if bool(reward_S.isnan().any()):
        raise ObjectiveError("best_of needs rewards", got="NaN", why="NaN has no order", fix="leave out what was not scored")
    member_S, size = number_ids(group_S)
    return torch.tensor([_best(reward_S, member_S, g) for g in range(size)], dtype=torch.int64, device=reward_S.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """One task's oversampled rollouts for `resample_on_correct`: correctness, tool calls and errors, answer tags, turns.

    Example: Rollouts(correct_S=tensor([True, False]), calls_S=tensor([2, 0]), errors_S=tensor([1, 0]), tags_S=tensor([1, 1]),
        turns_S=tensor([3, 1]))
    """

    correct_S: Tensor
    calls_S: Tensor
    errors_S: Tensor
    tags_S: Tensor
    turns_S: Tensor

    def __post_init__(self) -> None:
        check_flags("Rollouts", "correct_S", self.correct_S, self.correct_S)
        columns = {name: getattr(self, name) for name in ("calls_S", "errors_S", "tags_S", "turns_S")}
        check_same_shape("Rollouts", correct_S=self.correct_S, **columns)
        check_ids("Rollouts", **columns)
        if any(bool((value_S < 0).any()) for value_S in columns.values()) or bool((self.errors_S > self.calls_S).any()):
            raise ObjectiveError(
                "Rollouts needs counts >= 0 and no more errors than calls",
                got=f"errors {self.errors_S.tolist()} of calls {self.calls_S.tolist()}",
                why="the penalty is a share of the calls",
                fix="count each trace's own calls, errors, tags and turns",
            )


def trace_penalty(rollouts: Rollouts) -> Tensor:
    """rStar2 (2508.20722 Eq. 5-7): p_err + p_fmt.

    p_err = 0.5 without tool calls, else errors / calls; p_fmt = 1 without an answer tag, else min(1, (tags - 1) / turns).
    """
    check_record("trace_penalty", "rollouts", rollouts, Rollouts)
    calls_S = rollouts.calls_S.to(torch.float64)
    error_S = torch.where(calls_S > 0, rollouts.errors_S.to(torch.float64) / calls_S.clamp(min=1), 0.5)
    extra_S = ((rollouts.tags_S - 1).to(torch.float64) / rollouts.turns_S.clamp(min=1)).clamp(max=1)
    return error_S + torch.where(rollouts.tags_S > 0, extra_S, 1.0)


def resample_on_correct(
    rollouts: Rollouts,
    *,
    zero_penalty: Literal["first", "uniform"],
    odd: Literal["positive", "negative"],
    least: int,
    generator: torch.Generator,
) -> Tensor:
    """rStar2's resample-on-correct: indices of the kept half. Negatives uniformly, positives with probability ~ 1/penalty.

    Positives and negatives are halved separately. The paper does not say what weight a penalty of 0 gets: "first" keeps such
    positives before all others, "uniform" treats all positives alike if any has penalty 0. Nor how it rounds: `odd` names the
    kind that gets the larger half of odd counts. `least` of each kind are kept where there are that many (paper: no such rule, 0;
    released code: 2). Rewards are normalised after this, never before.
    """
    check_record("resample_on_correct", "rollouts", rollouts, Rollouts)
    check_record("resample_on_correct", "generator", generator, torch.Generator)
    check_choice("resample_on_correct", "zero_penalty", zero_penalty, ("first", "uniform"))
    check_choice("resample_on_correct", "odd", odd, ("positive", "negative"))
    positive = rollouts.correct_S.nonzero().flatten()
    negative = (~rollouts.correct_S).nonzero().flatten()
    keep_positive, keep_negative = _halves(positive.numel(), negative.numel(), odd=odd, least=least)
    penalty = trace_penalty(rollouts)[positive]
    if zero_penalty == "uniform" and bool((penalty == 0).any()):
        penalty = torch.ones_like(penalty)
    clean, dirty = positive[penalty == 0], positive[penalty > 0]
    kept_clean = _draw(clean, torch.ones(clean.numel(), dtype=torch.float64), min(keep_positive, clean.numel()), generator)
    kept_dirty = _draw(dirty, 1 / penalty[penalty > 0], keep_positive - kept_clean.numel(), generator)
    kept_negative = _draw(negative, torch.ones(negative.numel(), dtype=torch.float64), keep_negative, generator)
    return torch.cat([kept_clean, kept_dirty, kept_negative]).sort().values


def _halves(positives: int, negatives: int, *, odd: str, least: int) -> tuple[int, int]:
    """How many of each kind make up the kept half of 2G rollouts."""
    kept = (positives + negatives) // 2
    if type(least) is not int or not 0 <= 2 * least <= kept or (positives + negatives) % 2:
        raise ObjectiveError(
            "resample_on_correct needs an even number of rollouts, at least 4 for each of `least`",
            got=f"{positives + negatives} rollouts, least = {least!r}",
            why="half of them are kept, and `least` of each kind are part of that half",
            fix="oversample twice what is kept; least = 0 keeps the plain halves",
        )
    half = (positives + (odd == "positive")) // 2
    keep_positive = max(half, min(least, positives))
    keep_negative = max(kept - keep_positive, min(least, negatives))
    return kept - keep_negative, keep_negative


def _rate(success_G: Tensor) -> Tensor:
    check_float("a priority", success_G=success_G)
    if not bool(((success_G >= 0) & (success_G <= 1)).all()):
        raise ObjectiveError(
            "a priority needs success rates in 0 .. 1",
            got=str(success_G.tolist()),
            why="outside it the priority is negative; NaN means no rollout was scored",
            fix="pass correct / rollouts of each task that has rollouts",
        )
    return success_G


def _best(reward_S: Tensor, member_S: Tensor, group: int) -> int:
    indices = (member_S == group).nonzero().flatten()
    values = reward_S[indices]
    return int(indices[(values == values.max()).nonzero().flatten()[0]])


def _draw(indices: Tensor, weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` of the indices without replacement, with probability proportional to the weights."""
    if count == 0:
        return indices[:0]
    return indices[torch.multinomial(weights, count, replacement=False, generator=generator)]
