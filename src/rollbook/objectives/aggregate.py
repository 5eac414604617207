"""The denominator: each sequence's weight per token, fixed once per optimizer step.

Suffixes: S all sequences of the optimizer step (every micro-batch, every rank), T tokens, G groups.
"""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from rollbook.objectives.checks import check_choice, check_flags, check_ids, check_index, check_reaches, check_tensor
from rollbook.objectives.core import Aggregate as Aggregate
from rollbook.objectives.core import Unstated, number_ids
from rollbook.objectives.errors import ObjectiveError

UNSTATED_AGGREGATE = Unstated(what="aggregate")


def sequence_weight(
    how: Aggregate | Unstated,
    length_S: Tensor,
    group_S: Tensor | None,
    *,
    max_length: int | None = None,
    keep_S: Tensor | None = None,
    count_dropped: bool | None = None,
) -> Tensor:
    """Weight w_S (float64) such that sum_T w_S[seq_T] * loss_T, over all micro-batches and ranks, is the named aggregate.

        token_mean        1 / M                     M tokens of the step
        sequence_mean     1 / (N L_i)               N sequences
        group_token_mean  1 / (n_groups M_group)    as DAPO, Magistral and CISPO print it: per prompt, then over prompts
        sequence_sum      1 / N
        fixed_length      1 / (N max_length)

    A sequence of length 0 weighs 0 and is not counted in N. `keep_S` drops sequences: they weigh 0, and `count_dropped`
    decides whether they (and empty ones) stay in the denominator; it must be said as soon as sequences are dropped.
    Under `fixed_length` a kept sequence longer than `max_length` is refused. An empty step weighs nothing.

    Example: sequence_weight("group_token_mean", tensor([1, 3, 2]), tensor([7, 7, 9])) -> [1/8, 1/8, 1/4]
    """
    _check(how, length_S, group_S, max_length)
    kept_S = length_S > 0
    _check_keep(keep_S, length_S, count_dropped)
    if keep_S is not None:
        kept_S = kept_S & keep_S
    if how == "fixed_length":
        _check_longest(torch.where(kept_S, length_S, torch.zeros_like(length_S)), max_length)
    counted_S = torch.ones_like(kept_S) if count_dropped else kept_S
    inverse_S = 1.0 / _denominator_S(how, length_S, group_S, counted_S, max_length)
    return torch.where(kept_S, inverse_S, torch.zeros_like(inverse_S))


def token_weight(weight_S: Tensor, seq_T: Tensor) -> Tensor:
    """weight_T of a micro-batch whose `seq_T` indexes the step's sequences."""
    check_ids("token_weight", seq_T=seq_T)
    check_reaches("token_weight", "weight_S", weight_S, int(seq_T.max()) + 1 if seq_T.numel() else 0)
    check_index("token_weight", "seq_T", seq_T, weight_S.shape[0])
    return weight_S[seq_T.long()]


def check_aggregate(who: str, name: str, value: object) -> None:
    """Refuse a setting that names no denominator; `Unstated` is one that must still be named."""
    if not (isinstance(value, Unstated) and value.what.endswith("aggregate")):
        check_choice(who, name, value, get_args(Aggregate))


def _denominator_S(
    how: Aggregate | Unstated, length_S: Tensor, group_S: Tensor | None, counted_S: Tensor, max_length: int | None
) -> Tensor:
    tokens_S = torch.where(counted_S, length_S, torch.zeros_like(length_S)).to(torch.float64)
    sequences = counted_S.sum().to(torch.float64)
    match how:
        case "token_mean":
            divisor_S = tokens_S.sum().expand_as(tokens_S)
        case "sequence_mean":
            divisor_S = sequences * length_S.to(torch.float64)
        case "group_token_mean":
            assert group_S is not None
            member_S, size = number_ids(group_S)
            tokens_G = tokens_S.new_zeros(size).index_add(0, member_S, tokens_S)
            counted_G = tokens_S.new_zeros(size).index_add(0, member_S, counted_S.to(torch.float64))
            divisor_S = (counted_G > 0).sum() * tokens_G[member_S]
        case "sequence_sum":
            divisor_S = sequences.expand_as(tokens_S)
        case "fixed_length":
            assert max_length is not None
            divisor_S = (sequences * max_length).expand_as(tokens_S)
        case Unstated():
            raise how.refuse("sequence_weight")
    return torch.where(divisor_S > 0, divisor_S, torch.ones_like(divisor_S))


def _check(how: object, length_S: Tensor, group_S: Tensor | None, max_length: int | None) -> None:
    if isinstance(how, Unstated):
        raise how.refuse("sequence_weight")
    if not isinstance(how, str) or how not in get_args(Aggregate):
        raise ObjectiveError(
            f"aggregate must be one of {', '.join(get_args(Aggregate))}",
            got=repr(how),
            why="the denominator is part of the algorithm",
            fix="use the objective's own aggregate",
        )
    check_tensor("sequence_weight", "length_S", length_S)
    if length_S.dim() != 1 or length_S.dtype not in (torch.int64, torch.int32) or bool((length_S < 0).any()):
        raise ObjectiveError(
            "length_S must be a vector of token counts",
            got=f"{length_S.dtype} of shape {tuple(length_S.shape)}, values {length_S.tolist()}",
            why="the denominator counts tokens",
            fix="pass the structural number of action tokens of every sequence of the step",
        )
    if group_S is not None:
        check_tensor("sequence_weight", "group_S", group_S)
    if how == "group_token_mean" and (group_S is None or group_S.shape != length_S.shape or not _whole(group_S)):
        raise ObjectiveError(
            "group_token_mean needs one integer group id per sequence",
            got="None" if group_S is None else f"{group_S.dtype} of shape {tuple(group_S.shape)}, {length_S.shape[0]} sequences",
            why="it divides by the tokens of each prompt's group",
            fix="pass group_S for the whole step",
        )
    if how == "fixed_length" and (type(max_length) is not int or not 0 < max_length < 2**53):
        raise ObjectiveError(
            "fixed_length needs a whole max_length > 0",
            got=repr(max_length),
            why="it divides by a constant number of tokens per sequence",
            fix="pass the run's maximum number of new tokens",
        )


def _whole(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)


def _check_longest(length_S: Tensor, max_length: int | None) -> None:
    """Refuse a sequence with more tokens than the maximum that divides it."""
    if max_length is not None and bool((length_S > max_length).any()):
        raise ObjectiveError(
            f"fixed_length with max_length = {max_length} needs sequences of at most that many tokens",
            got=f"{int(length_S.max())} tokens in sequence {int(length_S.argmax())}",
            why="the divisor is the most a sequence can have; a longer one would weigh more than 1 / N",
            fix="pass the run's maximum number of action tokens per sequence, over all its turns",
        )


def _check_keep(keep_S: Tensor | None, length_S: Tensor, count_dropped: bool | None) -> None:
    if keep_S is not None:
        check_flags("sequence_weight", "keep_S", keep_S, length_S)
    if isinstance(count_dropped, bool) or (count_dropped is None and keep_S is None):
        return
    raise ObjectiveError(
        "count_dropped must be True or False when keep_S is given",
        got=repr(count_dropped),
        why="whether dropped sequences stay in the denominator changes the effective learning rate; papers differ",
        fix="pass count_dropped explicitly",
    )
