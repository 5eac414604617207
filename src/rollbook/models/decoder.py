"""The decoder as a module: parameters under transformers' checkpoint names, forward over packed trees.

Matrix products run in the compute dtype, the residual stream, norms and softmax in fp32.
Legend: L packed positions, H width, K experts that a token takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rollbook.models.architecture import Architecture, to_config
from rollbook.models.attention import Scene, attend, rotate, scene
from rollbook.models.layout import Layout
from rollbook.models.native import autograd
from rollbook.models.native.ops import kernels
from rollbook.models.routing import GateRule, replayed_gates


class Norm(nn.Module):
    """Root-mean-square norm in fp32."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, in fp32."""
    return F.rms_norm(x.float(), (weight.shape[0],), weight.float(), eps)


class Attention(nn.Module):
    """Grouped-query attention of packed trees."""

    def __init__(self, a: Architecture):
        super().__init__()
        self.a = a
        self.q_proj = nn.Linear(a.hidden, a.heads * a.head_dim, bias=a.qkv_bias)
        self.k_proj = nn.Linear(a.hidden, a.kv_heads * a.head_dim, bias=a.qkv_bias)
        self.v_proj = nn.Linear(a.hidden, a.kv_heads * a.head_dim, bias=a.qkv_bias)
        self.o_proj = nn.Linear(a.heads * a.head_dim, a.hidden, bias=False)
        if a.qk_norm:
            self.q_norm = Norm(a.head_dim, a.norm_eps)
            self.k_norm = Norm(a.head_dim, a.norm_eps)

    def forward(self, x: Tensor, layout: Layout, seen: Scene) -> Tensor:
        a = self.a
        heads = (a.heads, a.kv_heads, a.kv_heads)
        q, k, v = (part.view(-1, n, a.head_dim) for n, part in zip(heads, self._projected(x), strict=True))
        if a.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, seen, x.dtype), rotate(k, seen, x.dtype)
        return linear(self.o_proj, attend(q, k, v, layout, seen).reshape(x.shape[0], -1))

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values side by side, [L, heads x D] each; by one product where the kernels compute."""
        layers = (self.q_proj, self.k_proj, self.v_proj)
        if kernels(x.dtype, x.device) is None or not plain(layers):
            return tuple(linear(layer, x) for layer in layers)
        together = autograd.together(x, [layer.weight for layer in layers],
                                     [layer.bias for layer in layers] if self.a.qkv_bias else None)
        return together.split([layer.out_features for layer in layers], dim=1)


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer's product in x's dtype; master weights are cast on the way, so their gradient arrives in fp32."""
    if type(layer) is not nn.Linear:
        return layer(x)
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    return F.linear(x, layer.weight.to(x.dtype), bias)


def plain(layers: Iterable[nn.Module]) -> bool:
    """Whether these are linear layers and nothing else, whose matrices may be read together."""
    return all(type(layer) is nn.Linear and type(layer.weight) is nn.Parameter for layer in layers)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, intermediate: int):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        native = kernels(x.dtype, x.device)
        if native is not None and plain((self.gate_proj, self.up_proj)):
            both = autograd.together(x, [self.gate_proj.weight, self.up_proj.weight], None)
            return linear(self.down_proj, autograd.swiglu(native, both))
        return linear(self.down_proj, F.silu(linear(self.gate_proj, x)) * linear(self.up_proj, x))


class Experts(nn.Module):
    """Sparse feed-forward: softmax router in fp32, the best k experts, renormalised where the architecture says so."""

    def __init__(self, a: Architecture):
        super().__init__()
        self.a = a
        self.gate = nn.Linear(a.hidden, a.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(a.hidden, a.intermediate) for _ in range(a.experts))

    def forward(self, x: Tensor, routes_LK: Tensor | None = None, seen: list[Tensor] | None = None) -> Tensor:
        """`routes_LK` are experts to take instead of the router's choice; what was taken is added to `seen`."""
        logits = linear(self.gate, x)
        if routes_LK is None:
            weight, chosen = route(self.a, logits)
        else:
            weight, chosen = replayed_gates(logits, routes_LK, GateRule.of(self.a)), routes_LK
        if seen is not None:
            seen.append(chosen)
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for index, expert in enumerate(self.experts):
            token, rank = (chosen == index).nonzero(as_tuple=True)
            if token.numel():
                out = out.index_add(0, token, expert(x[token]).float() * weight[token, rank, None])
        return out.to(x.dtype)


