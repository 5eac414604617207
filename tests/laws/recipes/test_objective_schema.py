"""Recipes are checked without torch, against a file: it says what the objectives say."""

import json
from pathlib import Path

import rollbook.recipes
from rollbook.objectives.schema import schemas_by_name


def test_the_schema_that_recipes_are_checked_against_is_the_objectives_own() -> None:
    stored = json.loads((Path(rollbook.recipes.__file__).parent / "objective_schema.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(schemas_by_name())), "run scripts/objective_schema.py"
