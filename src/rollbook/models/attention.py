"""Attention of packed trees: rotary embedding, and prompts and continuations as rows of two products.

What stands for every layer alike, tables and masks, is made once a pass (`Scene`). The functions here have backward passes of
their own where autograd's would write zeros, copy and add: their gradients are autograd's to the last bit.
Legend: L packed positions, G prompts of P, S continuations of C, M keys that a row may see, N query heads, K key/value heads,
R = N / K, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rollbook.models.architecture import Architecture
from rollbook.models.layout import Layout
from rollbook.models.native import autograd
from rollbook.models.native.attention import LONGEST, Sides
from rollbook.models.native.attention import attend as attend_natively
from rollbook.models.native.ops import kernels

LANES, WIDEST = 16, 256        # head sizes are multiples of the first up to the second where the kernels attend
SHORT = 1 << 23        # scores that a processor writes out (32 MiB of fp32 a layer): a fused kernel's backward is slower for them


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What every layer of a pass reads of its layout.

    `cos_L1D`, `sin_L1D` are fp32. The biases are 0 where a key may be seen and -inf elsewhere, in the form that `_grouped` adds.
    `turns` lists the continuations in order of their place within their prompt's: each prompt at most once a turn. `sides` is
    what the processor's kernels read in place of biases and turns.
    """

    cos_L1D: Tensor
    sin_L1D: Tensor
    prompt_bias: Tensor
    own_bias: Tensor
    turns: tuple[Tensor, ...]
    sides: Sides | None = None


def scene(a: Architecture, layout: Layout, dtype: torch.dtype) -> Scene:
    """The scene of a layout for layers that compute in `dtype`."""
    cos, sin = rotary_table(a, layout.position_L)
    if kernels(dtype, layout.token_L.device) is not None and _by_kernels(a, layout):
        nothing = torch.empty(0)
        return Scene(cos_L1D=cos[:, None], sin_L1D=sin[:, None], prompt_bias=nothing, own_bias=nothing, turns=(),
                     sides=Sides.of(layout))
    return Scene(cos_L1D=cos[:, None], sin_L1D=sin[:, None], prompt_bias=_bias(a, layout.prompt_mask_GPP, dtype),
                 own_bias=_bias(a, layout.own_mask_SCK, dtype), turns=_turns(layout.group_S))


def _by_kernels(a: Architecture, layout: Layout) -> bool:
    """Whether there is a kernel for the heads, and the scores are few enough to be written out."""
    masks = (layout.prompt_mask_GPP, layout.own_mask_SCK)
    return a.head_dim % LANES == 0 and a.head_dim <= WIDEST and all(
        mask.shape[2] <= LONGEST and mask.numel() * a.heads <= 2 * SHORT for mask in masks)


def rotary_table(architecture: Architecture, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of each position's angles, [*, D] in fp32, halves repeated."""
    dim = architecture.head_dim
    frequency = 1.0 / (architecture.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device=positions.device) / dim))
    angle = positions.to(torch.float32)[..., None] * frequency
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, seen: Scene, dtype: torch.dtype) -> Tensor:
    """Rotary embedding of [L, heads, D], computed in fp32."""
    native = kernels(dtype, x.device)
    if native is not None and x.dtype == dtype:
        return autograd.rotate(native, x, seen.cos_L1D, seen.sin_L1D)
    return _Rotated.apply(x, seen.cos_L1D, seen.sin_L1D, dtype)


