"""`--assume FILE` fills in what is unknown, as the user's inference, and changes nothing that is known."""

from __future__ import annotations

import pytest
from small_recipe import changed, names, resolved
from test_magistral_small import SUPPLIED

from rollbook.recipes import assumed, load, resolve
from rollbook.recipes.assumed import SCHEMA, read
from rollbook.records import RecipeError, ResolvedRecipe, decode, encode

HEAD = f"schema: {SCHEMA}\n"


def test_an_assumed_value_is_the_users_inference_and_stays_so_in_the_record() -> None:
    recipe = resolved(scale="full", assumed=read(HEAD + "stages.rl.steps: 300\n", "mine.yaml"))
    assert recipe.settings.stages["rl"].steps == 300  # type: ignore[union-attr]
    kept = decode(ResolvedRecipe, encode(recipe)).provenance["stages.rl.steps"]
    assert (kept.origin, kept.label, kept.reason) == ("user", "I", "assumed by the user")


def test_an_assumption_may_give_its_reason_and_be_nested() -> None:
    text = HEAD + "stages: {rl: {steps: {value: 300, label: I, reason: three epochs}}}\n"
    assert resolved(scale="full", assumed=read(text, "mine.yaml")).provenance["stages.rl.steps"].reason == \
        "assumed by the user: three epochs"


def test_assumptions_for_every_unknown_value_make_the_true_scale_run() -> None:
    text = HEAD + "".join(f"{path}: {value}\n" for path, value in SUPPLIED.items())
    recipe = resolve(load("magistral-small"), "full", assumed=read(text, "mine.yaml"))
    for path in SUPPLIED:
        held = [about for name, about in recipe.provenance.items() if name == path or name.startswith(f"{path}.")]
        assert held and all((about.origin, about.label) == ("user", "I") for about in held), path


def test_what_is_unknown_may_turn_out_to_have_parts() -> None:
    document = changed("parameters: {min_terms: 2, max_terms: 2}", "parameters: {label: U, note: ranges, typical: small}")
    text = HEAD + "stages.rl.steps: 3\ntasks.families.sums.parameters: {min_terms: 2, max_terms: 3}\n"
    recipe = resolved(scale="full", document=document, assumed=read(text, "mine.yaml"))
    assert recipe.settings.tasks.families["sums"].parameters == {"min_terms": 2, "max_terms": 3}
    assert recipe.provenance["tasks.families.sums.parameters.max_terms"].origin == "user"


@pytest.mark.parametrize(("line", "words"), [
    ("stages.rl.objective.high: 0.28", ["mine.yaml:2: stages.rl.objective.high is not unknown", "got 0.3, label D",
                                        "--set stages.rl.objective.high=VALUE"]),
    ("run.seed: 3", ["run.seed is not unknown", "got 1, a plain value"]),
    ("stages.rl.stps: 3", ["mine.yaml:2: stages.rl.stps is no unknown value of this recipe", "nearest names: stages.rl.steps"]),
    ("stages.rl: 3", ["stages.rl is no unknown value"]),
    ("stages.rl.steps: many", ["mine.yaml:2: stages.rl.steps must be an integer"]),
])
def test_an_assumption_about_what_is_known_or_unheard_of_is_refused(line: str, words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        resolved(scale="full", assumed=read(f"{HEAD}{line}\n", "mine.yaml"))
    assert names(caught.value, words)


@pytest.mark.parametrize(("text", "words"), [
    ("stages.rl.steps: 3\n", ["must begin with `schema: rollbook.assumptions/1`", "got None"]),
    ("schema: rollbook.assumptions/2\nstages.rl.steps: 3\n", ["got 'rollbook.assumptions/2'"]),
    ("just text\n", ["got 'str'"]),
    (HEAD, ["mine.yaml: the file assumes nothing"]),
    (HEAD + "stages.rl.steps: {value: 3, label: D, claim: x}\n", ["stages.rl.steps is assumed with label D",
                                                                 "what you supply is your inference"]),
    (HEAD + "stages.rl.steps: 3\nstages.rl.steps: 4\n", ["mine.yaml:3: key stages.rl.steps is written twice"]),
])
def test_a_file_that_is_no_assumption_is_refused(text: str, words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        read(text, "mine.yaml")
    assert names(caught.value, words)


def test_nothing_is_assumed_where_nothing_is_unknown() -> None:
    with pytest.raises(RecipeError, match="is not unknown"):
        resolved(scale="lab", assumed=read(HEAD + "stages.rl.steps: 3\n", "mine.yaml"))


def test_a_file_that_cannot_be_read_is_refused(tmp_path) -> None:
    with pytest.raises(RecipeError, match="cannot be read"):
        assumed.load(tmp_path / "none.yaml")
