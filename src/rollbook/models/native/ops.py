"""Tensors to kernels: shapes and dtypes are the caller's promise, contiguity is checked here.

Legend: L packed positions, H width, I intermediate width, B rows being decoded, N query heads, K key/value heads, D head size,
V vocabulary.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rollbook.models.native.build import built
from rollbook.records import ModelError

ROWS = 64                       # as in kernels.h
HEADS = (16, 32, 64, 96, 128)   # head sizes that decoding's attention has a kernel for
BLOCK = 256                     # as in rb_draw
P, I64, F32, F64 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_double
SIGNATURES: dict[str, list[Any]] = {
    "rb_norm": [P, P, P, F32, P, P, P, I64, I64],
    "rb_norm_backward": [P, P, P, P, P, P, P, P, I64, I64],
    "rb_swiglu": [P, P, P, I64, I64, I64],
    "rb_swiglu_backward": [P, P, P, P, P, I64, I64, I64],
    "rb_rotate": [P, P, P, P, I64, I64, I64, I64, F32],
    "rb_attend": [P, P, P, P, P, P, P, P, F32, P, P, I64, I64, I64, I64, I64, I64, I64, I64, I64],
    "rb_gather": [P, P, P, I64, I64, I64, I64, I64],
    "rb_collect": [P, P, P, I64, P, P, P, I64, P, I64, I64, I64],
    "rb_weights": [P, P, F32, I64, I64, I64, I64],
    "rb_weights_backward": [P, P, F32, I64, I64],
    "rb_draw": [P, P, F64, P, P, P, P, P, I64, I64],
    "rb_softmax": [P, P, F32, P, P, P, I64, I64],
    "rb_softmax_backward": [P, P, F32, P, P, P, P, I64, I64],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """For each position of L, the places of a layout that were taken from it: `place[start[l]:start[l + 1]]`, in order."""

    start: Tensor
    place: Tensor

    @classmethod
    def of(cls, slot: Tensor, place: Tensor, length: int) -> Sums:
        """Of places and the positions that they were taken from."""
        order = torch.argsort(slot, stable=True)
        count = torch.bincount(slot, minlength=length)
        return cls(start=torch.cat([count.new_zeros(1), count.cumsum(0)]), place=place[order].contiguous())


class Kernels:
    """The library's functions over tensors in the processor's memory; bf16 where products read or write, fp32 elsewhere."""

    def __init__(self, library: ctypes.CDLL):
        for name, kinds in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes = kinds
            function.restype = ctypes.c_int if name == "rb_attend" else None
        self.call = library

    def norm(self, residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float, *, into: Tensor | None = None,
             scale: Tensor | None = None) -> Tensor:
        """RMS norm, bf16 [L, H], of residual [L, H] + delta; the sum goes to `into` (default: residual), 1 / rms to `scale`."""
        rows, width = residual.shape
        out = torch.empty(rows, width, dtype=torch.bfloat16)
        into = residual if into is None else into
        self.call.rb_norm(_at(residual), _maybe(delta), _at(weight), eps, _at(into), _at(out), _maybe(scale), rows, width)
        return out

    def norm_backward(self, residual: Tensor, weight: Tensor, scale: Tensor, grad_out: Tensor, grad_residual: Tensor | None,
                      halved: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        """Gradients by residual [L, H], the same in bf16 where `halved` asks for it, and by the weight [H]."""
        rows, width = residual.shape
        grad = torch.empty_like(residual)
        delta = torch.empty(rows, width, dtype=torch.bfloat16) if halved else None
        shares = torch.empty(math.ceil(rows / ROWS), width)
        self.call.rb_norm_backward(_at(residual), _at(weight), _at(scale), _at(grad_out), _maybe(grad_residual), _at(grad),
                                   _maybe(delta), _at(shares), rows, width)
        return grad, delta, shares.sum(0)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up, [L, I] of [L, 2 I]."""
        rows, both = gate_up.shape
        out = torch.empty(rows, both // 2, dtype=torch.bfloat16)
        start = _at(gate_up)
        self.call.rb_swiglu(start, start + both, _at(out), rows, both // 2, both)
        return out

    def swiglu_backward(self, gate_up: Tensor, grad: Tensor) -> Tensor:
        """The gradient by gate and up, [L, 2 I]."""
        rows, both = gate_up.shape
        back = torch.empty_like(gate_up)
        start, to = _at(gate_up), _at(back)
        self.call.rb_swiglu_backward(start, start + both, _at(grad), to, to + both, rows, both // 2, both)
        return back

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, *, back: bool = False) -> Tensor:
        """Rotary embedding of [L, heads, D], rows any distance apart; cos and sin [L, D] with halves repeated."""
        rows, heads, dim = x.shape
        x = x if x.stride(2) == 1 and x.stride(1) == dim else x.contiguous()
        out = torch.empty(rows, heads, dim, dtype=torch.bfloat16)
        self.call.rb_rotate(x.data_ptr(), _at(cos), _at(sin), _at(out), rows, heads, dim, x.stride(0), -1.0 if back else 1.0)
        return out

    def gather(self, x: Tensor, slots: Tensor) -> Tensor:
        """Rows of x [L, heads, D], any distance apart, as [B, heads, M, D]: place m of row b is position `slots` [B, M]."""
        (_, heads, dim), (rows, places) = x.shape, slots.shape
        x = x if x.stride(2) == 1 and x.stride(1) == dim else x.contiguous()
        out = torch.empty(rows, heads, places, dim, dtype=torch.bfloat16)
        self.call.rb_gather(x.data_ptr(), _at(slots), _at(out), rows, places, heads, dim, x.stride(0))
        return out

    def collect(self, first: tuple[Tensor, Sums], second: tuple[Tensor, Sums]) -> Tensor:
        """The way back from two such layouts, summed in fp32, [L, heads, D]."""
        (one, one_sums), (two, two_sums) = first, second
        length, heads, dim = one_sums.start.numel() - 1, one.shape[1], one.shape[3]
        out = torch.empty(length, heads, dim, dtype=torch.bfloat16)
        self.call.rb_collect(_at(one), _at(one_sums.start), _at(one_sums.place), one.shape[2], _at(two), _at(two_sums.start),
                             _at(two_sums.place), two.shape[2], _at(out), length, heads, dim)
        return out

    def weights(self, score: Tensor, seen: Tensor, scale: float) -> Tensor:
        """Softmax of scores [B, heads, Q, M] over what each query sees, written over them; `seen` is int32 [B, Q, 4]."""
        rows, heads, queries, places = score.shape
        self.call.rb_weights(_at(score), _at(seen), scale, rows, heads, queries, places)
        return score

    def weights_backward(self, weight: Tensor, grad: Tensor, scale: float) -> Tensor:
        """The slope by the scores, written over `grad`."""
        self.call.rb_weights_backward(_at(weight), _at(grad), scale, math.prod(weight.shape[:-1]), weight.shape[-1])
        return grad

    def attend(self, held: tuple[Tensor, Tensor], at_B: Tensor, mixed: Tensor, tables: tuple[Tensor, Tensor], window: int | None,
               norms: tuple[Tensor, Tensor, float] | None, scores: Tensor) -> Tensor:
        """Writes a token's key and value to a layer's cache `held`, [B, K, M, D] each, and attends, [B, N D]; see `rb_attend`."""
        key, value = held
        rows, kv, places, dim = key.shape
        heads = mixed.shape[1] // dim - 2 * kv
        if key.stride() != value.stride() or key.stride(3) != 1 or key.stride(2) != dim:
            raise ModelError("keys and values of a row must lie place by place", got=f"{key.stride()}, {value.stride()}")
        out = torch.empty(rows, heads * dim, dtype=torch.bfloat16)
        (cos, sin), (q_norm, k_norm, eps) = tables, norms or (None, None, 0.0)
        if self.call.rb_attend(key.data_ptr(), value.data_ptr(), _at(at_B), _at(mixed), _at(cos), _at(sin), _maybe(q_norm),
                               _maybe(k_norm), eps, _at(out), _at(scores), scores.shape[-1], rows, heads, kv, dim, key.stride(0),
                               key.stride(1), places, window or 0):
            raise ModelError("no kernel attends with heads of this size", got=f"{dim}", why=f"there are {HEADS}")
        return out

    def draw(self, logits: Tensor, uniform: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, log-probs and soundness of each row of logits [B, V]; uniforms are fp64."""
        rows, vocab = logits.shape
        blocks = math.ceil(vocab / BLOCK)
        token, logp = torch.empty(rows, dtype=torch.long), torch.empty(rows)
        sound = torch.empty(rows, dtype=torch.bool)
        mass, sums = torch.empty(rows, blocks * BLOCK), torch.empty(rows, blocks, dtype=torch.float64)
        self.call.rb_draw(_at(logits), _at(uniform), temperature, _at(token), _at(logp), _at(sound), _at(mass), _at(sums),
                          rows, vocab)
        return token, logp, sound

    def softmax(self, logits: Tensor, target: Tensor, temperature: float, to: tuple[Tensor, Tensor, Tensor]) -> None:
        """Log-prob of the target, entropy and normaliser of each row of [L, V], written to three contiguous [L]."""
        rows, vocab = logits.shape
        self.call.rb_softmax(_at(logits), _at(target), 1.0 / temperature, *map(_at, to), rows, vocab)

    def softmax_backward(self, logits: Tensor, target: Tensor, temperature: float, normalizer: Tensor, scale: Tensor,
                         aside: tuple[Tensor, Tensor] | None) -> Tensor:
        """The slope by the logits, written over them; `aside`: entropies, and the gradient by them, where they have one."""
        rows, vocab = logits.shape
        entropy, toward = (None, None) if aside is None else aside
        self.call.rb_softmax_backward(_at(logits), _at(target), 1.0 / temperature, _at(normalizer), _at(scale), _maybe(entropy),
                                      _maybe(toward), rows, vocab)
        return logits


_HELD: list[Kernels | None] = []        # once it is known whether there are any


def kernels(dtype: torch.dtype, device: torch.device) -> Kernels | None:
    """The kernels where they are what computes: bf16 in the processor's memory; None where torch's operations do."""
    if dtype != torch.bfloat16 or device.type != "cpu":
        return None
    if not _HELD:
        library = built().library
        _HELD.append(None if library is None else Kernels(library))
    return _HELD[0]


def _at(x: Tensor) -> int:
    if not x.is_contiguous():
        raise ModelError("a kernel reads contiguous memory", got=f"shape {tuple(x.shape)}, strides {x.stride()}")
    return x.data_ptr()


def _maybe(x: Tensor | None) -> int | None:
    return None if x is None else _at(x)
