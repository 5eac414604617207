"""Checks of objective settings against the JSON schema of the objective dataclasses, so that recipes need no torch."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbook.records.codec import nearest
from rollbook.records.errors import RecipeError
from rollbook.records.problems import Problems

_TYPES: dict[str, tuple[type, ...]] = {"number": (int, float), "integer": (int,), "string": (str,), "boolean": (bool,),
                                       "null": (type(None),)}


@functools.cache
def schema() -> Mapping[str, Any]:
    """Objective name -> JSON schema of its fields; `x-baseline: group` marks a baseline that needs a group."""
    document: Mapping[str, Any] = json.loads((Path(__file__).parent / "objective_schema.json").read_text(encoding="utf-8"))
    return document


def fields() -> dict[str, tuple[str, ...]]:
    """Objective name -> names of its fields, `kind` included."""
    return {name: ("kind", *body["properties"]) for name, body in schema().items()}


def needs_group(objective: Mapping[str, Any]) -> bool:
    """Whether the objective's baseline is made of the other attempts at the same task."""
    held = objective.get("objective")
    if isinstance(held, Mapping):
        return needs_group(held)
    return bool(schema().get(str(objective.get("kind")), {}).get("x-baseline") == "group")


def check(objective: Mapping[str, Any], path: str, problems: Problems) -> None:
    """Every misfit between the objective's settings and its schema."""
    name = objective.get("kind")
    if name not in schema():
        problems.add(RecipeError(f"{path}.kind is no objective", got=repr(name),
                                 fix=f"nearest names: {nearest(str(name), list(schema()))}"))
        return
    _check_fields(objective, (str(name), schema()[str(name)]), path, problems)


def _check_fields(given: Mapping[str, Any], named: tuple[str, Mapping[str, Any]], path: str, problems: Problems) -> None:
    name, body = named
    known = body["properties"]
    for field in given:
        if field != "kind" and field not in known:
            problems.add(RecipeError(f"unknown key {path}.{field}", got=repr(field), why=f"{name} has no such field",
                                     fix=f"nearest names: {nearest(field, list(known))}"))
    for field in body["required"]:
        if field not in given:
            problems.add(RecipeError(f"missing key {path}.{field}", why=_missing_reason(name, known[field]),
                                     fix=f"write {path}.{field}"))
    for field, rule in known.items():
        if field not in given:
            continue
        if "x-objective" in rule:
            held = given[field] if isinstance(given[field], Mapping) else {"kind": given[field]}
            check(held, f"{path}.{field}", problems)
        elif "oneOf" in rule:
            _check_choice(given[field], rule["oneOf"], f"{path}.{field}", problems)
        elif wanted := _misfit(rule, given[field]):
            problems.add(RecipeError(f"{path}.{field} must be {wanted}", got=repr(given[field]), fix=f"see the fields of {name}"))


def _missing_reason(name: str, rule: Mapping[str, Any]) -> str:
    unstated = rule.get("x-unstated")
    if unstated is None:
        return f"{name} needs it"
    if not unstated["missing"]:
        return f"{name} needs it, and the paper leaves it open" + (f": {unstated['known']}" if unstated["known"] else "")
    return f"the paper prints {unstated['known'] or 'no rule'} without {', '.join(unstated['missing'])}"


def _check_choice(given: Any, options: list[Mapping[str, Any]], path: str, problems: Problems) -> None:
    """A settings record of one of several kinds."""
    kinds = {option["properties"]["kind"]["const"]: option for option in options if "kind" in option.get("properties", {})}
    kind = given.get("kind") if isinstance(given, Mapping) else None
    if kind not in kinds:
        problems.add(RecipeError(f"{path}.kind must name one of {', '.join(kinds)}", got=repr(kind)))
        return
    _check_fields(given, (str(kind), kinds[kind]), path, problems)


def _misfit(rule: Mapping[str, Any], value: Any) -> str | None:
    """What the rule wants, when the value is not it."""
    if "const" in rule:
        return None if value == rule["const"] else repr(rule["const"])
    if "anyOf" in rule:
        wants = [_misfit(option, value) for option in rule["anyOf"]]
        return None if None in wants else " or ".join(str(want) for want in wants)
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
