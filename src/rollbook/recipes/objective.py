"""Checks of objective settings against the JSON schema of the objective dataclasses, so that recipes need no torch."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbook.recipes.problems import Problems
from rollbook.records.codec import nearest
from rollbook.records.errors import RecipeError

_TYPES: dict[str, tuple[type, ...]] = {"number": (int, float), "integer": (int,), "string": (str,), "boolean": (bool,),
                                       "null": (type(None),)}


@functools.cache
def schema() -> Mapping[str, Any]:
    """Objective name -> JSON schema of its fields; `x-baseline: group` marks a baseline that needs a group."""
    document: Mapping[str, Any] = json.loads((Path(__file__).parent / "objective_schema.json").read_text(encoding="utf-8"))
    return document


def fields() -> dict[str, tuple[str, ...]]:
    """Objective name -> names of its fields, `name` included."""
    return {name: ("name", *body["properties"]) for name, body in schema().items()}


def needs_group(objective: Mapping[str, Any]) -> bool:
    """Whether the objective's baseline is made of the other attempts at the same task."""
    return bool(schema().get(str(objective.get("name")), {}).get("x-baseline") == "group")


def check(objective: Mapping[str, Any], path: str, problems: Problems) -> None:
    """Every misfit between the objective's settings and its schema."""
    name = objective.get("name")
    if name not in schema():
        problems.add(RecipeError(f"{path}.name is no objective", got=repr(name),
                                 fix=f"nearest names: {nearest(str(name), list(schema()))}"))
        return
    body = schema()[str(name)]
    for field in objective:
        if field != "name" and field not in body["properties"]:
            problems.add(RecipeError(f"unknown key {path}.{field}", got=repr(field), why=f"{name} has no such field",
                                     fix=f"nearest names: {nearest(field, list(body['properties']))}"))
    for field in body["required"]:
        if field not in objective:
            problems.add(RecipeError(f"missing key {path}.{field}", why=f"{name} needs it", fix=f"write {path}.{field}"))
    for field, rule in body["properties"].items():
        if field in objective and (wanted := _misfit(rule, objective[field])):
            problems.add(RecipeError(f"{path}.{field} must be {wanted}", got=repr(objective[field]),
                                     fix=f"see the fields of {name}"))


def _misfit(rule: Mapping[str, Any], value: Any) -> str | None:
    """What the rule wants, when the value is not it."""
    if "enum" in rule:
        return None if value in rule["enum"] else "one of " + ", ".join(map(repr, rule["enum"]))
    kinds = [rule["type"]] if isinstance(rule["type"], str) else rule["type"]
    fits = any(isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in kinds)
    if not fits:
        return " or ".join(kinds)
    if value is None or isinstance(value, (str, bool)):
        return None
    limits = (("exclusiveMinimum", ">", operator.gt), ("minimum", ">=", operator.ge),
              ("exclusiveMaximum", "<", operator.lt), ("maximum", "<=", operator.le))
    broken = [f"{sign} {rule[key]}" for key, sign, holds in limits if key in rule and not holds(value, rule[key])]
    return " and ".join(broken) or None
