"""Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as often as there are calls."""

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

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes:
    """The closing mark belongs to the call: without it the call is malformed. Marks inside a JSON string are text."""

    name: DialectName = "hermes"
    stops: tuple[str, ...] = ()
    wrapped = "<tool_response>"

    def parse(self, text: str, tools: Sequence[ToolSchema]) -> Spoken:
        begin = reasoning_end(text)
        calls: list[Made | Malformed] = []
        at = text.find(OPEN, begin)
        while at >= 0:
            calls.append(_call(text, at))
            at = text.find(OPEN, calls[-1].end)
        return Spoken(text=outside(text, begin, calls), calls=tuple(calls), reasoning_end=begin)

    def write(self, action: Action, tools: Sequence[ToolSchema]) -> str:
        written = [json.dumps({"name": call.name, "arguments": dict(call.arguments)}) for call in action.calls]
        calls = [f"{OPEN}\n{one}\n{CLOSE}" for one in written]
        return "\n".join([*([action.text] if action.text else []), *calls])

    def announce(self, tools: Sequence[ToolSchema]) -> str:
        listed = "\n".join(schemas_json(tools))
        return (f"You may call tools. They are described in <tools></tools>:\n<tools>\n{listed}\n</tools>\nCall one by writing\n"
                f'{OPEN}\n{{"name": <name>, "arguments": <arguments>}}\n{CLOSE}')

    def wrap(self, content: str) -> tuple[str, str]:
        return "<tool_response>\n", "\n</tool_response>"


def _call(text: str, start: int) -> Made | Malformed:
    inside = start + len(OPEN)
    try:
        document, end = read_object(text, inside)
        rest = text[end:]
        if not rest.lstrip(" \t\r\n").startswith(CLOSE):
            raise NotJson(f"no {CLOSE} after the call")
        name, arguments = called(document, "arguments", also=frozenset({"id"}))
        return Made(name=name, arguments=arguments, start=start, end=end + rest.index(CLOSE) + len(CLOSE))
    except NotJson as error:
        return Malformed(why=str(error), start=start, end=_give_up(text, inside))


def _give_up(text: str, inside: int) -> int:
    """Where a call that cannot be read ends: after its closing mark, before the next opening one, or with the text."""
    close, again = text.find(CLOSE, inside), text.find(OPEN, inside)
    if close >= 0 and (again < 0 or close < again):
        return close + len(CLOSE)
    return again if again >= 0 else len(text)