def route(a: Architecture, router_logits: Tensor) -> tuple[Tensor, Tensor]:
    """(weights, experts) of each token's chosen experts, [L, k]; gradient flows through the weights, not the choice."""
    probability = router_logits.float().softmax(-1)
    weight, chosen = probability.topk(a.experts_per_token, dim=-1)
    if a.renormalize_experts:
        weight = weight / weight.sum(-1, keepdim=True)
    return weight, chosen


class Block(nn.Module):
    """One pre-norm layer."""

    def __init__(self, a: Architecture, index: int):
        super().__init__()
        self.index = index
        self.input_layernorm = Norm(a.hidden, a.norm_eps)
        self.self_attn = Attention(a)
        self.post_attention_layernorm = Norm(a.hidden, a.norm_eps)
        self.mlp: nn.Module = Experts(a) if a.experts else FeedForward(a.hidden, a.intermediate)

    def forward(self, residual: Tensor, delta: Tensor | None, layout: Layout, seen: Scene,
                dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The residual stream with `delta` and the attention's output added, and what the feed-forward will add to it."""
        residual, x = add_norm(self.input_layernorm, residual, delta, dtype)
        residual, x = add_norm(self.post_attention_layernorm, residual, self.self_attn(x, layout, seen), dtype)
        if not isinstance(self.mlp, Experts):
            return residual, self.mlp(x)
        routes_LK = None if layout.routes_LYK is None else layout.routes_LYK[:, self.index]
        return residual, self.mlp(x, routes_LK, layout.chosen)


def add_norm(norm: Norm, residual: Tensor, delta: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The residual stream with `delta` added, in fp32, and its norm in the compute dtype."""
    native = kernels(dtype, residual.device)
    if native is not None and type(norm.weight) is nn.Parameter and norm.weight.dtype == torch.float32:
        return autograd.add_norm(native, residual, delta, norm.weight, norm.eps)
    residual = residual if delta is None else residual + delta.float()
    return residual, norm(residual).to(dtype)


class Body(nn.Module):
    """Embedding, layers, final norm."""

    def __init__(self, a: Architecture):
        super().__init__()
        self.embed_tokens = nn.Embedding(a.vocab, a.hidden)
        self.layers = nn.ModuleList(Block(a, index) for index in range(a.layers))
        self.norm = Norm(a.hidden, a.norm_eps)


class Decoder(nn.Module):
    """A causal language model whose state dict has transformers' checkpoint names.

    `checkpointing`: a training pass keeps each layer's input alone and computes the rest of the layer again in backward.
    """

    def __init__(self, a: Architecture):
        super().__init__()
        self.architecture = a
        self.checkpointing = False
        self.model = Body(a)
        if not a.tied:
            self.lm_head = nn.Linear(a.hidden, a.vocab, bias=False)

    @property
    def device(self) -> torch.device:
        """Where the weights are. Layouts are moved there, and what `logprobs` and `scalar` find comes back to the processor."""
        return next(self.parameters()).device

    @property
    def head(self) -> Tensor:
        """Output matrix [V, H]."""
        return self.model.embed_tokens.weight if self.architecture.tied else self.lm_head.weight

    def forward(self, layout: Layout, dtype: torch.dtype) -> Tensor:
        """Hidden states after the final norm, [L, H] in `dtype`; one-position shift and softmax live in `logprobs`."""
        layout = layout.to(self.device)
        seen = scene(self.architecture, layout, dtype)
        residual, delta = self.model.embed_tokens(layout.token_L).float(), None
        again = self.checkpointing and torch.is_grad_enabled()
        for block in self.model.layers:
            given = (residual, delta, layout, seen, dtype)
            residual, delta = checkpoint(block, *given, use_reentrant=False, preserve_rng_state=False) if again else block(*given)
        return add_norm(self.model.norm, residual, delta, dtype)[1]

    def held_as(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which an engine holds a parameter: matrices in its compute dtype, norms in fp32."""
        return torch.float32 if name.endswith(("norm.weight", "layernorm.weight")) else dtype

    def write(self, folder: Path) -> None:
        """Weights and configuration, as transformers reads them."""
        save_file({name: p.detach().cpu() for name, p in self.named_parameters()}, str(folder / "model.safetensors"),
                  metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(to_config(self.architecture), indent=1, sort_keys=True))


def initialize(decoder: Decoder, seed: int) -> None:
    """Normal weights with standard deviation 0.02 (residual outputs scaled by depth), norms at one, from one generator."""
    generator = torch.Generator().manual_seed(seed)
    depth = (2 * decoder.architecture.layers) ** -0.5
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            scale = 0.02 * (depth if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
