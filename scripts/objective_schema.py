"""Writes the JSON schema of every objective's settings, from which recipes are checked without torch."""

import json
from pathlib import Path

from rollbook.objectives.schema import schemas_by_name

TARGET = Path(__file__).parents[1] / "src/rollbook/recipes/objective_schema.json"


def document() -> str:
    """The file's text."""
    return json.dumps(schemas_by_name(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    TARGET.write_text(document(), encoding="utf-8")
