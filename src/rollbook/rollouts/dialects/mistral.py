"""Mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` once for each call."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rollbook.records import Action, ToolSchema
from rollbook.records import Dialect as DialectName
from rollbook.rollouts.dialects.reading import (
    Made,
    Malformed,
    NotJson,
    Spoken,
    called,
    outside,
    read_object,
    reasoning_end,
    schemas_json,
)

MARK, ARGS = "[TOOL_CALLS]", "[ARGS]"
BLANK = " \t\r\n"


class Mistral:
    """What stands before the first mark is text; what follows a call is malformed unless it is the next call."""

    name: DialectName = "mistral"
    stops: tuple[str, ...] = ()
    wrapped = "[TOOL_RESULTS]"

    def parse(self, text: str, tools: Sequence[ToolSchema]) -> Spoken:
        begin = reasoning_end(text)
        at = text.find(MARK, begin)
        calls: list[Made | Malformed] = []
        while at >= 0:
            found = _listed(text, at) if text[at + len(MARK):].lstrip(BLANK).startswith("[{") else [_named(text, at)]
            calls += found
            end = calls[-1].end
            rest = text[end:].lstrip(BLANK)
            if isinstance(calls[-1], Made) and rest and not rest.startswith(MARK):
                calls.append(Malformed(why="text after a call", start=len(text) - len(rest), end=len(text)))
                break
            at = text.find(MARK, end)
        return Spoken(text=outside(text, begin, calls), calls=tuple(calls), reasoning_end=begin)

    def write(self, action: Action, tools: Sequence[ToolSchema]) -> str:
        calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in action.calls]
        return f"{action.text}{MARK} {json.dumps(calls)}" if calls else action.text

    def announce(self, tools: Sequence[ToolSchema]) -> str:
        return f"[AVAILABLE_TOOLS] [{', '.join(schemas_json(tools))}][/AVAILABLE_TOOLS]"

    def wrap(self, content: str) -> tuple[str, str]:
        return "[TOOL_RESULTS] ", " [/TOOL_RESULTS]"


def _listed(text: str, start: int) -> list[Made | Malformed]:
    """A JSON list of calls; one fault makes the rest of the list unreadable."""
    at = text.index("[", start + len(MARK)) + 1
    calls: list[Made | Malformed] = []
    while True:
        try:
            document, end = read_object(text, at)
            name, arguments = called(document, "arguments", also=frozenset({"id"}))
            after = len(text) - len(text[end:].lstrip(BLANK))
            if text[after:after + 1] not in (",", "]"):
                raise NotJson("the list of calls is not closed")
        except NotJson as error:
            return [*calls, Malformed(why=str(error), start=start, end=len(text))]
        calls.append(Made(name=name, arguments=arguments, start=start, end=after + 1))
        if text[after] == "]":
            return calls
        start = at = after + 1


def _named(text: str, start: int) -> Made | Malformed:
    """`name[ARGS]{...}`, also with the arguments directly behind the name."""
    inside = start + len(MARK)
    again = text.find(MARK, inside)
    limit = again if again >= 0 else len(text)
    brace = text.find("{", inside, limit)
    name = text[inside:brace].strip(BLANK) if brace >= 0 else ""
    name = name.removesuffix(ARGS).strip(BLANK)
    if not name or any(mark in name for mark in "[]{} \n"):
        return Malformed(why="no name of a tool", start=start, end=limit)
    try:
        arguments, end = read_object(text, brace)
    except NotJson as error:
        return Malformed(why=str(error), start=start, end=limit)
    return Made(name=name, arguments=arguments, start=start, end=end)
