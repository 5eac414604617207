"""Parameter counts of a transformers `config.json`, by arithmetic alone: total and active, with and without embeddings and MTP.

Counted: every weight that training changes, embedding and output head included, a tied pair once. Not counted: rotary tables,
the bias that balances DeepSeek's experts, which no gradient reaches, and the vision part of a multimodal model.
`d` width, `f` feed-forward width, `h` heads, `k` key-value heads, `c` head width, `v` vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollbook.evidence.errors import EvidenceError
from rollbook.records.codec import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Parameters of one layer: all of them, and those that work on one token."""

    total: int
    active: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """A model's parameters. `table` is the embedding, and the output head too where the two are tied.

    `mtp` are the own parameters of the multi-token-prediction modules; a published checkpoint stores with each of the `modules` a
    copy of embedding and head.

    Example: Parameters(layers=64, layers_active=64, table=16, tied=False, norm=4, mtp=0, modules=0).total == 100
    """

    layers: int
    layers_active: int
    table: int
    tied: bool
    norm: int
    mtp: int
    modules: int

    @property
    def embedding(self) -> int:
        return self.table if self.tied else 2 * self.table

    @property
    def total(self) -> int:
        return self.layers + self.norm + self.embedding

    @property
    def active(self) -> int:
        return self.layers_active + self.norm + self.embedding

    @property
    def active_with_head(self) -> int:
        """Active without the input embedding, of which a token takes one row; the output head is used whole."""
        return self.layers_active + self.norm + self.table

    @property
    def non_embedding(self) -> int:
        return self.layers + self.norm

    @property
    def active_non_embedding(self) -> int:
        return self.layers_active + self.norm

    @property
    def with_mtp(self) -> int:
        return self.total + self.mtp

    @property
    def stored(self) -> int:
        """As a checkpoint with its prediction modules holds them."""
        return self.with_mtp + 2 * self.modules * self.table


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a configuration."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) and "hidden_size" in inner else config


def count(config: Mapping[str, Any]) -> Parameters:
    """The parameters of a configuration. Raises EvidenceError for an architecture whose arithmetic is not known here."""
    text = text_config(config)
    kind = text.get("model_type")
    layer = _LAYERS.get(str(kind))
    if layer is None:
        raise EvidenceError("parameters of this architecture are not counted here", got=f"model_type {kind!r}",
                            why="a guessed count would pass for a check", fix=f"known: {', '.join(_LAYERS)}; nearest: "
                            f"{nearest(str(kind), list(_LAYERS))}")
    layers = [layer(text, index) for index in range(need(text, "num_hidden_layers"))]
    width = need(text, "hidden_size")
    table = need(text, "vocab_size") * width
    modules = int(text.get("num_nextn_predict_layers") or 0)
    return Parameters(
        layers=sum(item.total for item in layers), layers_active=sum(item.active for item in layers), norm=width, table=table,
        tied=tied(config), mtp=modules * _prediction_module(text, layer) if modules else 0, modules=modules)


def tied(config: Mapping[str, Any]) -> bool:
    """Whether embedding and output head are one; the families counted here keep them apart unless the configuration says so."""
    text = text_config(config)
    return bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))


def need(text: Mapping[str, Any], key: str) -> int:
    """A whole number that the configuration must have."""
    value = text.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise EvidenceError(f"config.json needs a whole number {key}", got=repr(value),
                            fix="give the file that the model was published with")
    return value


def head_dim(text: Mapping[str, Any]) -> int:
    """Width of one head; the width over the heads where it is not given."""
    return int(text["head_dim"]) if text.get("head_dim") else need(text, "hidden_size") // need(text, "num_attention_heads")


def kv_heads(text: Mapping[str, Any]) -> int:
    """Key-value heads; as many as query heads where they are not given."""
    return need(text, "num_key_value_heads") if text.get("num_key_value_heads") is not None else need(text, "num_attention_heads")


def experts(text: Mapping[str, Any]) -> int | None:
    """Routed experts of a sparse layer, or None for a dense model; families name the number differently."""
    found = next((text[key] for key in ("num_local_experts", "num_experts", "n_routed_experts") if text.get(key)), None)
    return None if found is None else int(found)


def _attention(text: Mapping[str, Any], *, qkv_bias: bool, output_bias: bool, qk_norm: bool) -> int:
    """q, k, v and o projections: d·h·c + 2·d·k·c + h·c·d, with biases and per-head norms where the family has them."""
    d, c, h, k = need(text, "hidden_size"), head_dim(text), need(text, "num_attention_heads"), kv_heads(text)
    weights = d * h * c + 2 * d * k * c + h * c * d
    biases = (h * c + 2 * k * c if qkv_bias else 0) + (d if output_bias else 0)
    return weights + biases + (2 * c if qk_norm else 0)


