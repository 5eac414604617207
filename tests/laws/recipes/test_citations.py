"""A value that a recipe calls known is known: its claim exists, is about this release, has this label, value and unit."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from small_recipe import CLAIMS, TEXT, changed, claims, names, read, resolved

from rollbook.evidence.registry import builtin
from rollbook.recipes import document
from rollbook.recipes.bounds import BOUNDS
from rollbook.recipes.objective import schema
from rollbook.recipes.units import UNITS, units
from rollbook.recipes.values import entries
from rollbook.records import RecipeError
from rollbook.records.problems import RecipeProblems

HIGH = "{value: 0.3, label: D, claim: test.big.high}"
OBJECTIVE = "{value: Magistral, label: D, claim: test.big.objective}"


def refused(text: str, *words: str, registry=None) -> None:
    with pytest.raises(RecipeError) as caught:
        document.read(text, "small.yaml", registry)
    assert names(caught.value, words)


@pytest.mark.parametrize(("old", "new", "words"), [
    (HIGH, "{value: 0.28, label: D, claim: test.big.high}",
     ["small.yaml:25: stages.rl.objective.high: claim test.big.high has another value", "got 0.28 against exact 0.3",
      "why: The upper clip is three tenths. (test.yaml:16)", "fix: write the source's value, or label the changed one I"]),
    (HIGH, "{value: 0.3, label: D, claim: test.big.hihg}", ["small.yaml:25: stages.rl.objective.high: unknown claim",
                                                           "nearest ids: test.big.high"]),
    (HIGH, "{value: 0.3, label: C, claim: test.big.high}", ["is cited as C but is D", "use label D"]),
    (HIGH, "{value: 0.3, label: D, claim: test.big.low}", ["is cited as D but is U", "leave it unknown"]),
    (HIGH, "{value: 8, label: D, claim: test.big.guess}", ["is cited as D but is I", "use I with a reason"]),
    (HIGH, "{value: 0.3, label: D, claim: test.other.high}",
     ["claim test.other.high belongs to Other (2025), got Nothing (2026)", "what one release discloses is not known of another"]),
    (HIGH, "{value: 0.3, label: D, claim: test.big.path}", ["claim test.big.path has another value"]),
    ("{value: 9000, label: D, claim: test.big.train}", "{value: 0.3, label: D, claim: test.big.share}",
     ["tasks.train: claim test.big.share counts something else", "got 0.3 fraction of the problems", "counts tasks or problems"]),
    ("{value: big, label: D, claim: test.big.path}", "{value: other, label: D, claim: test.big.path}",
     ["model.path: claim test.big.path has another value", "'other' against 'big'"]),
    ("{value: big, label: D, claim: test.big.path}", "{value: small, label: D, claim: test.big.start}",
     ["claim test.big.start is contradicted by test.big.start_elsewhere", "the sources of Nothing (2026) do not agree"]),
    ("{value: big, label: D, claim: test.big.path}", "{value: big, label: D, claim: test.big.start_elsewhere}",
     ["claim test.big.start_elsewhere is contradicted by test.big.start"]),
    (OBJECTIVE, "Magistral", ["small.yaml:24: stages.rl.objective.kind has no label", "is a statement about it"]),
    (OBJECTIVE, "{value: Gspo, label: D, claim: test.big.objective}",
     ["claim test.big.objective does not name the objective Gspo", "got Magistral", "The objective is a changed GRPO."]),
    (OBJECTIVE, "{value: Magistral, label: D, claim: test.big.high}", ["does not name the objective Magistral"]),
    ("low: 0.2", "low: {value: 0.2, label: I, reason: usual, claim: test.other.high}", ["belongs to Other (2025)"]),
    ("low: 0.2", "low: {value: 0.2, label: I, reason: usual, claim: test.big.low}", ["is cited as I but is U"]),
    ("note: steps of the stage,", "note: steps of the stage, claim: test.big.high,", ["is cited as U but is D"]),
    ("    tasks.train: 100\n", "    tasks.train: {value: 100, label: D, claim: test.big.train}\n",
     ["scales.lab.tasks.train: claim test.big.train has another value"]),
    ("scales:\n", "facts: {path: {value: large, label: D, claim: test.big.path}}\nscales:\n",
     ["facts.path: claim test.big.path has another value", "'large' against 'big'"]),
    ("scales:\n", "facts: {listed: {value: [64, 96], label: D, claim: test.big.listed}}\nscales:\n", ["facts.listed"]),
])
def test_a_value_that_its_claim_does_not_carry_stops_the_loading_with_file_line_and_reason(old: str, new: str,
                                                                                           words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        changed(old, new)
    assert names(caught.value, words)


@pytest.mark.parametrize(("old", "new"), [
    ("max_tokens: 64", "max_tokens: {value: 64, label: D, claim: test.big.listed}"),
    ("max_policy_age: 0", "max_policy_age: {value: 0, label: D, claim: test.big.at_most}"),
    ("low: 0.2", "low: {value: 0.2, label: I, reason: usual, claim: test.big.high}"),
    ("note: steps of the stage,", "note: steps of the stage, claim: test.big.low,"),
    ("language_reward: null", "language_reward: {value: null, label: D, claim: test.big.kl}"),
    ("scales:\n", "facts: {listed: {value: [64, 128], label: D, claim: test.big.listed}}\nscales:\n"),
])
def test_a_value_that_its_claim_carries_is_taken(old: str, new: str) -> None:
    changed(old, new)


def test_every_value_without_its_claim_is_listed_at_once() -> None:
    text = TEXT.replace(HIGH, "{value: 0.28, label: D, claim: test.big.high}").replace("value: 9000", "value: 8000")
    with pytest.raises(RecipeProblems) as caught:
        read(text)
    assert [problem.what.partition(": ")[0] for problem in caught.value.problems] == ["small.yaml:12", "small.yaml:25"]


def test_a_recipe_that_cites_must_name_a_release_that_is_known() -> None:
    refused(TEXT.replace("subject: Nothing (2026)", "subject: Nothing (2025)"), "small.yaml:4: subject: unknown release",
            "nearest names: Nothing (2026)", registry=claims())


def test_a_recipe_that_cites_nothing_may_be_about_anything() -> None:
    text = TEXT.replace(HIGH, "0.3").replace("{value: big, label: D, claim: test.big.path}", "big")
    text = text.replace("{value: 9000, label: D, claim: test.big.train}", "9000")
    text = text.replace(OBJECTIVE, "{value: Magistral, label: I, reason: mine}").replace("Nothing (2026)", "my own model")
    assert document.read(text, "small.yaml").subject == "my own model"


def boundary(subject: str, old: str, new: str, *words: str) -> None:
    """The small recipe under another subject, with one citation of the package's claims and none of its own."""
    text = TEXT.replace("Nothing (2026)", subject).replace("{value: big, label: D, claim: test.big.path}", "big")
    text = text.replace("{value: 9000, label: D, claim: test.big.train}", "9000").replace(HIGH, "0.3")
    text = text.replace(old, new).replace(OBJECTIVE, "{value: Magistral, label: I, reason: a test}")
    refused(text, *words)


