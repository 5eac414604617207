"""The weights as the embedded engine reads them: one fused copy per publication in the compute dtype, and its two passes.

Legend: B rows being decoded, P padded prompt length, M cached positions, H width, N query heads, K key/value heads,
R = N / K, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rollbook.models.architecture import Architecture
from rollbook.models.attention import rotary_table
from rollbook.models.cache import Cache
from rollbook.models.decoder import Decoder, rms_norm, route
from rollbook.models.matrix import Matrix
from rollbook.models.native.ops import HEADS, Kernels, kernels

LANES = 16         # floats that a kernel reads together


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedFeedForward:
    """Gate and up projection in one product."""

    gate_up: Matrix
    down: Matrix

    def __call__(self, x: Tensor) -> Tensor:
        both = self.gate_up(x)
        native = kernels(both.dtype, both.device)
        if native is not None:
            return self.down(native.swiglu(both))
        gate, up = both.chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedExperts:
    """Sparse feed-forward with the same router as the learner's."""

    architecture: Architecture
    gate: Matrix
    experts: tuple[FusedFeedForward, ...]

    def __call__(self, x: Tensor) -> Tensor:
        return self.routed(x)[0]

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output of every token, and the experts that it took, [*, K]."""
        weight, chosen = route(self.architecture, self.gate(x))
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for index, expert in enumerate(self.experts):
            token, rank = (chosen == index).nonzero(as_tuple=True)
            if token.numel():
                out.index_add_(0, token, expert(x[token]).float() * weight[token, rank, None])
        return out.to(x.dtype), chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayer:
    """One layer's weights; norms stay in fp32."""

    norm_in: Tensor
    qkv: Matrix
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Matrix
    norm_mid: Tensor
    feed: FusedFeedForward | FusedExperts


