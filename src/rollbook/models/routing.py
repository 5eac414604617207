"""Routing replay: recorded experts, gate weights from the current logits (R3 2510.11370; V3.2's Keep Routing 2512.02556).

    score = softmax(z) or sigmoid(z);   w_k = score[idx_k],   divided by their sum where the model does so

The choice is data: gradient flows through scores, never through the selection, and group limits or selection biases play no part.
With renormalised softmax, and with sigmoid, logits that were not selected get gradient 0; with plain softmax they get it through
the normaliser. Nothing is consumed, so recomputing a layer reads the same routes again.

Legend: L packed positions, Y layers, E experts, K experts per token, P prompt tokens, C tokens of one continuation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

import torch
from torch import Tensor

from rollbook.models.architecture import Architecture
from rollbook.models.layout import Tree
from rollbook.records import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRule:
    """How a model turns router logits into gate weights."""

    score: Literal["softmax", "sigmoid"]
    renormalize: bool

    @classmethod
    def of(cls, a: Architecture) -> GateRule:
        """The rule of `decoder.route`."""
        return cls(score="softmax", renormalize=a.renormalize_experts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRoutes:
    """The experts recorded for one tree: its prompt once, each continuation after it, all [tokens, Y, K]."""

    prompt_PYK: Tensor
    continuations: tuple[Tensor, ...]


def replayed_gates(logits_LE: Tensor, expert_LK: Tensor, rule: GateRule) -> Tensor:
    """Gate weights [L, K] of the recorded experts, at least fp32; equals `decoder.route` where the record is today's choice."""
    check_routes(expert_LK, positions=logits_LE.shape[0], experts=logits_LE.shape[1])
    wide_LE = logits_LE if logits_LE.dtype == torch.float64 else logits_LE.float()
    match rule.score:
        case "softmax":
            score_LE = wide_LE.softmax(-1)
        case "sigmoid":
            score_LE = wide_LE.sigmoid()
        case _:
            assert_never(rule.score)
    weight_LK = score_LE.gather(1, expert_LK)
    return _renormalized(weight_LK, wide_LE.gather(1, expert_LK), rule) if rule.renormalize else weight_LK


def _renormalized(weight_LK: Tensor, logits_LK: Tensor, rule: GateRule) -> Tensor:
    """Weights divided by their sum; where all underflowed to 0, the same quotient from their logarithms."""
    total_L1 = weight_LK.sum(-1, keepdim=True)
    log_LK = logits_LK if rule.score == "softmax" else torch.nn.functional.logsigmoid(logits_LK)
    quotient_LK = weight_LK / torch.where(total_L1 > 0, total_L1, torch.ones_like(total_L1))
    return torch.where(total_L1 > 0, quotient_LK, log_LK.softmax(-1))


def check_routes(expert_LK: Tensor, *, positions: int, experts: int) -> None:
    """Refuse routes that cannot belong to these positions and experts."""
    if expert_LK.dtype != torch.int64 or expert_LK.dim() != 2 or expert_LK.shape[0] != positions:
        raise ModelError(f"replay needs int64 routes for {positions} positions",
                         got=f"{expert_LK.dtype} {tuple(expert_LK.shape)}",
                         why="route l belongs to position l; another length means another packing",
                         fix="pack the routes with the tokens (pack_routes)")
    if expert_LK.numel() and not 0 <= int(expert_LK.min()) <= int(expert_LK.max()) < experts:
        raise ModelError(f"recorded experts must lie in 0 .. {experts - 1}",
                         got=f"{int(expert_LK.min())} .. {int(expert_LK.max())}",
                         why="the routes are of another model, or a token's are missing",
                         fix="record routes for every token, prompt included")
    ordered_LK = expert_LK.sort(-1).values
    if bool((ordered_LK[:, 1:] == ordered_LK[:, :-1]).any()):
        raise ModelError("a token's recorded experts must differ", got="an expert twice", why="a top-k choice has no repeats")


def pack_routes(trees: Sequence[Tree], routes: Sequence[TreeRoutes]) -> Tensor:
    """Routes [L, Y, K] in the order of `layout.pack`: all prompts, then all continuations. Layer y's are `[:, y]`."""
    if len(trees) != len(routes):
        raise ModelError("pack_routes needs the routes of every tree", got=f"{len(trees)} trees, {len(routes)} routes")
    for place, (tree, own) in enumerate(zip(trees, routes, strict=True)):
        tokens = [len(tree.prompt), *map(len, tree.continuations)]
        recorded = [own.prompt_PYK.shape[0], *(each_CYK.shape[0] for each_CYK in own.continuations)]
        if tokens != recorded:
            raise ModelError(f"tree {place} needs a route for each of its tokens", got=f"{recorded} routes for {tokens} tokens",
                             why="one missing route shifts every later one (a prefix cache hit records none)",
                             fix="record prompt routes too, or do not replay this tree")
    parts = [own.prompt_PYK for own in routes] + [each_CYK for own in routes for each_CYK in own.continuations]
    return torch.cat(parts)