def test_gspo_is_not_the_objective_of_qwen3_of_april_2025() -> None:
    boundary("Qwen3 (2025-04)", OBJECTIVE, "{value: Gspo, label: D, claim: qwen.gspo.ratio}",
             "small.yaml:24: stages.rl.objective.kind: claim qwen.gspo.ratio belongs to GSPO experiments (2025-07)",
             "got Qwen3 (2025-04)", "why: the paper says it contributed to the latest Qwen3 models")


def test_saos_settings_on_a_qwen_model_are_not_glm_5_2s() -> None:
    boundary("GLM-5.2 (2026-06-16)", "high: 0.3", "high: {value: 5.0, label: D, claim: sao.sao.epsilon_high_math}",
             "stages.rl.objective.high: claim sao.sao.epsilon_high_math belongs to SAO experiments (2026-07)",
             "got GLM-5.2 (2026-06-16)", "must not be carried over")


def test_magistrals_grpo_is_not_small_4s() -> None:
    boundary("Mistral Small 4 (2026-03)", OBJECTIVE, "{value: Magistral, label: D, claim: mistral.magistral.objective}",
             "claim mistral.magistral.objective belongs to Magistral report (2025-06)", "got Mistral Small 4 (2026-03)",
             "is not documented as the recipe of Small 4")


