"""The evidence commands show what the claims say, refuse what is not there, and exit 1 on a configuration that differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollbook.cli import main
from rollbook.recipes.document import BUILTIN

QWEN3_8B = {"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}


def rollbook(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def shown(*words: str) -> str:
    result = rollbook(*words)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(("change", "code", "words"), [
    ({}, 0, ["agrees", "layers: 36 against 36 layers, qwen.qwen3-8b.layers", "4 agree, 0 differ, 0 are not shown"]),
    ({"num_hidden_layers": 35}, 1, ["DIFFERS    layers: 35 against 36 layers, qwen.qwen3-8b.layers"]),
    ({"model_type": "other"}, 0, ["not shown  parameters_total: - against about"]),
])
def test_a_configuration_that_differs_exits_with_1(tmp_path: Path, change: dict[str, object], code: int,
                                                   words: list[str]) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN3_8B | change))
    result = rollbook("evidence", "check-config", str(file), "--model", "qwen3-8b")
    assert result.exit_code == code
    assert all(word in result.output for word in words), result.output
    listed = json.loads(rollbook("evidence", "check-config", str(file), "--model", "qwen3-8b", "--json").output)
    assert {item["quantity"] for item in listed} == {"layers", "heads", "kv_heads", "parameters_total"}


def test_a_model_without_claims_or_a_file_that_is_none_exits_with_2(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN3_8B))
    refused = rollbook("evidence", "check-config", str(file), "--model", "qwen3-9b")
    assert refused.exit_code == 2 and "nearest models: qwen3-8b" in refused.stderr
    assert rollbook("evidence", "check-config", str(tmp_path / "none.json"), "--model", "qwen3-8b").exit_code == 2


def test_a_claim_is_shown_with_its_source_its_scope_and_what_contradicts_it() -> None:
    output = shown("evidence", "show", "mistral.magistral-small.start_checkpoint")
    for words in ("value            mistral-small-3-24b-instruct", "label            D, disclosed", "section 6.9",
                  "usable for       Magistral Small (2025-06)",
                  "not for          Magistral Medium (2025-06): this is Small's run",
                  "contradicted by  mistral.mistral-small-3.1-base.start_checkpoint: mistral-small-3.1-24b"):
        assert words in output, output
    assert json.loads(shown("evidence", "show", "mistral.magistral.objective", "--json"))["objectives"] == ["Magistral"]


@pytest.mark.parametrize("name", ["magistral-small", "Magistral Small (2025-06)"])
def test_a_release_is_shown_with_what_is_known_by_aspect_and_what_is_unknown(name: str) -> None:
    output = shown("evidence", "show", name)
    known, unknown = output.split("\nUnknown\n")
    assert "Hyper-parameters\n" in known and "epsilon_high = 0.3" in known and "learning_rate" not in known
    assert "U   learning_rate" in unknown and "9 of 10 parts described" in unknown
    document = json.loads(shown("evidence", "show", name, "--json"))
    names = {claim["id"] for claim in document["claims"]}
    assert {"mistral.magistral.objective", "mistral.magistral-small.learning_rate"} <= names


def test_a_model_is_shown_with_the_claims_about_it_alone() -> None:
    output = shown("evidence", "show", "qwen3-8b")
    assert "layers = 36 layers [qwen3-8b]" in output and "[qwen3-14b]" not in output


def test_an_unknown_name_is_refused_with_the_nearest_releases_and_claims() -> None:
    result = rollbook("evidence", "show", "magistral-smal")
    assert result.exit_code == 2
    assert "neither a claim nor a release nor a model" in result.stderr and "nearest releases: magistral-small" in result.stderr


def test_the_matrix_has_a_row_for_each_release_and_a_time_line() -> None:
    output = shown("evidence", "matrix", "magistral-small", "mistral-small-4", "deepseek-v3")
    lines = {line.split("  ")[0]: line for line in output.splitlines()}
    assert "D16 U8" in lines["Magistral Small (2025-06)"]
    assert lines["Mistral Small 4 (2026-03)"].split()[4:] == ["D1", "D8", "C1", "·", "U3", "·", "·", "·", "·"]
    assert "~2024-12    DeepSeek-V3" in output and "2025-06     Magistral Small: modified GRPO" in output
    rows = json.loads(shown("evidence", "matrix", "magistral-small", "--json"))
    assert rows[0]["aspects"]["weights"] == {"state": "known", "labels": {"D": 1}, "claims": ["mistral.magistral-small.license"]}
    assert rows[0]["described_parts"] == 9


def test_the_matrix_of_everything_names_every_laboratory() -> None:
    output = shown("evidence", "matrix")
    assert all(f"\n{name}\n" in output for name in ("deepseek", "mistral", "qwen", "zhipu"))


def test_the_matrix_is_written_as_a_page(tmp_path: Path) -> None:
    file = tmp_path / "matrix.html"
    assert shown("evidence", "matrix", "magistral-small", "--html", str(file)) == f"matrix: {file}\n"
    assert "mistral.magistral-small.epsilon_high" in file.read_text()
    refused = rollbook("evidence", "matrix", "--html", str(tmp_path / "none" / "m.html"))
    assert refused.exit_code == 2 and "a folder that exists" in refused.stderr and "resume" not in refused.stderr


def test_the_score_of_a_release_names_each_of_the_ten_parts_and_what_is_withheld() -> None:
    output = shown("evidence", "score", "glm-5.2", "kimi-k3")
    assert "GLM-5.2 (2026-06-16): 2 of 10 parts described" in output and "Kimi K3 (2026-07-17): 2 of 10" in output
    assert "9  Hardware, failures, restarts, times: withheld (U3)" in output
    assert "10  Evaluation scaffold, budget and aggregation: not spoken of" in output
    assert json.loads(shown("evidence", "score", "glm-5.2", "--json"))[0]["described"] == 2


def test_two_recipes_are_compared_by_value_and_label(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text((BUILTIN / "magistral-small.yaml").read_text().replace(
        "{value: 0.3, label: D, claim: mistral.magistral-small.epsilon_high}", "{value: 0.3, label: I, reason: mine}"
    ).replace("name: magistral-small", "name: other"))
    output = shown("evidence", "diff", "magistral-small", str(other))
    assert "magistral-small, Magistral Small (2025-06), against other, " in output and "scale full: 1 difference\n" in output
    assert "stages.rl.objective.high  0.3 [D] mistral.magistral-small.epsilon_high  0.3 [I] mine" in output
    assert "no differences" in shown("evidence", "diff", "magistral-small", "magistral-small", "--scale", "lab")
    (item,) = json.loads(shown("evidence", "diff", "magistral-small", str(other), "--json"))
    assert (item["first"]["label"], item["second"]["label"]) == ("D", "I")
