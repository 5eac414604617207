"""Whether the arguments of a call fit the tool's JSON schema.

Checked: type, enum, const, properties, required, additionalProperties, items, anyOf, minimum, maximum, minLength, maxLength,
minItems, maxItems. Limit: other keywords are not checked; the environment has the last word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollbook.records import ToolSchema

TYPES: dict[str, tuple[type, ...]] = {"object": (dict,), "array": (list,), "string": (str,), "integer": (int,),
                                      "number": (int, float), "boolean": (bool,), "null": (type(None),)}


def only_text(tool: ToolSchema) -> str | None:
    """The name of the one text that a tool takes; None where it takes something else."""
    properties = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", [])
    names = list(required) if len(required) == 1 else list(properties) if len(properties) == 1 else []
    return names[0] if names and properties.get(names[0], {}).get("type") == "string" else None


def misfit(value: Any, schema: Mapping[str, Any], path: str = "arguments") -> str | None:
    """The first thing in which a value does not fit; None where it does."""
    kind = schema.get("type")
    kinds = [kind] if isinstance(kind, str) else list(kind or ())
    if kinds and not any(_is(value, one) for one in kinds):
        return f"{path} must be {' or '.join(kinds)}, got {type(value).__name__}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{path} must be one of {schema['enum']}"[:300]
    if "const" in schema and value != schema["const"]:
        return f"{path} must be {schema['const']!r}"[:300]
    if "anyOf" in schema and all(misfit(value, option, path) for option in schema["anyOf"]):
        return f"{path} fits none of its forms"
    if isinstance(value, dict):
        return _object(value, schema, path)
    if isinstance(value, list):
        found = _between(len(value), schema, ("minItems", "maxItems"), f"the length of {path}")
        items = schema.get("items")
        each = (misfit(item, items, f"{path}[{place}]") for place, item in enumerate(value)) if isinstance(items, dict) else ()
        return found or next((one for one in each if one), None)
    if isinstance(value, str):
        return _between(len(value), schema, ("minLength", "maxLength"), f"the length of {path}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _between(value, schema, ("minimum", "maximum"), path)
    return None


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES.get(kind, (object,)))


def _object(value: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> str | None:
    properties = schema.get("properties", {})
    absent = [name for name in schema.get("required", ()) if name not in value]
    if absent:
        return f"{path}.{absent[0]} is missing"
    more = schema.get("additionalProperties", True)
    for name, item in value.items():
        if name not in properties and more is False:
            return f"{path} has no {name[:60]!r}; it has {', '.join(properties) or 'nothing'}"
        inner = properties.get(name, more if isinstance(more, dict) else None)
        found = misfit(item, inner, f"{path}.{name}"[:120]) if isinstance(inner, dict) else None
        if found:
            return found
    return None


def _between(value: float, schema: Mapping[str, Any], keys: tuple[str, str], path: str) -> str | None:
    low, high = (schema.get(key) for key in keys)
    if low is not None and value < low:
        return f"{path} must be at least {low}"
    if high is not None and value > high:
        return f"{path} must be at most {high}"
    return None