def test_llama_3s_ppo_is_not_llama_3_1s() -> None:
    boundary("Llama 3.1 (2024-07)", OBJECTIVE, "{value: Ppo, label: D, claim: meta.llama-3.uses_ppo}",
             "claim meta.llama-3.uses_ppo belongs to Llama 3 (2024-04)", "got Llama 3.1 (2024-07)", "PPO only explored")


@pytest.mark.parametrize("tactic", ["curriculum", "zero_advantage", "mixing"])
def test_behemoths_tactics_are_not_scouts(tactic: str) -> None:
    boundary("Llama 4 Scout (2025-04)", "tasks: train",
             f"tasks: {{value: train, label: D, claim: meta.llama-4-behemoth.{tactic}}}",
             f"stages.rl.tasks: claim meta.llama-4-behemoth.{tactic} belongs to Llama 4 Behemoth (2025-04)",
             "got Llama 4 Scout (2025-04)")


def test_an_objective_that_another_layer_chooses_is_somebodys_inference() -> None:
    path, gspo = "stages.rl.objective", "{kind: Gspo, low: 0.2, high: 0.28, credit: {kind: GroupCentered}}"
    about = resolved(f"{path}={gspo}").provenance[f"{path}.kind"]
    assert (about.origin, about.label, about.reason) == ("user", "I", "supplied by the user")
    line = "    tasks.train: 100\n"
    about = resolved(document=changed(line, f"{line}    {path}: {gspo}\n")).provenance[f"{path}.kind"]
    assert (about.origin, about.label, about.reason) == ("overlay", "I", "small enough for a test")
    same = resolved(document=changed(line, f"{line}    {path}: {{kind: Magistral, low: 0.1}}\n"))
    assert same.provenance[f"{path}.kind"].claim == "test.big.objective"


def test_the_value_of_an_inference_that_names_its_claim_is_remembered_as_the_sources_scale() -> None:
    inferred = "{value: 9000, label: I, reason: said of another, claim: test.big.train}"
    about = resolved(document=changed("{value: 9000, label: D, claim: test.big.train}", inferred)).provenance["tasks.train"]
    assert (about.scaled_from, about.label) == (9000, "I")


def test_every_objective_that_a_claim_names_exists() -> None:
    named = {name for claim in map(builtin().claim, builtin().ids) for name in claim.objectives}
    assert named and named <= set(schema())


def test_every_number_of_a_recipe_knows_what_it_counts() -> None:
    assert {name for fields in BOUNDS.values() for name in fields} <= set(UNITS)
    assert units("stages.rl.objective.low") and units("stages.rl.policy") is None


def test_a_claim_in_a_unit_that_the_setting_does_not_have_is_refused_wherever_the_setting_stands() -> None:
    text = CLAIMS.replace("unit: problems", "unit: tokens")
    refused(TEXT, "tasks.train: claim test.big.train counts something else", registry=claims(text))


def test_only_a_recipe_that_cites_reads_the_claims() -> None:
    program = ("from rollbook.recipes import document\nfrom rollbook.evidence import registry\n"
               "text = open('small.yaml').read()\n"
               "document.read(text, 'small.yaml')\nprint(registry.builtin.cache_info().currsize)")
    text = TEXT.replace(HIGH, "0.3").replace("{value: big, label: D, claim: test.big.path}", "big")
    text = text.replace("{value: 9000, label: D, claim: test.big.train}", "9000")
    text = text.replace(OBJECTIVE, "{value: Magistral, label: I, reason: mine}")
    done = subprocess.run([sys.executable, "-c", program.replace("open('small.yaml').read()", repr(text))],
                          capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_the_entries_of_a_document_know_their_file_and_line() -> None:
    held = dict(entries(read(TEXT).settings))
    assert all(entry.file == "small.yaml" and entry.line for entry in held.values())
    assert dataclasses.replace(held["tasks.train"], line=None) != held["tasks.train"]
