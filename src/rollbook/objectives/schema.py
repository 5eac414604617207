"""JSON Schema of the settings records, so that recipes can be validated without torch.

A setting that is `Unstated` by default is *required* here: a run needs it, although the loss alone does not. A record is named by
the key `kind`, its class name.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Literal

from rollbook.objectives.catalogue import OBJECTIVES
from rollbook.objectives.core import Objective, Unstated
from rollbook.objectives.corrected import Corrected
from rollbook.objectives.credit.rules import RULES, Credit
from rollbook.objectives.errors import ObjectiveError
from rollbook.objectives.exploring import ControlledEntropy, WithEntropy

_SCALARS: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
_WRAPPERS = (Corrected, WithEntropy, ControlledEntropy)
_BOUNDS = ("low", "high")
_GROUP_RULES = ("GroupCentered", "GroupNormalized", "LeaveOneOut", "MinibatchStandardized")


def json_schema(cls: type) -> dict[str, Any]:
    """Schema of one settings record: its fields, their types, what is required, printed defaults; no other keys.

    Example: json_schema(Dapo)["properties"]["high"] == {"type": "number", "minimum": 0, "default": 0.28}
    """
    if not isinstance(cls, type) or cls not in {*OBJECTIVES.values(), *RULES.values(), *_WRAPPERS}:
        raise ObjectiveError(
            "json_schema takes the class of an objective or of a credit rule",
            got=repr(cls)[:80],
            why="their fields are the schema",
            fix="pass the class itself, e.g. json_schema(Dapo)",
        )
    return {**_record(cls), "$defs": _definitions()}


def catalogue_schema() -> dict[str, Any]:
    """One schema for any objective of the catalogue, alone, corrected or beside a bonus for entropy, chosen by `kind`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rollbook objective",
        "anyOf": [{"$ref": "#/$defs/objective"}, *map(_record, _WRAPPERS)],
        "$defs": _definitions(),
    }


def schemas_by_name() -> dict[str, dict[str, Any]]:
    """Objective name -> schema of its fields without `kind`, as recipes hold them; credit records are written out in place.

    `x-baseline` is "group" where the paper's credit compares a rollout with the others of its task; `x-objective` marks the
    objective that a wrapper holds.
    """
    credit = _definitions()["credit"]
    result: dict[str, dict[str, Any]] = {}
    for wrapper in _WRAPPERS:
        record = _record(wrapper)
        properties = {field: schema for field, schema in record["properties"].items() if field != "kind"}
        properties["objective"] = {"x-objective": True}
        required = [field for field in record["required"] if field != "kind"]
        result[wrapper.__name__] = {**record, "properties": properties, "required": required}
    for name, cls in OBJECTIVES.items():
        record = _record(cls)
        properties = {field: schema for field, schema in record["properties"].items() if field != "kind"}
        unstated = {key: value for key, value in properties["credit"].items() if key != "$ref"}
        properties["credit"] = {**credit, **unstated}
        required = [field for field in record["required"] if field != "kind"]
        result[name] = {**record, "properties": properties, "required": required}
        if _rule_name(cls) in _GROUP_RULES:
            result[name]["x-baseline"] = "group"
    return result


def _rule_name(cls: type) -> str | None:
    """The credit rule that the paper names."""
    default = next(field.default for field in dataclasses.fields(cls) if field.name == "credit")
    return default.known if isinstance(default, Unstated) else type(default).__name__


def _definitions() -> dict[str, Any]:
    return {
        "credit": {"oneOf": [_record(cls) for cls in RULES.values()]},
        "objective": {"oneOf": [_record(cls) for cls in OBJECTIVES.values()]},
    }


def _record(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    properties: dict[str, Any] = {"kind": {"const": cls.__name__}}
    required = ["kind"]
    for field in dataclasses.fields(cls):
        schema = _type_schema(hints[field.name])
        if field.name in _BOUNDS:
            schema = {**schema, "minimum": 0}
        if field.default is dataclasses.MISSING:
            required.append(field.name)
        elif isinstance(field.default, Unstated):
            required.append(field.name)
            schema = {**schema, "x-unstated": _unstated(field.default)}
        else:
            schema = {**schema, "default": _plain(field.default)}
        properties[field.name] = schema
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _type_schema(hint: Any) -> dict[str, Any]:
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if hint is type(None):
        return {"type": "null"}
    if hint is Objective:
        return {"$ref": "#/$defs/objective"}
    origin = typing.get_origin(hint)
    if origin is Literal:
        return {"enum": list(typing.get_args(hint))}
    if origin in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not Unstated]
        if set(options) == set(typing.get_args(Credit)):
            return {"$ref": "#/$defs/credit"}
        return _type_schema(options[0]) if len(options) == 1 else {"anyOf": [_type_schema(option) for option in options]}
    raise TypeError(f"no JSON schema for {hint!r}")


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__, **dataclasses.asdict(value)}
    return value


def _unstated(value: Unstated) -> dict[str, Any]:
    return {"known": value.known, "printed": dict(value.printed), "missing": list(value.missing)}
