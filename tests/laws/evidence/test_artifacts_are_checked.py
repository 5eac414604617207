"""A configuration or a source file held against the claims about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_claims import TEXT, folder

from rollbook.evidence.code_check import check_code
from rollbook.evidence.config_check import check, compare, shown, tolerance
from rollbook.evidence.errors import EvidenceError
from rollbook.evidence.registry import builtin, read_folder
from rollbook.evidence.vocabulary import CONFIG_QUANTITIES

QWEN3_8B: dict[str, Any] = {"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
                            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
                            "tie_word_embeddings": False, "max_position_embeddings": 40960}
QWEN3_30B: dict[str, Any] = {**QWEN3_8B, "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
                             "num_key_value_heads": 4, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}
QWEN25_05B: dict[str, Any] = {**QWEN3_8B, "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
                              "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
                              "head_dim": None, "tie_word_embeddings": True}


def outcomes(path: Path, config: dict[str, Any], model: str) -> dict[str, tuple[str, object]]:
    file = path / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return {item.quantity: (item.outcome, item.found) for item in check(file, model, builtin())}


def test_a_published_configuration_agrees_with_every_claim_about_it(tmp_path: Path) -> None:
    assert outcomes(tmp_path, QWEN3_8B, "qwen3-8b") == {
        "layers": ("agrees", 36), "heads": ("agrees", 32), "kv_heads": ("agrees", 8),
        "parameters_total": ("agrees", 8_190_735_360)}
    assert outcomes(tmp_path, QWEN3_30B, "qwen3-30b-a3b") == {
        "layers": ("agrees", 48), "heads": ("agrees", 32), "kv_heads": ("agrees", 4), "experts": ("agrees", 128),
        "experts_per_token": ("agrees", 8), "parameters_total": ("agrees", 30_532_122_624),
        "parameters_active": ("agrees", 3_353_032_704)}
    assert outcomes(tmp_path, QWEN25_05B, "qwen2.5-0.5b")["tied_embeddings"] == ("agrees", True)


@pytest.mark.parametrize(("change", "quantity"), [
    ({"num_hidden_layers": 35}, "layers"), ({"num_attention_heads": 16}, "heads"), ({"num_key_value_heads": 4}, "kv_heads"),
    ({"hidden_size": 5120}, "parameters_total"),
])
def test_a_configuration_of_another_model_differs(tmp_path: Path, change: dict[str, int], quantity: str) -> None:
    assert outcomes(tmp_path, {**QWEN3_8B, **change}, "qwen3-8b")[quantity][0] == "differs"


def test_only_a_count_of_parameters_may_be_rounded(tmp_path: Path) -> None:
    assert outcomes(tmp_path, {**QWEN3_8B, "num_attention_heads": 38}, "qwen3-14b")["heads"] == ("differs", 38)


def test_tied_embeddings_that_are_not_differ(tmp_path: Path) -> None:
    found = outcomes(tmp_path, {**QWEN25_05B, "tie_word_embeddings": False}, "qwen2.5-0.5b")
    assert found["tied_embeddings"] == ("differs", False)


def test_what_a_configuration_does_not_show_is_neither_agreement_nor_difference(tmp_path: Path) -> None:
    found = outcomes(tmp_path, {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}, "qwen3-8b")
    assert found["parameters_total"] == ("not_shown", None)
    assert found["layers"] == ("agrees", 36)


@pytest.mark.parametrize(("quantity", "config", "found"), [
    ("rope_scaling", {"rope_scaling": {"rope_type": "yarn"}}, "yarn"),
    ("rope_scaling", {"rope_scaling": {"type": "yarn"}}, "yarn"),
    ("rope_scaling", {"rope_scaling": None}, None),
    ("rope_base", {"rope_theta": 1000000.0}, 1000000.0),
    ("rope_base", {"rope_parameters": {"rope_theta": 500000.0}}, 500000.0),
    ("latent_attention", {"kv_lora_rank": 512}, True),
    ("latent_attention", {}, False),
    ("experts", {"n_routed_experts": 256}, 256),
    ("experts", {}, None),
    ("context", {"text_config": {"hidden_size": 8, "max_position_embeddings": 131072}}, 131072),
])
def test_a_quantity_is_found_under_the_names_that_configurations_use(quantity: str, config: dict[str, Any],
                                                                         found: object) -> None:
    assert shown(quantity, config) == found


def test_every_quantity_that_a_claim_may_name_can_be_shown() -> None:
    assert {quantity for quantity in CONFIG_QUANTITIES if shown(quantity, {**QWEN3_30B, "rope_theta": 1.0}) is None} <= {
        "shared_experts", "sliding_window", "rope_scaling"}


def test_a_rounded_count_admits_one_unit_of_its_last_digit_and_an_exact_one_half(tmp_path: Path) -> None:
    def claim(value: int, bound: str) -> float:
        text = TEXT.replace("value: 2, unit: layers", f"value: {value}, bound: {bound}, unit: parameters").replace(
            "check: layers", "check: parameters_total")
        return tolerance(read_folder(folder(tmp_path, test=text)).claim("test.old.layers"))

    assert claim(671_000_000_000, "exact") == 0.5e9
    assert claim(235_000_000_000, "about") == pytest.approx(0.05 * 235e9)
    assert claim(3_000_000_000, "about") == pytest.approx(0.15 * 3e9)


def test_an_active_count_may_leave_out_the_input_embedding_and_says_so(tmp_path: Path) -> None:
    text = TEXT.replace("value: 2, unit: layers", "value: 3040000000, unit: parameters").replace(
        "check: layers", "check: parameters_active")
    compared = compare(read_folder(folder(tmp_path, test=text)).claim("test.old.layers"), QWEN3_30B)
    assert (compared.outcome, compared.found, compared.why) == ("agrees", 3_041_867_776, "counted without the input embedding")


def test_an_unknown_model_or_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}", encoding="utf-8")
    with pytest.raises(EvidenceError, match="nearest models: qwen3-8b"):
        check(file, "qwen3-8bb", builtin())
    file.write_text("[]", encoding="utf-8")
    with pytest.raises(EvidenceError, match="is no configuration"):
        check(file, "qwen3-8b", builtin())
    with pytest.raises(EvidenceError, match="cannot be read"):
        check(tmp_path / "none.json", "qwen3-8b", builtin())


def test_source_text_is_looked_up_in_a_checkout(tmp_path: Path) -> None:
    registry = read_folder(folder(tmp_path / "claims", test=TEXT))
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    with pytest.raises(EvidenceError, match=r"run.sh cannot be read"):
        check_code(registry.claim("test.old.code"), checkout)
    (checkout / "run.sh").write_text("GROUP=16\n", encoding="utf-8")
    with pytest.raises(EvidenceError, match="does not hold its text, got no 'GROUP=8'"):
        check_code(registry.claim("test.old.code"), checkout)
    (checkout / "run.sh").write_text("export GROUP=8\n", encoding="utf-8")
    check_code(registry.claim("test.old.code"), checkout)
    with pytest.raises(EvidenceError, match="names no source text"):
        check_code(registry.claim("test.old.high"), checkout)
