"""Every system of the list has its recipe; every number of a recipe is traced to a claim, an inference or an unknown."""

from __future__ import annotations

import functools
import re

import pytest

from rollbook.evidence.registry import builtin
from rollbook.recipes import Document, builtin_names, entries, load, resolve, unknowns
from rollbook.recipes.state import missing
from rollbook.recipes.values import DISCLOSED
from rollbook.records import RecipeError
from rollbook.records.recipe import Sft, Tiny

ROWS = {*(f"Q{n}" for n in range(1, 13)), *(f"M{n}" for n in range(1, 6)), *(f"S{n}" for n in range(1, 7)), "A1",
        "D1", "D2", "D3", "G1", "G2", "K1", "K2", "K3", "O1", "O2", "H1", "H2", "P1", "P2", "B1", "B2", "B3", "N1", "N2",
        "R1", "R2", "X1", *(f"C{n}" for n in range(1, 8))}
UNDISCLOSED = {"grok-4.x", "kimi-k3", "devstral-2", "mistral-large-3", "mistral-small-4", "mistral-medium-3.5", "leanstral-1.5",
               "qwen3.6", "qwen3.6-plus", "qwen3.7-max", "qwen3.7-plus", "qwen3-max-thinking", "muse-spark", "muse-spark-1.1"}
MACHINE = ("run.seed", "run.threads", "tasks.seed", "max_batch_tokens", "probe", "probe_every", "checkpoint_every", ".seed",
           "verify_workers", ".parameters", ".data.")  # what no source could say, and the weight of the one stage data comes from


@functools.cache
def document(name: str) -> Document:
    return load(name)


def test_every_row_of_the_list_of_systems_has_a_recipe() -> None:
    rows = {document(name).row for name in builtin_names()} - {None}
    assert rows == ROWS


@pytest.mark.parametrize("name", builtin_names())
def test_every_number_of_a_recipe_is_a_claims_an_inference_or_about_the_machine(name: str) -> None:
    held = document(name)
    facts = ((f"facts.{key}", fact) for key, fact in held.facts.items())
    numbers = [(path, entry) for path, entry in (*entries(held.settings), *facts)
               if isinstance(entry.value, int | float) and not isinstance(entry.value, bool)]
    best = {path.rpartition(".")[0] for path, entry in entries(held.settings) if path.endswith(".keep") and entry.value == "best"}
    untraced = [path for path, entry in numbers if entry.label is None and not any(word in path for word in MACHINE)
                and path.removesuffix(".per_task") not in best]      # the best is one
    assert not untraced
    registry = builtin()
    for path, entry in numbers:
        if entry.label in DISCLOSED:
            claim = registry.claim(str(entry.claim))
            assert claim.label == entry.label and claim.source.section, path
            assert isinstance(claim.value, int | float | tuple), path


@pytest.mark.parametrize("name", sorted(UNDISCLOSED))
def test_a_system_that_discloses_nothing_refuses_at_every_scale_and_says_what_is_unknown(name: str) -> None:
    for scale, count in missing(document(name)).items():
        assert count >= 20
        with pytest.raises(RecipeError) as caught:
            resolve(document(name), scale)
        for path, entry in unknowns(document(name), scale):
            assert re.search(rf"^ +{re.escape(path)} +{re.escape(str(entry.note))} \(typical, I: ", str(caught.value), re.M), path
        assert "--assume FILE" in str(caught.value)


@pytest.mark.parametrize("name", builtin_names())
def test_a_recipe_that_is_not_built_says_why_and_shows_its_pipeline(name: str) -> None:
    held = document(name)
    assert bool(held.unbuilt) == bool(held.pipeline)
    for entry in held.pipeline.values():
        claim = builtin().claim(str(entry.claim))
        assert claim.label == entry.label
        assert (entry.note if entry.unknown else entry.value) == claim.says


def test_the_control_has_no_reinforcement_learning_at_any_scale_and_keeps_no_text_of_a_model() -> None:
    for scale in ("lab", "tiny"):
        stages = resolve(document("mistral-small-3"), scale).settings.stages
        assert {type(stage).__name__ for stage in stages.values()} == {"Sft", "Evaluate"}
        assert all(stage.general_share == 0 for stage in stages.values() if isinstance(stage, Sft))
    assert document("mistral-small-3").facts["uses_rl"].value is False
    assert document("mistral-small-3").facts["synthetic_data"].value is False


def test_what_runs_at_tiny_scale_runs_at_lab_scale_too_and_says_where_its_model_is_one_from_scratch_there() -> None:
    lab = {name: document(name).scales["lab"] for name in builtin_names() if "tiny" in document(name).scales}
    assert {"dapo", "llama-2", "magistral-small", "qwen3", "webgpt"} <= set(lab)
    for name, overlay in lab.items():
        from_scratch = overlay.extends == "tiny"
        assert from_scratch == ("from scratch" in str(overlay.because)), name
        assert not from_scratch or not overlay.changes
    for name in ("llama-2", "deepseek-r1"):
        assert resolve(document(name), "lab").settings == resolve(document(name), "tiny").settings


def test_the_sliding_window_of_mistral_7b_is_felt_at_the_smallest_scale() -> None:
    recipe = resolve(document("mistral-7b"), "tiny")
    assert isinstance(recipe.settings.model, Tiny) and recipe.settings.model.window
    assert recipe.settings.model.window < recipe.settings.tasks.max_tokens
    assert recipe.provenance["model.window"].scaled_from == 4096


def test_the_one_recipe_whose_source_resets_its_optimizer_at_every_iteration_does_so_at_either_scale() -> None:
    resetting = {name for name in builtin_names() for path, entry in entries(document(name).settings)
                 if path.endswith(".optimizer_reset") and entry.value == "publication"}
    assert resetting == {"kimi-k1.5"}
    stages = resolve(document("kimi-k1.5"), "tiny").settings.stages
    assert getattr(stages["rl"], "optimizer_reset", None) == "publication"
