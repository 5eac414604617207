"""Llama 3: a turn that is one JSON object `{"name": ..., "parameters": {...}}`, or several with `;` between them."""

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

TAG = "<|python_tag|>"


class Llama3:
    """A turn calls where it begins, after reasoning, with the python tag or an object whose first key is `name`."""

    name: DialectName = "llama3"
    stops: tuple[str, ...] = ("<|eom_id|>",)
    wrapped = "ipython"

    def parse(self, text: str, tools: Sequence[ToolSchema]) -> Spoken:
        begin = reasoning_end(text)
        start = len(text) - len(text[begin:].lstrip())
        tagged = text.startswith(TAG, start)
        if not tagged and not _promises_a_call(text[start:]):
            return Spoken(text=text[begin:].strip(), calls=(), reasoning_end=begin)
        calls = _calls(text, start, start + len(TAG) if tagged else start)
        return Spoken(text=outside(text, begin, calls), calls=tuple(calls), reasoning_end=begin)

    def write(self, action: Action, tools: Sequence[ToolSchema]) -> str:
        calls = [json.dumps({"name": call.name, "parameters": dict(call.arguments)}) for call in action.calls]
        return "; ".join(calls) or action.text

    def announce(self, tools: Sequence[ToolSchema]) -> str:
        listed = "\n\n".join(schemas_json(tools))
        return (f'You have these functions. To call one, answer with {{"name": <name>, "parameters": <parameters>}} and nothing '
                f"else; put ; between several.\n\n{listed}")

    def wrap(self, content: str) -> tuple[str, str]:
        return "", ""


def _promises_a_call(text: str) -> bool:
    """Whether a text begins as an object whose first key is `name`: plain JSON answers are no calls."""
    return text.startswith("{") and text[1:].lstrip().startswith('"name"')


def _calls(text: str, start: int, at: int) -> list[Made | Malformed]:
    calls: list[Made | Malformed] = []
    while True:
        try:
            document, end = read_object(text, at)
            name, arguments = called(document, "parameters", also=frozenset({"type"}))
        except NotJson as error:
            return [*calls, Malformed(why=str(error), start=start, end=len(text))]
        calls.append(Made(name=name, arguments=arguments, start=start, end=end))
        rest = text[end:].lstrip()
        if not rest:
            return calls
        start = len(text) - len(rest)
        if not rest.startswith(";"):
            return [*calls, Malformed(why="text after a call, where only ; may follow", start=start, end=len(text))]
        at = start + 1
