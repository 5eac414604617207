"""The denominators, as printed. Legend: S all sequences of the optimizer step."""

from __future__ import annotations

from typing import Final

import numpy as np

from rollbook.audit.reference.step import Flags, Floats, Ids, RecomputeError
from rollbook.records.codec import nearest

AGGREGATES: Final = ("token_mean", "sequence_mean", "group_token_mean", "sequence_sum", "fixed_length")


def weights(how: str, length_S: Ids, group_S: Ids | None, max_length: int | None, keep_S: Flags | None = None,
            count_dropped: bool | None = None) -> Floats:
    """1 / denominator for each sequence's tokens: N sequences, M tokens, L tokens of a sequence, C = `max_length`  [0.4].

        token_mean 1/M    sequence_mean 1/(N L)    sequence_sum 1/N    fixed_length 1/(N C)
        group_token_mean 1/(groups * tokens of the group)

    Empty sequences and those outside `keep_S` weigh 0; N, M and the groups count them only if `count_dropped`.
    A term over correct sequences: keep_S=correct_S, count_dropped=False.
    """
    _check(how, group_S, max_length, keep_S, count_dropped)
    kept = [int(n) > 0 and (keep_S is None or bool(keep_S[i])) for i, n in enumerate(length_S)]
    counted = [True] * len(kept) if count_dropped else kept
    sequences, tokens = sum(counted), sum(int(n) for n, one in zip(length_S, counted, strict=True) if one)
    tokens_of: dict[int, int] = {}
    if group_S is not None:
        for n, group, one in zip(length_S, group_S, counted, strict=True):
            if one:
                tokens_of[int(group)] = tokens_of.get(int(group), 0) + int(n)
    weight_S = np.zeros(len(kept))
    for i, one in enumerate(kept):
        if one:
            divisor = {"token_mean": tokens, "sequence_mean": sequences * int(length_S[i]), "sequence_sum": sequences,
                       "fixed_length": sequences * (max_length or 0),
                       "group_token_mean": 0 if group_S is None else len(tokens_of) * tokens_of[int(group_S[i])]}[how]
            weight_S[i] = 1 / divisor
    return weight_S


def _check(how: str, group_S: object, max_length: int | None, keep_S: object, count_dropped: object) -> None:
    if how not in AGGREGATES:
        raise RecomputeError("the reference knows no aggregate of this name", got=repr(how),
                             why="the denominator is part of the algorithm",
                             fix=f"nearest: {nearest(str(how), list(AGGREGATES))}")
    if how == "group_token_mean" and group_S is None:
        raise RecomputeError("group_token_mean needs group_S", got="None", why="it divides by the tokens of each group",
                             fix="pass the group of each sequence")
    if how == "fixed_length" and not (isinstance(max_length, int) and max_length > 0):
        raise RecomputeError("fixed_length needs a whole max_length > 0", got=repr(max_length),
                             why="it divides by that many tokens per sequence", fix="pass the run's maximum number of new tokens")
    if keep_S is not None and count_dropped is None:
        raise RecomputeError("keep_S needs count_dropped True or False", got="None",
                             why="whether dropped sequences stay in the denominator is part of the algorithm", fix="say which")