def _gated(d: int, f: int, bias: bool = False) -> int:
    """Gate, up and down of one gated feed-forward block: 3·d·f."""
    return 3 * d * f + (2 * f + d if bias else 0)


def _dense(attention: int, text: Mapping[str, Any], bias: bool = False) -> Layer:
    d = need(text, "hidden_size")
    total = attention + _gated(d, need(text, "intermediate_size"), bias) + 2 * d
    return Layer(total=total, active=total)


def _sparse(attention: int, text: Mapping[str, Any], f: int, shared: int = 0) -> Layer:
    """Router d·e, e experts of 3·d·f of which `num_experts_per_tok` work, and what every token passes besides."""
    d, routed = need(text, "hidden_size"), experts(text)
    if routed is None:
        raise EvidenceError("config.json of a mixture of experts names no experts", got=f"model_type {text.get('model_type')!r}")
    fixed = attention + d * routed + shared + 2 * d
    return Layer(total=fixed + routed * _gated(d, f), active=fixed + need(text, "num_experts_per_tok") * _gated(d, f))


def _llama(text: Mapping[str, Any], index: int) -> Layer:
    bias = bool(text.get("attention_bias", False))
    return _dense(_attention(text, qkv_bias=bias, output_bias=bias, qk_norm=False), text, bool(text.get("mlp_bias", False)))


def _mistral(text: Mapping[str, Any], index: int) -> Layer:
    return _dense(_attention(text, qkv_bias=False, output_bias=False, qk_norm=False), text)


def _mixtral(text: Mapping[str, Any], index: int) -> Layer:
    return _sparse(_attention(text, qkv_bias=False, output_bias=False, qk_norm=False), text, need(text, "intermediate_size"))


def _qwen2(text: Mapping[str, Any], index: int) -> Layer:
    return _dense(_attention(text, qkv_bias=True, output_bias=False, qk_norm=False), text)


def _qwen3_attention(text: Mapping[str, Any]) -> int:
    bias = bool(text.get("attention_bias", False))
    return _attention(text, qkv_bias=bias, output_bias=bias, qk_norm=True)


def _qwen3(text: Mapping[str, Any], index: int) -> Layer:
    return _dense(_qwen3_attention(text), text)


def _qwen3_moe(text: Mapping[str, Any], index: int) -> Layer:
    dense = index in (text.get("mlp_only_layers") or ()) or (index + 1) % int(text.get("decoder_sparse_step") or 1)
    if dense or not experts(text):
        return _dense(_qwen3_attention(text), text)
    return _sparse(_qwen3_attention(text), text, need(text, "moe_intermediate_size"))


def _latent_attention(text: Mapping[str, Any]) -> int:
    """Queries through a rank, keys and values through another, with their norms (DeepSeek-V3, multi-head latent attention)."""
    d, h, kv = (need(text, key) for key in ("hidden_size", "num_attention_heads", "kv_lora_rank"))
    q = need(text, "q_lora_rank") if text.get("q_lora_rank") else 0
    plain, rotary, value = (need(text, key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    queries = d * q + q + q * h * (plain + rotary) if q else d * h * (plain + rotary)
    return queries + d * (kv + rotary) + kv + kv * h * (plain + value) + h * value * d


def _deepseek_v3(text: Mapping[str, Any], index: int) -> Layer:
    d, first = need(text, "hidden_size"), int(text.get("first_k_dense_replace") or 0)
    if index < first or index % int(text.get("moe_layer_freq") or 1):
        return _dense(_latent_attention(text), text)
    f = need(text, "moe_intermediate_size")
    return _sparse(_latent_attention(text), text, f, shared=_gated(d, f * int(text.get("n_shared_experts") or 0)))


def _prediction_module(text: Mapping[str, Any], layer: Callable[[Mapping[str, Any], int], Layer]) -> int:
    """One sparse layer, the norms of its two inputs and of its output, and the projection that joins the inputs: 2·d·d."""
    d = need(text, "hidden_size")
    return layer(text, need(text, "num_hidden_layers")).total + 3 * d + 2 * d * d


_LAYERS: Mapping[str, Callable[[Mapping[str, Any], int], Layer]] = {
    "llama": _llama, "mistral": _mistral, "mixtral": _mixtral, "qwen2": _qwen2, "qwen3": _qwen3, "qwen3_moe": _qwen3_moe,
    "deepseek_v3": _deepseek_v3,
}
