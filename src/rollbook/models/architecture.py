"""What a decoder looks like, read from a transformers config and written back as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rollbook.records import ModelError
from rollbook.records.recipe import Tiny

Kind = Literal["llama", "mistral", "qwen2", "qwen3", "qwen3_moe"]
CLASSES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Shape of a pre-norm rotary decoder with grouped queries; `window` is the sliding attention window in tokens.

    `experts` 0 means a dense feed-forward. `qk_norm` normalises queries and keys per head (Qwen3).
    """

    kind: Kind
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    rope_theta: float
    norm_eps: float
    tied: bool
    qkv_bias: bool
    qk_norm: bool
    window: int | None
    experts: int
    experts_per_token: int
    renormalize_experts: bool
    eos: int | None
    bos: int | None

    @property
    def keeps_tokens(self) -> bool:
        """Whether a cache holds tokens in place of keys and values."""
        return False

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads


def from_config(config: Mapping[str, Any]) -> Architecture:
    """The architecture a `config.json` describes; refuses what the fast path does not compute exactly."""
    kind = config.get("model_type")
    if kind not in CLASSES:
        raise ModelError("the embedded engine has no fast path for this architecture", got=f"model_type {kind!r}",
                         why=f"it computes {', '.join(CLASSES)} exactly and nothing else")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        raise ModelError("the fast path computes plain rotary positions only", got=f"rope_type {rope_type!r}")
    if rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelError("the fast path turns whole heads only", got="partial_rotary_factor below 1")
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError("the fast path computes SwiGLU only", got=f"hidden_act {config['hidden_act']!r}")
    unsupported = {"attention_bias": kind in ("llama", "qwen3", "qwen3_moe"), "mlp_bias": True}
    for name, refused in unsupported.items():
        if refused and config.get(name):
            raise ModelError(f"{name} is not computed by the fast path", got=f"{kind} with {name}=true")
    heads = config["num_attention_heads"]
    moe = kind == "qwen3_moe"
    if moe and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1):
        raise ModelError("mixed dense and sparse layers are not computed by the fast path", got="mlp_only_layers")
    return Architecture(
        kind=kind, layers=config["num_hidden_layers"], hidden=config["hidden_size"], heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate=config["moe_intermediate_size"] if moe else config["intermediate_size"],
        vocab=config["vocab_size"], context=config["max_position_embeddings"],
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        norm_eps=config.get("rms_norm_eps", 1e-6), tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2", qk_norm=kind in ("qwen3", "qwen3_moe"), window=_window(kind, config),
        experts=config["num_experts"] if moe else 0, experts_per_token=config["num_experts_per_tok"] if moe else 0,
        renormalize_experts=bool(config.get("norm_topk_prob", False)) if moe else False,
        eos=_first(config.get("eos_token_id")), bos=config.get("bos_token_id"))


def without_fast_path(config: Mapping[str, Any]) -> str | None:
    """Why the fast path does not compute the architecture of a `config.json`; None where it does."""
    try:
        from_config(config)
    except ModelError as error:
        return f"{error.what} ({error.got})"
    return None


def _window(kind: str, config: Mapping[str, Any]) -> int | None:
    if kind == "mistral":
        return config.get("sliding_window")
    if config.get("use_sliding_window") and config.get("sliding_window"):
        raise ModelError("layer-wise sliding windows are not computed by the fast path", got=f"{kind} with use_sliding_window")
    return None


def _first(value: Any) -> int | None:
    return value[0] if isinstance(value, list) else value


def to_config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` document from which transformers builds the same model."""
    a = architecture
    document: dict[str, Any] = {
        "model_type": a.kind, "architectures": [CLASSES[a.kind]], "num_hidden_layers": a.layers, "hidden_size": a.hidden,
        "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads, "head_dim": a.head_dim,
        "intermediate_size": a.intermediate, "vocab_size": a.vocab, "max_position_embeddings": a.context,
        "rope_theta": a.rope_theta, "rope_parameters": {"rope_theta": a.rope_theta, "rope_type": "default"},
        "rms_norm_eps": a.norm_eps, "tie_word_embeddings": a.tied, "hidden_act": "silu", "attention_bias": False,
        "attention_dropout": 0.0, "eos_token_id": a.eos, "bos_token_id": a.bos, "pad_token_id": a.eos,
        "torch_dtype": "float32", "use_cache": True,
    }
    if a.kind == "mistral":
        document["sliding_window"] = a.window
    if a.kind == "llama":
        document["mlp_bias"] = False
    if a.experts:
        document |= {"num_experts": a.experts, "num_experts_per_tok": a.experts_per_token,
                     "moe_intermediate_size": a.intermediate, "norm_topk_prob": a.renormalize_experts,
                     "decoder_sparse_step": 1, "mlp_only_layers": [],
                     "router_aux_loss_coef": 0.0, "use_sliding_window": False, "output_router_logits": False}
    return document


def tiny(settings: Tiny, *, vocab: int, eos: int, bos: int) -> Architecture:
    """The architecture of a model trained from scratch."""
    if settings.hidden % settings.heads or settings.heads % settings.kv_heads:
        raise ModelError("a tiny model's heads must divide its width, and its kv heads its heads",
                         got=f"hidden {settings.hidden}, heads {settings.heads}, kv_heads {settings.kv_heads}")
    moe = settings.architecture == "qwen3_moe"
    if moe != (settings.experts > 0):
        raise ModelError("experts belong to qwen3_moe and to nothing else",
                         got=f"{settings.architecture} with {settings.experts} experts")
    return Architecture(
        kind=settings.architecture, layers=settings.layers, hidden=settings.hidden, heads=settings.heads,
        kv_heads=settings.kv_heads, head_dim=settings.hidden // settings.heads, intermediate=settings.intermediate,
        vocab=vocab, context=settings.context, rope_theta=10000.0, norm_eps=1e-6, tied=True, qkv_bias=False, qk_norm=moe,
        window=settings.window, experts=settings.experts, experts_per_token=settings.experts_per_token,
        renormalize_experts=moe, eos=eos, bos=bos)
