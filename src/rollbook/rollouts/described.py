"""Tools and their calls as JSON has them, in conversation files and in requests: one reader, so that both mean the same.

A key that is null is absent; an unknown one, a name twice, and what no record could hold are refused.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rollbook.records import ToolCall, ToolSchema


class Unreadable(Exception):
    """What is no conversation, tool or call: a file, a row, a part of a request; the text says why."""


def read_tools(value: Any) -> tuple[ToolSchema, ...]:
    """The tools of a list, or of its JSON text; RecordError for a name or a schema that no tool may have."""
    tools = [] if value is None else _json(value, "tools")
    if not isinstance(tools, list):
        raise Unreadable(f"tools are a list, got {type(tools).__name__}")
    found = tuple(_tool(present(_json(one, "a tool"), "a tool")) for one in tools)
    if twice := _twice(tool.name for tool in found):
        raise Unreadable(f"two tools have the name {twice}")
    return found


def _tool(tool: Mapping[str, Any]) -> ToolSchema:
    function = _function(tool, ("name", "description", "parameters", "strict"), ("type",), "a tool")
    described, given = function.get("description", ""), function.get("parameters")
    if not isinstance(described, str):
        raise Unreadable(f"the description of {function['name']} is a text, got {described!r}"[:160])
    parameters = {"type": "object", "properties": {}} if given is None else _json(given, "the parameters of a tool")
    if not isinstance(parameters, dict):
        raise Unreadable(f"the parameters of {function['name']} are no object: {parameters!r}"[:160])
    required = parameters.get("required", [])
    if not isinstance(required, list) or not isinstance(parameters.get("properties", {}), dict):
        raise Unreadable(f"the parameters of {function['name']} are no JSON schema: {parameters!r}"[:160])
    return ToolSchema(name=function["name"], description=described, parameters=parameters)


def read_calls(value: Any) -> tuple[ToolCall, ...]:
    """The calls of one turn; their arguments are an object or its JSON text."""
    if not isinstance(value, list | None):
        raise Unreadable(f"tool_calls are a list, got {type(value).__name__}")
    calls = tuple(_call(one, place) for place, one in enumerate(value or ()))
    if twice := _twice(call.id for call in calls):
        raise Unreadable(f"two calls of one turn have the id {twice}")
    return calls


def _call(document: Any, place: int) -> ToolCall:
    call = present(document, "a tool call")
    function = _function(call, ("name", "arguments"), ("id", "type", "index"), "a tool call")
    given, own = function.get("arguments"), call.get("id", f"call_{place}")
    if not isinstance(own, str):
        raise Unreadable(f"the id of a call is a text, got {own!r}"[:160])
    arguments = {} if given is None or given == "" else _json(given, "the arguments of a call")
    if not isinstance(arguments, dict):
        raise Unreadable(f"the arguments of {function['name']} are no object: {arguments!r}"[:160])
    return ToolCall(id=own, name=function["name"], arguments=arguments)


def _function(outer: Mapping[str, Any], own: Sequence[str], around: Sequence[str], what: str) -> Mapping[str, Any]:
    """The function that a tool or a call names: in an object of its own, or flat. Unknown keys and another type are refused."""
    nested = "function" in outer
    only(outer, ("function", *around) if nested else (*own, *around), what)
    function = present(outer["function"], f"the function of {what}") if nested else outer
    if nested:
        only(function, own, f"the function of {what}")
    if not isinstance(function.get("name"), str) or outer.get("type", "function") != "function":
        raise Unreadable(f"{what} is a function with a name, got {dict(outer)!r}"[:160])
    return function


def _twice(names: Iterable[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _json(value: Any, what: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return plain(json.loads(value, object_pairs_hook=unique))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{what} cannot be read: {error}"[:160]) from None


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; ValueError where a key stands in it twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice in one object")
    return found


def plain(value: Any) -> Any:
    """The value itself, where JSON has it; Unreadable for every other type, for numbers that are none and for broken text."""
    if isinstance(value, str):
        if any("\ud800" <= mark <= "\udfff" for mark in value):
            raise Unreadable(f"it holds a text that is not valid Unicode: {value!r}"[:160])
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise Unreadable(f"it holds a key that is no text: {key!r}"[:160])
            plain(key)
            plain(item)
    elif isinstance(value, list):
        for item in value:
            plain(item)
    elif not isinstance(value, bool | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
        raise Unreadable(f"it holds what JSON has no value for: {value!r} of type {type(value).__name__}"[:160])
    return value


def present(value: Any, what: str) -> dict[str, Any]:
    """An object without the keys that are null."""
    if not isinstance(value, dict):
        raise Unreadable(f"{what} is no object")
    return {key: item for key, item in value.items() if item is not None}


def only(value: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Unreadable for a key that is not among the known."""
    if strange := sorted(set(value) - set(known)):
        raise Unreadable(f"unknown key {strange[0]} of {what}; known are {', '.join(known)}")
