"""What every dialect of tool calls shares: what was read from a turn, strict JSON, and where reasoning ends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rollbook.records import Action, ToolSchema
from rollbook.records import Dialect as DialectName

THINK, END_THINK = "<think>", "</think>"
DEEPEST = 64            # levels of nesting in the arguments of a call


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A call as it was written, at characters `start` to `end`; `arguments` is a JSON object, or the text of a one-text tool."""

    name: str
    arguments: Mapping[str, Any] | str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """Something that begins as a call and cannot be read as one, and why."""

    why: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """A turn taken apart: `text` is what is left without reasoning and calls; `reasoning_end` the character after the reasoning.

    Example: Spoken(text="Let me see.", calls=(Made(name="calculator", arguments={"expression": "1+1"}, start=12, end=99),),
        reasoning_end=0)
    """

    text: str
    calls: tuple[Made | Malformed, ...]
    reasoning_end: int


class Dialect(Protocol):
    """One way to write tool calls. `stops` are further tokens that end a turn, where the tokenizer has them."""

    name: DialectName
    stops: tuple[str, ...]
    wrapped: str

    def parse(self, text: str, tools: Sequence[ToolSchema]) -> Spoken:
        """The turn's calls in order; never raises, whatever the text."""

    def write(self, action: Action, tools: Sequence[ToolSchema]) -> str:
        """A turn as a policy of this dialect writes it; `parse` reads it back."""

    def announce(self, tools: Sequence[ToolSchema]) -> str:
        """What tells the policy which tools there are and how to call them, for templates that do not."""

    def wrap(self, content: str) -> tuple[str, str]:
        """What stands before and after a tool's reply, for templates that do not write it."""


class NotJson(Exception):
    """A text that is no JSON value that a call could carry."""


def reasoning_end(text: str) -> int:
    """Where the reasoning in front of a turn ends; 0 where there is none, the whole length where it never ends.

    The opening mark may stand in the prompt: a closing one alone ends reasoning from the beginning on.
    """
    close = text.find(END_THINK)
    if close >= 0:
        opened = text.find(THINK)
        return close + len(END_THINK) if opened < close else 0
    return len(text) if text.lstrip().startswith(THINK) else 0


def read_object(text: str, start: int) -> tuple[dict[str, Any], int]:
    """The JSON object that begins at `start` (after blanks) and the character after it; NotJson with the reason."""
    at = start
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    try:
        value, end = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise NotJson(f"{error.msg}: character {error.pos - start}") from error
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error) or type(error).__name__) from error
    if not isinstance(value, dict):
        raise NotJson(f"a JSON object is wanted, not {type(value).__name__}")
    _check(value, 0)
    return value, end


def _check(value: Any, depth: int) -> None:
    if depth > DEEPEST:
        raise NotJson(f"nested deeper than {DEEPEST}")
    if isinstance(value, str):
        if any("\ud800" <= mark <= "\udfff" for mark in value):
            raise NotJson("a string that is not valid Unicode")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check(key, depth + 1)
            _check(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check(item, depth + 1)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float)


def called(document: Mapping[str, Any], arguments: str, *, also: frozenset[str] = frozenset()) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a call's document, whose arguments stand under this key; NotJson where it is another document."""
    extra = set(document) - {"name", arguments} - also
    if extra:
        raise NotJson(f"unknown key {min(extra)[:40]!r}")
    name, given = document.get("name"), document.get(arguments, {})
    if not isinstance(name, str) or not name:
        raise NotJson("no name of a tool")
    if not isinstance(given, dict):
        raise NotJson(f"{arguments} must be an object, not {type(given).__name__}")
    return name, given


def outside(text: str, start: int, calls: Sequence[Made | Malformed]) -> str:
    """The text from `start` on without the calls."""
    parts, at = [], start
    for call in calls:
        parts.append(text[at:call.start])
        at = max(at, call.end)
    return "".join([*parts, text[at:]]).strip()


def schemas_json(tools: Sequence[ToolSchema]) -> list[str]:
    """Each tool as the one-line JSON document that models are trained to read."""
    return [json.dumps({"type": "function", "function": {"name": tool.name, "description": tool.description,
                                                         "parameters": tool.parameters}}) for tool in tools]
