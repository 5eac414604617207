"""Attention of packed trees by the kernels: what a query sees as ranges, prompts and continuations gathered once, one backward.

Legend: L packed positions, G prompts of P, S continuations of C, M = P + C keys that a continuation may see, N query heads,
K key/value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rollbook.models.layout import Layout
from rollbook.models.native.ops import Kernels, Sums

LONGEST = 4096         # keys that a row of weights may have, as in rb_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Rows that attend alike, prompts or continuations: positions of queries and keys, what each query sees, and the way back."""

    query_slots: Tensor
    key_slots: Tensor
    seen: Tensor
    queries: Sums
    keys: Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Both kinds of rows of a layout."""

    prompts: Side
    owns: Side

    @classmethod
    def of(cls, layout: Layout) -> Sides:
        """Of a layout in the processor's memory."""
        length = layout.token_L.numel()
        prompt_valid = _valid(layout.prompt_slots_GP, layout.prompt_flat_L)
        own_valid = _valid(layout.own_slots_SC, layout.own_flat_L)
        key_slots = torch.cat([layout.prompt_slots_GP[layout.group_S], layout.own_slots_SC], dim=1)
        key_valid = torch.cat([prompt_valid[layout.group_S], own_valid], dim=1)
        split = layout.prompt_slots_GP.shape[1]
        return cls(prompts=_side((layout.prompt_slots_GP, prompt_valid), (layout.prompt_slots_GP, prompt_valid),
                                 layout.prompt_mask_GPP, split, length),
                   owns=_side((layout.own_slots_SC, own_valid), (key_slots, key_valid), layout.own_mask_SCK, split, length))


def _valid(slots: Tensor, flat: Tensor) -> Tensor:
    valid = torch.zeros(slots.numel(), dtype=torch.bool)
    valid[flat] = True
    return valid.view(slots.shape)


def _side(query: tuple[Tensor, Tensor], key: tuple[Tensor, Tensor], mask: Tensor, split: int, length: int) -> Side:
    (query_slots, query_valid), (key_slots, key_valid) = query, key
    seen = mask & query_valid[:, :, None]
    ranges = torch.cat([_range(seen[..., :split], 0), _range(seen[..., split:], split)], dim=-1).to(torch.int32).contiguous()
    return Side(query_slots=query_slots.contiguous(), key_slots=key_slots.contiguous(), seen=ranges,
                queries=_sums(query_slots, query_valid, length), keys=_sums(key_slots, key_valid, length))


def _range(seen: Tensor, offset: int) -> Tensor:
    """First and end of the places that are seen, which lie side by side, [*, 2]."""
    if not seen.shape[-1]:
        return torch.full((*seen.shape[:-1], 2), offset)
    first, several = seen.int().argmax(-1) + offset, seen.sum(-1)
    return torch.stack([first, first + several], dim=-1)


def _sums(slots: Tensor, valid: Tensor, length: int) -> Sums:
    place = valid.flatten().nonzero()[:, 0]
    return Sums.of(slots.flatten()[place], place, length)


def attend(native: Kernels, q: Tensor, k: Tensor, v: Tensor, sides: Sides) -> Tensor:
    """Attention output [L, N, D] of rotated queries [L, N, D], keys and values [L, K, D]."""
    out: Tensor = _Attended.apply(native, q, k, v, sides)
    return out


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, native: Kernels, q: Tensor, k: Tensor, v: Tensor, sides: Sides) -> Tensor:
        outs, saved = [], []
        for side in (sides.prompts, sides.owns):
            rows = [native.gather(q, side.query_slots), native.gather(k, side.key_slots), native.gather(v, side.key_slots)]
            query, key, value = _batched(*rows)
            score = torch.bmm(query, key.transpose(1, 2)).view(*rows[0].shape[:3], key.shape[1])
            weight = native.weights(score, side.seen, q.shape[2] ** -0.5)
            outs.append(torch.bmm(weight.view(*query.shape[:2], key.shape[1]), value).view(rows[0].shape))
            saved += [*rows, weight]
        ctx.save_for_backward(*saved)
        ctx.native, ctx.sides = native, sides
        return native.collect((outs[0], sides.prompts.queries), (outs[1], sides.owns.queries))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor, Tensor, None]:
        native: Kernels = ctx.native
        saved, found = ctx.saved_tensors, []                 # unpacked once: a checkpoint computes them again
        for side, rows in ((ctx.sides.prompts, saved[:4]), (ctx.sides.owns, saved[4:])):
            query, key, value = _batched(*rows[:3])
            weight = rows[3].view(*query.shape[:2], key.shape[1])
            arrived = native.gather(grad, side.query_slots).view(query.shape)
            of_value = torch.bmm(weight.transpose(1, 2), arrived)
            slope = torch.bmm(arrived, value.transpose(1, 2))
            slope = native.weights_backward(weight, slope, rows[0].shape[3] ** -0.5)
            found.append((torch.bmm(slope, key).view(rows[0].shape), torch.bmm(slope.transpose(1, 2), query).view(rows[1].shape),
                          of_value.view(rows[2].shape)))
        (q_one, k_one, v_one), (q_two, k_two, v_two) = found
        one, two = ctx.sides.prompts, ctx.sides.owns
        return (None, native.collect((q_one, one.queries), (q_two, two.queries)),
                native.collect((k_one, one.keys), (k_two, two.keys)), native.collect((v_one, one.keys), (v_two, two.keys)), None)


def _batched(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of a key head as rows of one product: [B K, R Q, D], [B K, M, D] twice."""
    rows, heads, places, dim = k.shape
    queries = q.shape[1] // heads * q.shape[2]
    return q.view(rows * heads, queries, dim), k.view(rows * heads, places, dim), v.view(rows * heads, places, dim)
