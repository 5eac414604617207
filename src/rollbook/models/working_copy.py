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
from rollbook.models.decoder import Decoder, rms_norm, route
from rollbook.models.matrix import Matrix

CPU = torch.device("cpu")
ROOM = 32          # positions by which a cache's rows are widened: products over a row's whole width need no copy of it


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedFeedForward:
    """Gate and up projection in one product."""

    gate_up: Matrix
    down: Matrix

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
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


@dataclass(slots=True, kw_only=True)
class Cache:
    """Keys and values of B rows, [layers, B, K, M, D] each, and the length of each row in positions.

    A sparse model's also holds the experts that each position took, as int16 [layers, B, 1, M, experts per token].

    `length_B` is in the processor's memory, the rest where the weights are.

    Position p of a row stands at place p - `start`; in a cache that decoding has filled to its capacity, at p modulo M, where
    only the last M positions are left: enough for an architecture whose window is no longer.
    """

    key: Tensor
    value: Tensor
    length_B: Tensor
    start: int = 0
    route: Tensor | None = None

    @property
    def held(self) -> tuple[Tensor, ...]:
        """Everything that is held position by position."""
        return (self.key, self.value) if self.route is None else (self.key, self.value, self.route)

    def _made_of(self, made: Callable[[Tensor], Tensor]) -> None:
        """Replaces everything that is held."""
        self.key, self.value = made(self.key), made(self.value)
        self.route = None if self.route is None else made(self.route)

    @classmethod
    def empty(cls, a: Architecture, rows: int, capacity: int, dtype: torch.dtype, device: torch.device = CPU) -> Cache:
        """Room for `rows` rows of `capacity` positions."""
        shape = (a.layers, rows, a.kv_heads, capacity, a.head_dim)
        dtype = torch.int32 if a.keeps_tokens else dtype
        experts = (a.layers, rows, 1, capacity, a.experts_per_token)
        route = torch.zeros(experts, dtype=torch.int16, device=device) if a.experts else None
        return cls(key=torch.zeros(shape, dtype=dtype, device=device), value=torch.zeros(shape, dtype=dtype, device=device),
                   route=route, length_B=torch.zeros(rows, dtype=torch.long))

    def reach(self, positions: int) -> None:
        """Sees to it that every row is at least `positions` wide, and `ROOM` at a time, inside the memory it was made with.

        A row that is no wider than what it holds lies densely, which is what products over many rows need; what is held moves.
        """
        _, rows, heads, width, dim = self.key.shape
        wider = min(-(-positions // ROOM) * ROOM, self.key.stride(0) // (rows * heads * dim))
        if positions > width and wider > width:
            self._made_of(lambda x: _widened(x, wider))

    def narrow(self, positions: int) -> None:
        """Makes the rows of an empty cache `positions` wide, rounded up to `ROOM`; `reach` widens them again."""
        width = min(self.key.shape[3], max(ROOM, -(-positions // ROOM) * ROOM))
        self._made_of(lambda x: _strided(x, width))

    def first(self, rows: int) -> Cache:
        """A view of the first rows; what is appended to it is appended here."""
        return Cache(key=self.key[:, :rows], value=self.value[:, :rows], length_B=self.length_B[:rows],
                     route=None if self.route is None else self.route[:, :rows])

    def put(self, at: int, other: Cache, rows: Tensor) -> None:
        """Copies some of another cache's rows to here, from row `at` on."""
        length_B = other.length_B[rows]
        self.reach(int(length_B.max()))
        room = self.key.shape[3]
        for place, (row, length) in enumerate(zip(rows.tolist(), length_B.tolist(), strict=True), start=at):
            first = max(other.start, length - room)
            held = slice(first - other.start, length - other.start)
            for mine, theirs in zip(self.held, other.held, strict=True):
                if length <= room:
                    mine[:, place, :, first:length] = theirs[:, row, :, held]
                else:
                    mine[:, place, :, torch.arange(first, length) % room] = theirs[:, row, :, held]
        self.length_B[at:at + len(rows)] = length_B

    def row(self, row: int) -> Cache:
        """A copy of one row: what is held of it, in order."""
        length, room = int(self.length_B[row]), self.key.shape[3]
        first = max(self.start, length - room)
        place = (torch.arange(first, length) - self.start) % room
        return Cache(key=self.key[:, row:row + 1, :, place], value=self.value[:, row:row + 1, :, place],
                     length_B=self.length_B[row:row + 1].clone(), start=first,
                     route=None if self.route is None else self.route[:, row:row + 1, :, place])

    def experts(self, row: int) -> Tensor | None:
        """The experts of every position of a row, [positions, layers, experts per token]; None where they are not all held."""
        length = int(self.length_B[row])
        if self.route is None or self.start or length > self.key.shape[3]:
            return None
        return self.route[:, row, 0, :length].transpose(0, 1)

    def move(self, source: int, target: int) -> None:
        """Copies one row over another."""
        used = min(int(self.length_B[source]), self.key.shape[3])
        for held in self.held:
            held[:, target, :, :used] = held[:, source, :, :used]
        self.length_B[target] = self.length_B[source]


class WorkingCopy:
    """Fused weights of one policy version and the two passes over them: prefill and decode."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype):
        self.architecture = a = decoder.architecture
        self.dtype, self.device = dtype, decoder.device
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
        tables = _tables(a, torch.arange(before, end, device=self.device).repeat(rows))
        residual = self.embedding[token_BP.flatten().to(self.device)].float()
        for index, layer in enumerate(self.layers):
            q, k, v = self._project(layer, residual, tables)
            q, k, v = (x.view(rows, width, -1, a.head_dim).transpose(1, 2) for x in (q, k, v))
            cache.key[index, :, :, held:], cache.value[index, :, :, held:] = k, v
            rowed = q.reshape(rows, a.kv_heads, a.group * width, a.head_dim)
            mixed = F.scaled_dot_product_attention(rowed, cache.key[index], cache.value[index], attn_mask=bias)
            mixed = mixed.view(rows, a.heads, width, a.head_dim).transpose(1, 2).reshape(rows * width, -1)
            residual, chosen = self._finish(layer, residual, mixed)
            if cache.route is not None and chosen is not None:
                cache.route[index, :, 0, held:] = chosen.view(rows, width, -1).to(torch.int16)
        last = residual.view(rows, width, -1)[torch.arange(rows), length_B - 1]
        return self.logits(last), cache

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
        a = self.architecture
        rows = token_B.shape[0]
        row = torch.arange(rows, device=self.device)
        at = cache.length_B.to(self.device, copy=True)
        seen = cache.key.shape[3]
        age = (at[:, None] - torch.arange(seen, device=self.device)) % seen        # how far back what stands at a place lies
        mask = age <= at[:, None]
        if a.window is not None:
            mask &= age < a.window
        slot = at % seen
        bias = torch.zeros(mask.shape, dtype=torch.float32, device=self.device).masked_fill_(~mask, float("-inf"))[:, None, None]
        tables = _tables(a, at)
        scale = a.head_dim ** -0.5
        residual = self.embedding[token_B.to(self.device)].float()
        for index, layer in enumerate(self.layers):
            q, k, v = self._project(layer, residual, tables)
            cache.key[index, row, :, slot] = k
            cache.value[index, row, :, slot] = v
            key, value = cache.key[index].flatten(0, 1), cache.value[index].flatten(0, 1)
            # keys on the left: the product takes them where they lie, on the right it would copy them at every step
            score = torch.bmm(key, q.reshape(rows * a.kv_heads, a.group, a.head_dim).transpose(1, 2)).transpose(1, 2)
            weight = torch.softmax(score.float().mul_(scale).view(rows, a.kv_heads, a.group, seen).add_(bias), dim=-1)
            mixed = torch.bmm(weight.to(self.dtype).flatten(0, 1), value).view(rows, -1)
            residual, chosen = self._finish(layer, residual, mixed)
            if cache.route is not None and chosen is not None:
                cache.route[index, row, 0, slot] = chosen.to(torch.int16)
        cache.length_B += 1
        return self.logits(residual)

    def logits(self, residual: Tensor) -> Tensor:
        """Logits [*, V] of the final hidden states, in the compute dtype: whoever reads them takes them to fp32."""
        return self.head(rms_norm(residual, self.norm, self.architecture.norm_eps).to(self.dtype))

    def _project(self, layer: FusedLayer, residual: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, of every token: [*, N, D], [*, K, D], [*, K, D]."""
        a = self.architecture
        x = rms_norm(residual, layer.norm_in, a.norm_eps).to(self.dtype)
        mixed = layer.qkv(x, layer.qkv_bias).view(x.shape[0], -1, a.head_dim)
        qk, v = mixed[:, :a.heads + a.kv_heads].float(), mixed[:, a.heads + a.kv_heads:]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk.split([a.heads, a.kv_heads], dim=1)
            qk = torch.cat([rms_norm(q, layer.q_norm, a.norm_eps), rms_norm(k, layer.k_norm, a.norm_eps)], dim=1)
        cos, sin = tables
        qk = torch.addcmul(qk * cos, qk.roll(a.head_dim // 2, -1), sin).to(self.dtype)
        return *qk.split([a.heads, a.kv_heads], dim=1), v

    def _finish(self, layer: FusedLayer, residual: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor | None]:
        """The residual stream after a layer (the one given is written over), and the experts that were taken, [*, K]."""
        residual = residual.add_(layer.out(mixed))
        x = rms_norm(residual, layer.norm_mid, self.architecture.norm_eps).to(self.dtype)
        if isinstance(layer.feed, FusedFeedForward):
            return residual.add_(layer.feed(x)), None
        out, chosen = layer.feed.routed(x)
        return residual.add_(out), chosen


def _tables(a: Architecture, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [*, 1, D] for `x cos + roll(x) sin`: the sign of a rotation's first half stands in the sine."""
    cos, sin = rotary_table(a, positions)
    half = a.head_dim // 2
    return cos[:, None], torch.cat([-sin[:, :half], sin[:, half:]], dim=-1)[:, None]


def _strided(x: Tensor, width: int) -> Tensor:
    """The rows of an empty cache, `width` positions wide, in the same memory."""
    layers, rows, heads, _, dim = x.shape       # strided: a view of a single layer would forget how much room its memory has
    return x.as_strided((layers, rows, heads, width, dim), (x.stride(0), heads * width * dim, width * dim, dim, 1))


def _widened(x: Tensor, width: int) -> Tensor:
    """The same rows, `width` positions wide, in the same memory, layer by layer."""
    layers, rows, heads, held, dim = x.shape
    wider = x.as_strided((layers, rows, heads, width, dim), (x.stride(0), heads * width * dim, width * dim, dim, 1))
    for index in range(layers):
        wider[index, :, :, :held] = x[index].clone()
    return wider


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
