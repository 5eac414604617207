"""A criterion of a judge is a sentence: its full stop is no step into a setting."""

from __future__ import annotations

import pytest

from rollbook.recipes import load, resolve
from rollbook.records.errors import RecipeError

CRITERIA = {"It is right.": 1.0, "Is version 1.5 named?": 2.0}
REWARD = "reward={kind: ComposedReward, name: j, accuracy: answer, verify_seconds: 2.0, verify_workers: 1, parts: {answer: " \
         "{measure: math}, taste: {measure: 'judge:helper'}}}"


def test_a_criterion_with_a_full_stop_is_one_key_with_its_own_provenance():
    recipe = resolve(load("dapo"), "tiny", (f"judges={{helper: {{form: rubric, model: m, criteria: {CRITERIA}}}}}", REWARD))
    assert recipe.settings.judges["helper"].criteria == CRITERIA
    assert recipe.provenance["judges.helper.criteria.It is right."].origin == "user"


def test_a_dotted_key_without_spaces_is_still_a_path():
    with pytest.raises(RecipeError, match="criteria"):
        resolve(load("dapo"), "tiny", ("judges={helper: {form: rubric, model: m, criteria: {right.good: 1.0}}}", REWARD))
