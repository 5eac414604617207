"""Parameters of hand-written configurations, each count worked out by hand or known from the published weights."""

from __future__ import annotations

from typing import Any

import pytest

from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.parameters import count

# d=8, f=16, h=4, k=2, c=2, v=10, two layers. Attention: q 8·8 + k, v 2·8·4 + o 8·8 = 192. Feed-forward: 3·8·16 = 384. Norms: 16.
SMALL: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
                         "num_key_value_heads": 2, "vocab_size": 10}


@pytest.mark.parametrize(("model_type", "changes", "layer", "tables"), [
    ("llama", {}, 192 + 384 + 16, 2),
    ("llama", {"tie_word_embeddings": True}, 192 + 384 + 16, 1),
    ("llama", {"attention_bias": True}, 192 + (8 + 8) + 8 + 384 + 16, 2),            # q 8, k and v 4 each, o 8
    ("llama", {"mlp_bias": True}, 192 + 384 + (16 + 16 + 8) + 16, 2),
    ("llama", {"num_key_value_heads": None}, 256 + 384 + 16, 2),                      # as many as query heads: 4·8·8
    ("mistral", {"sliding_window": 4}, 192 + 384 + 16, 2),
    ("mistral", {"head_dim": 3}, 2 * 8 * 12 + 2 * 8 * 6 + 384 + 16, 2),               # h·c = 12, not d
    ("qwen2", {}, 192 + (8 + 8) + 384 + 16, 2),                                       # q, k, v have a bias, o has none
    ("qwen3", {"head_dim": 2}, 192 + 2 * 2 + 384 + 16, 2),                            # query and key norms of width c
])
def test_a_dense_layer_is_attention_feed_forward_and_norms(model_type: str, changes: dict[str, Any], layer: int,
                                                                   tables: int) -> None:
    counted = count({**SMALL, "model_type": model_type, **changes})
    assert counted.layers == 2 * layer
    assert counted.total == counted.active == 2 * layer + 8 + tables * 80
    assert counted.non_embedding == counted.active_non_embedding == 2 * layer + 8
    assert counted.with_mtp == counted.stored == counted.total


def test_of_a_sparse_layer_only_the_chosen_experts_are_active() -> None:
    counted = count({**SMALL, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 1})
    assert counted.layers == 2 * (192 + 8 * 4 + 4 * 384 + 16)
    assert counted.layers_active == 2 * (192 + 8 * 4 + 384 + 16)
    assert counted.total - counted.active == 2 * 3 * 384
    assert counted.active - counted.active_with_head == counted.active_with_head - counted.active_non_embedding == 80


def test_layers_that_are_said_to_be_dense_are_counted_so() -> None:
    sparse = {**SMALL, "model_type": "qwen3_moe", "moe_intermediate_size": 4, "num_experts": 6, "num_experts_per_tok": 2,
              "head_dim": 2}
    moe, dense = 196 + 8 * 6 + 6 * 96 + 16, 196 + 384 + 16
    assert count(sparse).layers == 2 * moe
    assert count({**sparse, "mlp_only_layers": [0]}).layers == dense + moe
    assert count({**sparse, "decoder_sparse_step": 2}).layers == dense + moe
    assert count(sparse).layers_active == 2 * (196 + 48 + 2 * 96 + 16)


def test_latent_attention_shared_experts_and_prediction_modules_are_counted() -> None:
    config = {**SMALL, "model_type": "deepseek_v3", "num_hidden_layers": 3, "q_lora_rank": 6, "kv_lora_rank": 5,
              "qk_nope_head_dim": 3, "qk_rope_head_dim": 1, "v_head_dim": 2,
              "moe_intermediate_size": 4, "n_routed_experts": 6, "n_shared_experts": 2,
              "num_experts_per_tok": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1}
    attention = (8 * 6 + 6 + 6 * 4 * 4) + (8 * (5 + 1) + 5 + 5 * 4 * (3 + 2)) + 4 * 2 * 8
    dense, moe = attention + 384 + 16, attention + 8 * 6 + 6 * 96 + 3 * 8 * 8 + 16
    counted = count(config)
    assert counted.layers == dense + 2 * moe
    assert counted.layers_active == counted.layers - 2 * 4 * 96
    assert counted.mtp == moe + 3 * 8 + 2 * 8 * 8
    assert counted.with_mtp == counted.total + counted.mtp
    assert counted.stored == counted.with_mtp + 2 * 80
    assert count({**config, "moe_layer_freq": 2}).layers == 2 * dense + moe          # layers 0 and 1 dense, layer 2 sparse
    assert count({**config, "q_lora_rank": None}).layers == counted.layers - 3 * ((8 * 6 + 6 + 6 * 16) - 8 * 16)


