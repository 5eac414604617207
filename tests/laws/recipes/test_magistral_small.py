"""The built-in recipe says what the source says, refuses what it does not, and resolves to the same record every time."""

from __future__ import annotations

import subprocess
import sys

import pytest
from small_recipe import names

from rollbook.recipes import builtin_names, entries, load, resolve, unknowns
from rollbook.recipes.document import BUILTIN, read
from rollbook.recipes.resolve import leaves
from rollbook.records import RecipeError, ResolvedRecipe, content_id, decode, encode

SUPPLIED = {
    "tasks.families.math.generator": "chain_sum", "tasks.families.math.weight": 0.5, "tasks.families.code.generator": "chain_sum",
    "tasks.families.code.weight": 0.5, "tasks.heldout": 1024, "tasks.system_prompt": "think", "tasks.max_tokens": 40960,
    "reward.length_max": 36864, "reward.length_cache": 4096, "reward.verify_seconds": 5,
    "stages.cold_start.traces": "{mine: 1.0}",
    "stages.cold_start.steps": 1000, "stages.cold_start.batch": 64, "stages.rl.objective.low": 0.2, "stages.rl.steps": 100,
    "stages.rl.objective.credit.eps": "1e-6", "stages.rl.objective.credit.ddof": 0,
    "stages.rl.prompts": 128, "stages.rl.per_task": 16, "stages.rl.groups": 128, "stages.rl.max_waves": 2,
    "stages.rl.max_policy_age": 2, "stages.rl.sampling.top_p": 1, "stages.rl.sampling.top_k": 0, "stages.rl.sampling.min_p": 0,
    "stages.final_eval.sampling.top_k": 0, "stages.final_eval.sampling.min_p": 0,
    **{f"stages.{stage}.optimizer.{name}": value for stage in ("cold_start", "rl")
       for name, value in {"learning_rate": "1e-6", "beta1": 0.9, "beta2": 0.95, "eps": "1e-8", "weight_decay": 0,
                           "warmup_steps": 10, "schedule": "constant", "max_grad_norm": 1}.items()},
}


def test_the_true_scale_refuses_and_lists_every_undisclosed_value_with_meaning_and_range() -> None:
    document = load("magistral-small")
    with pytest.raises(RecipeError) as caught:
        resolve(document, "full")
    missing = unknowns(document, "full")
    assert {path for path, _ in missing} == set(SUPPLIED)
    assert names(caught.value, [f"{len(missing)} values are not disclosed"])
    for path, entry in missing:
        assert names(caught.value, [f"{path} ", str(entry.note), f"(typical, I: {entry.typical})"])


def test_supplying_every_undisclosed_value_makes_the_true_scale_run_as_the_users() -> None:
    recipe = resolve(load("magistral-small"), "full", [f"{path}={value}" for path, value in SUPPLIED.items()])
    for path in SUPPLIED:
        held = [about for name, about in recipe.provenance.items() if name == path or name.startswith(f"{path}.")]
        assert held and all((about.origin, about.label) == ("user", "I") for about in held), path


@pytest.mark.parametrize(("path", "value", "claim"), [
    ("reward.format_reward", 0.1, "mistral.magistral.format_reward"),
    ("reward.correct_reward", 0.9, "mistral.magistral.correct_reward"),
    ("reward.length_penalty", 0.1, "mistral.magistral.length_penalty"),
    ("reward.language_reward", 0.1, "mistral.magistral.language_reward"),
    ("stages.cold_start.general_share", 0.1, "mistral.magistral-small.general_share"),
    ("stages.rl.objective.high", 0.3, "mistral.magistral-small.epsilon_high"),
    ("stages.rl.minibatches", 1, "mistral.magistral.batch_equals_minibatch"),
    ("stages.rl.sampling.temperature", 1.0, "mistral.magistral-small.rl_temperature"),
    ("stages.final_eval.sampling.temperature", 0.7, "mistral.magistral.eval_temperature"),
])
def test_a_disclosed_value_is_the_sources_and_cites_its_claim(path: str, value: object, claim: str) -> None:
    entry = dict(entries(load("magistral-small").settings))[path]
    assert (entry.value, entry.label, entry.claim) == (value, "D", claim)


