"""Laws of `--set`: the user's values are typed, known, and recorded as the user's."""

from __future__ import annotations

import pytest
from small_recipe import names, resolved

from rollbook.environments import load_definition
from rollbook.environments.naming import BUDGET
from rollbook.recipes import load, resolve
from rollbook.records import EnvironmentFault, EnvironmentSpec, RecipeError
from rollbook.records.problems import RecipeProblems


def test_an_override_is_recorded_as_the_users_with_what_it_replaced() -> None:
    recipe = resolved("stages.rl.objective.high=0.28", "run.seed=7")
    assert recipe.settings.run.seed == 7
    assert recipe.settings.stages["rl"].objective["high"] == 0.28  # type: ignore[union-attr]
    about = recipe.provenance["stages.rl.objective.high"]
    assert (about.origin, about.claim, about.scaled_from) == ("user", None, 0.3)
    assert recipe.provenance["run.seed"].origin == "user"


def test_an_undisclosed_value_supplied_by_the_user_is_the_users_inference() -> None:
    about = resolved("stages.rl.steps=3", scale="full").provenance["stages.rl.steps"]
    assert (about.origin, about.label) == ("user", "I")


def test_an_unknown_path_is_refused_with_the_three_nearest_names() -> None:
    with pytest.raises(RecipeError) as caught:
        resolved("run.sed=3")
    assert names(caught.value, ["names no setting of this recipe: run.sed", "got run.sed=3", "nearest names: run.seed, "])
    assert str(caught.value).split("nearest names: ")[1].count(", ") == 2


@pytest.mark.parametrize(("override", "words"), [
    ("run.seed", ["--set needs PATH=VALUE", "'run.seed'"]),
    ("run.seed=", ["--set needs PATH=VALUE"]),
    ("=3", ["--set needs PATH=VALUE"]),
    ("run.seed=[", ["--set run.seed", "not valid YAML"]),
    ("run.seed=one", ["--set: run.seed must be an integer", "'one'"]),
    ("tasks.train={value: 3, label: D, claim: x}", ["--set tasks.train takes a plain value"]),
    ("stages.rl=3", ["stages.rl is a mapping"]),
    ("stages.rl.objective.beta=1", ["names no setting of this recipe: stages.rl.objective.beta"]),
    ("run={sed: 1}", ["names no setting of this recipe: run.sed"]),
])
def test_an_override_that_says_nothing_known_is_refused(override: str, words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        resolved(override)
    assert names(caught.value, words)


def test_a_parameter_that_a_recipe_leaves_out_can_be_set_and_the_environment_refuses_what_it_does_not_know() -> None:
    recipe = resolve(load("tool-calculator"), "tiny", ("environment.parameters.steps=2",))
    assert recipe.settings.environment is not None and recipe.settings.environment.parameters["steps"] == 2
    assert recipe.provenance["environment.parameters.steps"].origin == "user"
    with pytest.raises(EnvironmentFault, match="steps"):
        load_definition(EnvironmentSpec(name="sums", definition=recipe.settings.environment.definition,
                                        parameters=recipe.settings.environment.parameters, budget=BUDGET))


def test_one_path_cannot_be_set_twice() -> None:
    with pytest.raises(RecipeError) as caught:
        resolved("run.seed=1", "run.seed=2")
    assert names(caught.value, ["run.seed is given twice"])


def test_all_bad_overrides_are_listed_at_once() -> None:
    with pytest.raises(RecipeProblems) as caught:
        resolved("run.sed=1", "tasks.trian=2", "x")
    assert len(caught.value.problems) == 3


def test_values_are_yaml() -> None:
    recipe = resolved("stages.rl.optimizer.learning_rate=3e-5", "tasks.system_prompt='no'", "reward.language_reward=null")
    assert recipe.settings.stages["rl"].optimizer.learning_rate == 3e-5  # type: ignore[union-attr]
    assert recipe.settings.tasks.system_prompt == "no"


def test_a_mapping_sets_the_fields_it_names() -> None:
    recipe = resolved("stages.rl.optimizer={learning_rate: 3e-5, warmup_steps: 2}")
    optimizer = recipe.settings.stages["rl"].optimizer  # type: ignore[union-attr]
    assert (optimizer.learning_rate, optimizer.warmup_steps, optimizer.beta1) == (3e-5, 2, 0.9)
    assert recipe.provenance["stages.rl.optimizer.warmup_steps"].origin == "user"
    assert recipe.provenance["stages.rl.optimizer.beta1"].origin == "recipe"