def _dense(kind: str, width: int, ffn: int, layers: int, heads: tuple[int, int], vocabulary: int, **more: Any) -> dict[str, Any]:
    return {"model_type": kind, "hidden_size": width, "intermediate_size": ffn, "num_hidden_layers": layers,
            "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "vocab_size": vocabulary, **more}


PUBLISHED = {  # what the published weights add up to
    "qwen2.5-0.5b": (_dense("qwen2", 896, 4864, 24, (14, 2), 151936, tie_word_embeddings=True), 494_032_768),
    "qwen2.5-7b": (_dense("qwen2", 3584, 18944, 28, (28, 4), 152064), 7_615_616_512),
    "qwen3-0.6b": (_dense("qwen3", 1024, 3072, 28, (16, 8), 151936, head_dim=128, tie_word_embeddings=True), 596_049_920),
    "qwen3-8b": (_dense("qwen3", 4096, 12288, 36, (32, 8), 151936, head_dim=128), 8_190_735_360),
    "llama-3.1-8b": (_dense("llama", 4096, 14336, 32, (32, 8), 128256), 8_030_261_248),
    "mistral-7b": (_dense("mistral", 4096, 14336, 32, (32, 8), 32000), 7_241_732_096),
    "mixtral-8x7b": (_dense("mixtral", 4096, 14336, 32, (32, 8), 32000, num_local_experts=8, num_experts_per_tok=2),
                     46_702_792_704),
    "qwen3-30b-a3b": (_dense("qwen3_moe", 2048, 6144, 48, (32, 4), 151936, head_dim=128, moe_intermediate_size=768,
                             num_experts=128, num_experts_per_tok=8), 30_532_122_624),
    "deepseek-v3": (_dense("deepseek_v3", 7168, 18432, 61, (128, 128), 129280, moe_intermediate_size=2048, n_routed_experts=256,
                           n_shared_experts=1, num_experts_per_tok=8, first_k_dense_replace=3, q_lora_rank=1536, kv_lora_rank=512,
                           qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, num_nextn_predict_layers=1),
                    671_026_404_352),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_as_many_parameters_as_its_weights(name: str) -> None:
    config, total = PUBLISHED[name]
    assert count(config).total == total


def test_the_parts_of_a_published_mixture_round_to_what_is_said_of_it() -> None:
    counted = count(PUBLISHED["deepseek-v3"][0])
    assert round(counted.active_with_head / 1e9) == 37
    assert round(counted.stored / 1e9) == 684  # files speak of 685 billion with their scales
    assert round(count(PUBLISHED["mixtral-8x7b"][0]).active / 1e9) == 13


def test_a_language_model_inside_a_multimodal_configuration_is_found() -> None:
    text = {**SMALL, "model_type": "mistral"}
    assert count({"model_type": "mistral3", "text_config": text, "vision_config": {}}).total == count(text).total


@pytest.mark.parametrize(("config", "words"), [
    ({**SMALL, "model_type": "mamba"}, "parameters of this architecture are not counted here, got model_type 'mamba'"),
    ({**SMALL, "model_type": "llama", "vocab_size": None}, "needs a whole number vocab_size, got None"),
    ({**SMALL, "model_type": "llama", "hidden_size": True}, "needs a whole number hidden_size, got True"),
    ({**SMALL, "model_type": "mixtral"}, "names no experts"),
])
def test_what_cannot_be_counted_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(EvidenceError, match=words):
        count(config)
