"""The kernels with their backward passes: what the learner calls in place of several operations of torch's.

Legend: L packed positions, H width, I intermediate width, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rollbook.models.native.ops import Kernels


def add_norm(native: Kernels, residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The residual stream with `delta` [L, H] added, fp32, and its RMS norm, bf16."""
    found: tuple[Tensor, Tensor] = _AddNorm.apply(native, residual, delta, weight, eps)
    return found


def swiglu(native: Kernels, gate_up: Tensor) -> Tensor:
    """silu(gate) * up, [L, I] of [L, 2 I]."""
    out: Tensor = _SwiGLU.apply(native, gate_up)
    return out


def rotate(native: Kernels, x: Tensor, cos_L1D: Tensor, sin_L1D: Tensor) -> Tensor:
    """Rotary embedding of [L, heads, D]."""
    out: Tensor = _Rotated.apply(native, x, cos_L1D, sin_L1D)
    return out


def together(x: Tensor, weights: list[Tensor], biases: list[Tensor] | None) -> Tensor:
    """x times several matrices at once, their outputs side by side; gradients arrive in the weights' own dtype."""
    out: Tensor = _Together.apply(x, len(weights), *weights, *(biases or ()))
    return out


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, native: Kernels, residual: Tensor, delta: Tensor | None, weight: Tensor,
                eps: float) -> tuple[Tensor, Tensor]:
        total = residual.clone() if delta is None else torch.empty_like(residual)
        scale = torch.empty(residual.shape[0])
        x = native.norm(residual, delta, weight, eps, into=total, scale=scale)
        ctx.save_for_backward(total, weight, scale)
        ctx.native, ctx.halved = native, delta is not None
        ctx.set_materialize_grads(False)
        return total, x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor | None, grad_x: Tensor | None) -> tuple[None, Tensor, Tensor | None, Tensor, None]:
        total, weight, scale = ctx.saved_tensors
        grad_x = torch.zeros_like(total, dtype=torch.bfloat16) if grad_x is None else grad_x.contiguous()
        grad_total = None if grad_total is None else grad_total.contiguous()
        grad, grad_delta, grad_weight = ctx.native.norm_backward(total, weight, scale, grad_x, grad_total, ctx.halved)
        return None, grad, grad_delta, grad_weight, None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, native: Kernels, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        ctx.native = native
        return native.swiglu(gate_up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        gate_up, = ctx.saved_tensors
        return None, ctx.native.swiglu_backward(gate_up, grad.contiguous())


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, native: Kernels, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.native = native
        return native.rotate(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return None, ctx.native.rotate(grad, cos, sin, back=True), None, None


class _Together(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, several: int, *parts: Tensor) -> Tensor:
        weights, biases = parts[:several], parts[several:]
        weight = torch.empty(sum(w.shape[0] for w in weights), x.shape[1], dtype=x.dtype)
        for own, w in zip(weight.split([w.shape[0] for w in weights]), weights, strict=True):
            own.copy_(w)
        ctx.save_for_backward(x, weight)
        ctx.parts = [(p.shape[0], p.dtype) for p in weights], [(p.shape[0], p.dtype) for p in biases]
        return F.linear(x, weight, torch.cat([b.to(x.dtype) for b in biases]) if biases else None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        weights, biases = ctx.parts
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        wanted = ctx.needs_input_grad[2:]
        found: list[Tensor | None] = [None] * len(wanted)
        if any(wanted[:len(weights)]):
            found[:len(weights)] = _parted(grad.T @ x, weights, wanted)
        if any(wanted[len(weights):]):
            found[len(weights):] = _parted(grad.float().sum(0), biases, wanted[len(weights):])
        return grad_x, None, *found


def _parted(whole: Tensor, parts: list[tuple[int, torch.dtype]], wanted: tuple[bool, ...]) -> list[Tensor | None]:
    """Each part's own rows, those that are wanted."""
    rows = whole.split([length for length, _ in parts])
    return [part.to(dtype, copy=True) if yes else None for part, (_, dtype), yes in zip(rows, parts, wanted, strict=False)]