@pytest.mark.parametrize(("path", "value", "words"), [
    ("model.path", "mistral-small-3-24b-instruct", "6.3 names Small 3.1"),
    ("tasks.train", 73000, "that Small trains on all of it is not said"),
    ("stages.rl.tasks", "train", "which part of the pool Small sees is not said"),
    ("stages.final_eval.sampling.top_p", 1.0, "code is sampled at .95"),
    ("stages.final_eval.trials", 64, "16 for LiveCodeBench"),
])
def test_what_the_source_says_of_something_else_is_an_inference_that_names_its_claim(path: str, value: object,
                                                                                              words: str) -> None:
    entry = dict(entries(load("magistral-small").settings))[path]
    assert (entry.value, entry.label) == (value, "I")
    assert entry.claim and entry.reason and words in entry.reason


def test_the_objective_as_a_whole_is_cited_and_survives_into_every_scale() -> None:
    assert dict(entries(load("magistral-small").settings))["stages.rl.objective.kind"].claim == "mistral.magistral.objective"
    for scale in ("lab", "tiny"):
        about = resolve(load("magistral-small"), scale).provenance["stages.rl.objective.kind"]
        assert (about.label, about.claim) == ("D", "mistral.magistral.objective")


def test_a_number_that_the_report_measured_on_a_smaller_model_is_no_fact_about_small() -> None:
    assert "mistral.magistral.minibatch_limit" not in {fact.claim for fact in load("magistral-small").facts.values()}


def test_disclosed_numbers_without_a_setting_are_kept_as_facts() -> None:
    facts = load("magistral-small").facts
    assert facts["batch_sequences"].value == 2048
    assert facts["non_penalised_tokens"].value == 32768
    assert facts["cold_start_epochs"].value == 4
    assert all(fact.label == "D" and fact.claim for fact in facts.values())


@pytest.mark.parametrize("scale", ["lab", "tiny"])
def test_small_scales_resolve_and_every_value_has_its_provenance(scale: str) -> None:
    recipe = resolve(load("magistral-small"), scale)
    assert set(recipe.provenance) == set(leaves(recipe.settings))
    for path, about in recipe.provenance.items():
        assert about.label != "U"
        assert about.label not in ("D", "C", "R") or about.claim, path
        assert about.label != "I" or about.reason, path


@pytest.mark.parametrize("scale", ["lab", "tiny"])
def test_a_resolved_recipe_survives_the_codec(scale: str) -> None:
    recipe = resolve(load("magistral-small"), scale)
    assert decode(ResolvedRecipe, encode(recipe)) == recipe


def test_the_resolved_id_is_the_same_in_another_process() -> None:
    program = ("from rollbook.recipes import load, resolve; from rollbook.records import content_id; "
               "print(content_id(resolve(load('magistral-small'), 'lab', ['run.seed=3'])))")
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    assert other == content_id(resolve(load("magistral-small"), "lab", ["run.seed=3"]))


def test_the_resolved_id_ignores_comments_and_key_order_but_no_value() -> None:
    text = (BUILTIN / "magistral-small.yaml").read_text(encoding="utf-8")
    expected = content_id(resolve(load("magistral-small"), "lab"))
    reordered = text.replace("run: {seed: 1, device: cuda, threads: 0, dtype: auto}",
                             "run: {dtype: auto, threads: 0, device: cuda, seed: 1}  # the same")
    assert reordered != text
    assert content_id(resolve(read(reordered, "other.yaml"), "lab")) == expected
    assert content_id(resolve(load("magistral-small"), "lab", ["run.seed=2"])) != expected


def test_an_unknown_recipe_or_scale_names_the_nearest() -> None:
    for attempt, words in ((lambda: load("magistral-smal"), ["unknown recipe", "nearest names: magistral-small"]),
                           (lambda: load("nowhere/x.yaml"), ["recipe file not found", "nowhere/x.yaml"]),
                           (lambda: resolve(load("magistral-small"), "labb"), ["unknown scale", "nearest names: lab"])):
        with pytest.raises(RecipeError) as caught:
            attempt()
        assert names(caught.value, words)


def test_every_built_in_recipe_loads_under_its_own_name() -> None:
    assert builtin_names()
    assert [load(name).name for name in builtin_names()] == list(builtin_names())