class _Rotated(torch.autograd.Function):
    """x cos + turned(x) sin, where turned(x) is (-second half, first half)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.given = x.dtype
        half = x.shape[-1] // 2
        x = x.float()
        out = x * cos
        out[..., :half] -= x[..., half:] * sin[..., :half]
        out[..., half:] += x[..., :half] * sin[..., half:]
        return out.to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        half = grad.shape[-1] // 2
        grad = grad.float()
        back = grad * cos
        back[..., :half] += grad[..., half:] * sin[..., half:]
        back[..., half:] -= grad[..., :half] * sin[..., :half]
        return back.to(ctx.given), None, None, None


def attend(q: Tensor, k: Tensor, v: Tensor, layout: Layout, seen: Scene) -> Tensor:
    """Attention output [L, N, D]: prompts over themselves, continuations over their prompt and themselves."""
    native = kernels(q.dtype, q.device)
    if native is not None and seen.sides is not None:
        return attend_natively(native, q, k, v, seen.sides)
    (q_GP, q_SC), (k_GP, k_SC), (v_GP, v_SC) = (_spread(x, layout) for x in (q, k, v))
    out_G = _grouped(q_GP, k_GP, v_GP, seen.prompt_bias).flatten(0, 1)
    key_SM, value_SM = (torch.cat([_Shared.apply(prompt, layout.group_S, seen.turns), own], dim=1)
                        for prompt, own in ((k_GP, k_SC), (v_GP, v_SC)))
    out_S = _grouped(q_SC, key_SM, value_SM, seen.own_bias).flatten(0, 1)
    return torch.cat([out_G[layout.prompt_flat_L], out_S[layout.own_flat_L]])


def _spread(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    return _Spread.apply(x, layout.prompt_slots_GP, layout.own_slots_SC, layout.prompt_flat_L, layout.own_flat_L)


class _Spread(torch.autograd.Function):
    """Packed positions as padded rows of prompts and of continuations. What arrives at padding in backward is 0 and left out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, prompts: Tensor, owns: Tensor, prompt_flat: Tensor,
                own_flat: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(prompt_flat, own_flat)
        return x[prompts], x[owns]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_GP: Tensor, grad_SC: Tensor) -> tuple[Tensor, None, None, None, None]:
        prompt_flat, own_flat = ctx.saved_tensors
        return torch.cat([grad_GP.flatten(0, 1)[prompt_flat], grad_SC.flatten(0, 1)[own_flat]]), None, None, None, None


class _Shared(torch.autograd.Function):
    """Each continuation's copy of its prompt's rows; their gradients are summed in the order of the continuations."""

    @staticmethod
    def forward(ctx: Any, x_GP: Tensor, group_S: Tensor, turns: tuple[Tensor, ...]) -> Tensor:
        ctx.save_for_backward(group_S)
        ctx.turns, ctx.prompts = turns, x_GP.shape[0]
        return x_GP[group_S]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_SP: Tensor) -> tuple[Tensor, None, None]:
        group_S, = ctx.saved_tensors
        total = grad_SP.new_zeros(ctx.prompts, *grad_SP.shape[1:])
        for turn in ctx.turns:
            total[group_S[turn]] += grad_SP[turn]
        return total, None, None


def _turns(group_S: Tensor) -> tuple[Tensor, ...]:
    before: dict[int, int] = {}
    turns: list[list[int]] = []
    for at, prompt in enumerate(group_S.tolist()):
        turn = before[prompt] = before.get(prompt, -1) + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(at)
    return tuple(torch.tensor(turn).to(group_S.device) for turn in turns)


def _written_out(a: Architecture, rows: int, queries: int, keys: int, device: torch.device) -> bool:
    return device.type == "cpu" and rows * a.heads * queries * keys <= SHORT


def _bias(a: Architecture, mask_BQM: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, 1, 1, Q, M] in fp32 where scores are written out, [B, 1, R Q, M] in the compute dtype for the fused kernel."""
    written = _written_out(a, *mask_BQM.shape, mask_BQM.device)
    bias = torch.zeros(mask_BQM.shape, dtype=torch.float32 if written else dtype, device=mask_BQM.device)
    bias.masked_fill_(~mask_BQM, float("-inf"))
    return bias[:, None, None] if written else bias[:, None].repeat(1, 1, a.group, 1)


def _grouped(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """[B, Q, N, D] x [B, M, K, D] -> [B, Q, N, D]; the R query heads of a key head become rows of one product."""
    batch, length, heads, dim = q.shape
    kv = k.shape[2]
    rows = q.view(batch, length, kv, heads // kv, dim).permute(0, 2, 3, 1, 4).reshape(batch, kv, -1, dim)
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    if bias.dim() == 5:
        score = (rows @ k.transpose(2, 3)).view(batch, kv, heads // kv, length, k.shape[2])
        score = torch.add(bias, score, alpha=dim ** -0.5)
        out = score.softmax(-1).to(q.dtype).view(batch, kv, -1, k.shape[2]) @ v
    else:
        out = F.scaled_dot_product_attention(rows, k, v, attn_mask=bias)
    return out.view(batch, kv, heads // kv, length, dim).permute(0, 3, 1, 2, 4).reshape(batch, length, heads, dim)