class WorkingCopy:
    """Fused weights of one policy version and the two passes over them: prefill and decode."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype):
        self.architecture = a = decoder.architecture
        self.dtype, self.device = dtype, decoder.device
        self.native: Kernels | None = kernels(dtype, decoder.device)
        with torch.no_grad():
            self.embedding = _copy(decoder.model.embed_tokens.weight, dtype)
            self.head = Matrix(decoder.head, dtype)
            self.layers = tuple(_fuse(layer, a, dtype) for layer in decoder.model.layers)
            self.norm = _copy(decoder.model.norm.weight, torch.float32)

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """The copy's tensors under the decoder's parameter names, fused ones taken apart again."""
        a = self.architecture
        yield "model.embed_tokens.weight", self.embedding
        yield "model.norm.weight", self.norm
        if not a.tied:
            yield "lm_head.weight", self.head.dense()
        for index, layer in enumerate(self.layers):
            yield from ((f"model.layers.{index}.{name}", tensor) for name, tensor in _unfuse(layer, a))

    def ordered(self) -> Iterator[tuple[str, Tensor]]:
        """The same in name order, one layer at a time: a hash needs no second copy of all weights."""
        a = self.architecture
        if not a.tied:
            yield "lm_head.weight", self.head.dense()
        yield "model.embed_tokens.weight", self.embedding
        for prefix, index in sorted((f"model.layers.{index}.", index) for index in range(len(self.layers))):
            yield from sorted(((prefix + name, tensor) for name, tensor in _unfuse(self.layers[index], a)),
                              key=lambda item: item[0])
        yield "model.norm.weight", self.norm

    @torch.inference_mode()
    def prefill(self, token_BP: Tensor, length_B: Tensor, prefix: Cache | None = None) -> tuple[Tensor, Cache]:
        """Logits [B, V] after each row's last token, and the rows' cache, with no room to spare; tokens and lengths come from the
        processor's memory.

        `prefix` is the one-row cache of what stands before every row; it is computed once and copied.
        """
        a = self.architecture
        rows, width = token_BP.shape
        before = 0 if prefix is None else int(prefix.length_B)
        start = 0 if prefix is None else prefix.start
        held, end = before - start, before + width
        cache = Cache.empty(a, rows, held + width, self.dtype, self.device)
        cache.start = start
        cache.length_B += length_B + before
        if prefix is not None:
            for mine, theirs in zip(cache.held, prefix.held, strict=True):
                mine[:, :, :, :held] = theirs[..., :held, :]
        bias = self._causal(start, before, width).repeat(a.group, 1)
        tables = rotary_table(a, torch.arange(before, end, device=self.device).repeat(rows))
        residual, delta = self.embedding[token_BP.flatten().to(self.device)].float(), None
        for index, layer in enumerate(self.layers):
            q, k, v = self._project(layer, self._norm(residual, delta, layer.norm_in), tables)
            q, k, v = (x.view(rows, width, -1, a.head_dim).transpose(1, 2) for x in (q, k, v))
            cache.key[index, :, :, held:], cache.value[index, :, :, held:] = k, v
            rowed = q.reshape(rows, a.kv_heads, a.group * width, a.head_dim)
            mixed = F.scaled_dot_product_attention(rowed, cache.key[index], cache.value[index], attn_mask=bias)
            mixed = mixed.view(rows, a.heads, width, a.head_dim).transpose(1, 2).reshape(rows * width, -1)
            delta, chosen = self._finish(layer, residual, mixed)
            if cache.route is not None and chosen is not None:
                cache.route[index, :, 0, held:] = chosen.view(rows, width, -1).to(torch.int16)
        last, last_delta = (x.view(rows, width, -1)[torch.arange(rows), length_B - 1] for x in (residual, delta))
        return self.logits(last, last_delta), cache

    def _causal(self, start: int, before: int, width: int) -> Tensor:
        """Additive mask of a block of queries at `before` and after it, over the positions from `start` on."""
        at, seen = (torch.arange(first, before + width, device=self.device) for first in (before, start))
        mask = at[:, None] >= seen[None, :]
        if self.architecture.window is not None:
            mask &= at[:, None] - seen[None, :] < self.architecture.window
        return torch.zeros(mask.shape, dtype=self.dtype, device=self.device).masked_fill_(~mask, float("-inf"))

    @torch.inference_mode()
    def decode(self, token_B: Tensor, cache: Cache) -> Tensor:
        """Logits [B, V] after one more token per row; appends it to the cache, whose rows have room for it or for the window."""
        slot = cache.length_B.to(self.device) % cache.key.shape[3]
        row = torch.arange(token_B.shape[0], device=self.device)
        attended = self._attended(cache) if self.native is None or self.architecture.head_dim not in HEADS else \
            self._attended_natively(self.native, cache)
        residual, delta = self.embedding[token_B.to(self.device)].float(), None
        for index, layer in enumerate(self.layers):
            mixed = attended(index, self._norm(residual, delta, layer.norm_in))
            delta, chosen = self._finish(layer, residual, mixed)
            if cache.route is not None and chosen is not None:
                cache.route[index, row, 0, slot] = chosen.to(torch.int16)
        cache.length_B += 1
        return self.logits(residual, delta)

    def _attended(self, cache: Cache) -> Callable[[int, Tensor], Tensor]:
        """What attends for one token of every row in a layer, from its normed input [B, H] to [B, N D]."""
        a = self.architecture
        at, seen = cache.length_B.to(self.device, copy=True), cache.key.shape[3]
        rows = at.shape[0]
        row = torch.arange(rows, device=self.device)
        age = (at[:, None] - torch.arange(seen, device=self.device)) % seen        # how far back what stands at a place lies
        mask = age <= at[:, None]
        if a.window is not None:
            mask &= age < a.window
        slot = at % seen
        bias = torch.zeros(mask.shape, dtype=torch.float32, device=self.device).masked_fill_(~mask, float("-inf"))[:, None, None]
        tables = rotary_table(a, at)
        scale = a.head_dim ** -0.5

        def attended(index: int, x: Tensor) -> Tensor:
            q, k, v = self._project(self.layers[index], x, tables)
            cache.key[index, row, :, slot] = k
            cache.value[index, row, :, slot] = v
            key, value = cache.key[index].flatten(0, 1), cache.value[index].flatten(0, 1)
            # keys on the left: the product takes them where they lie, on the right it would copy them at every step
            score = torch.bmm(key, q.reshape(rows * a.kv_heads, a.group, a.head_dim).transpose(1, 2)).transpose(1, 2)
            weight = torch.softmax(score.float().mul_(scale).view(rows, a.kv_heads, a.group, seen).add_(bias), dim=-1)
            return torch.bmm(weight.to(self.dtype).flatten(0, 1), value).view(rows, -1)
        return attended

    def _attended_natively(self, native: Kernels, cache: Cache) -> Callable[[int, Tensor], Tensor]:
        """The same by one kernel a layer."""
        a = self.architecture
        at, seen = cache.length_B.clone(), cache.key.shape[3]
        tables = rotary_table(a, at)
        scores = torch.empty(at.shape[0] * a.kv_heads, -(-seen // LANES) * LANES)

        def attended(index: int, x: Tensor) -> Tensor:
            layer = self.layers[index]
            norms = None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm, a.norm_eps)
            mixed = layer.qkv(x, layer.qkv_bias)
            return native.attend((cache.key[index], cache.value[index]), at, mixed, tables, a.window, norms, scores)
        return attended

    def logits(self, residual: Tensor, delta: Tensor | None = None) -> Tensor:
        """Logits [*, V] of the final hidden states, in the compute dtype: whoever reads them takes them to fp32."""
        return self.head(self._norm(residual, delta, self.norm))

    def _norm(self, residual: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        """The norm of the residual stream in the compute dtype, once `delta` has been added to it in place."""
        eps = self.architecture.norm_eps
        if self.native is not None:
            return self.native.norm(residual, delta, weight, eps)
        return rms_norm(residual if delta is None else residual.add_(delta), weight, eps).to(self.dtype)

    def _project(self, layer: FusedLayer, x: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, of every token's normed input: [*, N, D], [*, K, D], [*, K, D]."""
        a = self.architecture
        mixed = layer.qkv(x, layer.qkv_bias).view(x.shape[0], -1, a.head_dim)
        qk, v = mixed[:, :a.heads + a.kv_heads], mixed[:, a.heads + a.kv_heads:]
        if self.native is not None and layer.q_norm is None:
            return *self.native.rotate(qk, *tables).split([a.heads, a.kv_heads], dim=1), v
        qk = qk.float()
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk.split([a.heads, a.kv_heads], dim=1)
            qk = torch.cat([rms_norm(q, layer.q_norm, a.norm_eps), rms_norm(k, layer.k_norm, a.norm_eps)], dim=1)
        cos, sin = _turning(tables)
        qk = torch.addcmul(qk * cos, qk.roll(a.head_dim // 2, -1), sin).to(self.dtype)
        return *qk.split([a.heads, a.kv_heads], dim=1), v

    def _finish(self, layer: FusedLayer, residual: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor | None]:
        """What a layer's feed-forward adds to the residual stream, which has taken the attention's, and the experts, [*, K]."""
        x = self._norm(residual, layer.out(mixed), layer.norm_mid)
        if isinstance(layer.feed, FusedFeedForward):
            return layer.feed(x), None
        return layer.feed.routed(x)


def _turning(tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """cos and sin [*, 1, D] for `x cos + roll(x) sin`: the sign of a rotation's first half stands in the sine."""
    cos, sin = tables
    half = cos.shape[-1] // 2
    return cos[:, None], torch.cat([-sin[:, :half], sin[:, half:]], dim=-1)[:, None]


def working_copy(decoder: Decoder, dtype: torch.dtype) -> WorkingCopy:
    """The copy that fits the decoder: fused weights, or transformers' own modules where there is no fast path."""
    from rollbook.models.fallback_copy import Fallback, FallbackCopy
    return FallbackCopy(decoder, dtype) if isinstance(decoder, Fallback) else WorkingCopy(decoder, dtype)


def _copy(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.detach().to(dtype, copy=True)


def _fuse(block: torch.nn.Module, a: Architecture, dtype: torch.dtype) -> FusedLayer:
    attention = block.self_attn
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    bias = torch.cat([p.bias for p in parts]).detach().to(dtype) if a.qkv_bias else None
    return FusedLayer(
        norm_in=_copy(block.input_layernorm.weight, torch.float32), qkv=Matrix(torch.cat([p.weight for p in parts]), dtype),
        qkv_bias=bias, q_norm=_copy(attention.q_norm.weight, torch.float32) if a.qk_norm else None,
        k_norm=_copy(attention.k_norm.weight, torch.float32) if a.qk_norm else None, out=Matrix(attention.o_proj.weight, dtype),
        norm_mid=_copy(block.post_attention_layernorm.weight, torch.float32),
        feed=_fuse_experts(block.mlp, a, dtype) if a.experts else _fuse_feed(block.mlp, dtype))


def _fuse_feed(feed: torch.nn.Module, dtype: torch.dtype) -> FusedFeedForward:
    return FusedFeedForward(gate_up=Matrix(torch.cat([feed.gate_proj.weight, feed.up_proj.weight]), dtype),
                            down=Matrix(feed.down_proj.weight, dtype))


def _fuse_experts(mlp: torch.nn.Module, a: Architecture, dtype: torch.dtype) -> FusedExperts:
    return FusedExperts(architecture=a, gate=Matrix(mlp.gate.weight, dtype),
                        experts=tuple(_fuse_feed(expert, dtype) for expert in mlp.experts))


def _unfuse(layer: FusedLayer, a: Architecture) -> Iterator[tuple[str, Tensor]]:
    sizes = [a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * a.head_dim]
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    yield "input_layernorm.weight", layer.norm_in
    yield "post_attention_layernorm.weight", layer.norm_mid
    yield "self_attn.o_proj.weight", layer.out.dense()
    yield from ((f"{name}.weight", part) for name, part in zip(names, layer.qkv.dense().split(sizes), strict=True))
    if layer.qkv_bias is not None:
        yield from ((f"{name}.bias", part) for name, part in zip(names, layer.qkv_bias.split(sizes), strict=True))
    if layer.q_norm is not None and layer.k_norm is not None:
        yield "self_attn.q_norm.weight", layer.q_norm
        yield "self_attn.k_norm.weight", layer.k_norm
    if isinstance(layer.feed, FusedFeedForward):
        yield from _unfuse_feed("mlp", layer.feed)
        return
    yield "mlp.gate.weight", layer.feed.gate.dense()
    for index, expert in enumerate(layer.feed.experts):
        yield from _unfuse_feed(f"mlp.experts.{index}", expert)


def _unfuse_feed(name: str, feed: FusedFeedForward) -> Iterator[tuple[str, Tensor]]:
    gate, up = feed.gate_up.dense().chunk(2)
    yield f"{name}.gate_proj.weight", gate
    yield f"{name}.up_proj.weight", up
    yield f"{name}.down_proj.weight", feed.down.dense()
