"""Conversations of a file as a policy is asked and answers at serving time: read strictly, rendered turn by turn.

A row of demonstrations has `messages` (or TRL's `prompt` and `completion`), a row of pairs `prompt`, `chosen` and `rejected`;
either may have `tools`, `id`, and assistant messages with `tool_calls`, whose arguments are an object or its JSON text. Values
keep the types that they have. Parquet gives every struct of a column the keys of all of them, with nulls: those keys are taken
off again, so that what is null on purpose must come as JSON text.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollbook.records import Action, RecordError, Reply, ToolCall, ToolSchema
from rollbook.records.tasks import Role

ROLES: Mapping[str, Role] = {"system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
                             "tool": "tool"}
SUFFIXES = (".json", ".jsonl", ".parquet")
IGNORED = ("id", "source")


class Unreadable(Exception):
    """A file or a row that is no conversation; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message: an assistant's is an action, every other one a reply."""

    role: Role
    text: str
    calls: tuple[ToolCall, ...] = ()
    answers: str | None = None

    @property
    def action(self) -> Action:
        return Action(text=self.text, calls=self.calls)

    @property
    def reply(self) -> Reply:
        assert self.role != "assistant"
        return Reply(owner=self.role, content=self.text, call=self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One conversation: `name` is its id or its place, `answers` are the chosen and the rejected one of a pair."""

    name: str
    turns: tuple[Turn, ...]
    tools: tuple[ToolSchema, ...] = ()
    answers: tuple[Turn, ...] = field(default=())


def read_rows(data: bytes, suffix: str, *, pairs: bool) -> tuple[list[Row], dict[str, str]]:
    """The rows of a file in order, and by name what is wrong with those that are none. Unreadable for what is no list of rows."""
    found: list[Row] = []
    wrong: dict[str, str] = {}
    seen: set[str] = set()
    for place, row in enumerate(_documents(data, suffix)):
        name = str(row.get("id", f"row {place}")) if isinstance(row, dict) else f"row {place}"
        if name in seen:
            wrong[f"row {place}"] = f"an earlier row has the id {name}"
            continue
        seen.add(name)
        try:
            found.append(_row(row, name, pairs=pairs))
        except (Unreadable, RecordError) as error:
            wrong[name] = str(error).split("\n")[0]
    return found, wrong


def _documents(data: bytes, suffix: str) -> list[Any]:
    try:
        if suffix == ".parquet":
            import pyarrow.parquet as pq
            return [_without_nulls(row) for row in pq.read_table(io.BytesIO(data)).to_pylist()]
        text = data.decode("utf-8")
        if suffix == ".jsonl":
            return [json.loads(line, object_pairs_hook=_unique) for line in text.split("\n") if line.strip()]
        rows = json.loads(text, object_pairs_hook=_unique)
    except (OSError, ValueError, RuntimeError, TypeError, KeyError, MemoryError) as error:      # pyarrow's, and too deep nesting
        raise Unreadable(str(error)[:200]) from error
    if suffix not in SUFFIXES or not isinstance(rows, list):
        raise Unreadable(f"a file is one of {', '.join(SUFFIXES)} and a list of rows")
    return rows


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice in one object")
    return found


def _without_nulls(value: Any) -> Any:
    """A value of a Parquet column without the keys that other rows' structs brought along."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _row(row: Any, name: str, *, pairs: bool) -> Row:
    if not isinstance(row, dict):
        raise Unreadable("it is no object")
    known = ("prompt", "chosen", "rejected", "tools") if pairs else ("messages", "prompt", "completion", "tools")
    if strange := sorted(set(row) - {*known, *IGNORED}):
        raise Unreadable(f"unknown key {strange[0]}; known are {', '.join((*known, *IGNORED))}")
    tools = tuple(_tools(row.get("tools")))
    if not pairs:
        turns = _turns(row["messages"], "user") if "messages" in row else (
            *_turns(_needed(row, "prompt"), "user"), *_turns(_needed(row, "completion"), "assistant"))
        return Row(name=name, turns=_ordered(turns), tools=tools)
    chosen, rejected = (_turns(_needed(row, key), "assistant") for key in ("chosen", "rejected"))
    prompt = _turns(row["prompt"], "user") if "prompt" in row else ()
    if not prompt:
        shared = next((at for at, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), 0)
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    if len(chosen) != 1 or len(rejected) != 1 or {chosen[0].role, rejected[0].role} != {"assistant"}:
        raise Unreadable("chosen and rejected are one assistant's turn each, behind the same prompt")
    if prompt[-1:] and prompt[-1].role == "assistant":
        raise Unreadable("the prompt ends with the assistant's own turn")
    return Row(name=name, turns=_ordered(prompt), tools=tools, answers=(chosen[0], rejected[0]))


def _ordered(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    if not turns or turns[0].role == "assistant":
        raise Unreadable("it does not begin with what the policy is asked")
    if any(one.role == other.role == "assistant" for one, other in itertools.pairwise(turns)):
        raise Unreadable("two turns of the assistant follow each other")
    return turns


def _needed(row: Mapping[str, Any], key: str) -> Any:
    if row.get(key) is None:
        raise Unreadable(f"it has no {key}")
    return row[key]


def _turns(value: Any, role: Role) -> tuple[Turn, ...]:
    if isinstance(value, str):
        return (Turn(role=role, text=value),)
    if not isinstance(value, list):
        raise Unreadable(f"messages are a text or a list, got {type(value).__name__}")
    return tuple(_turn(one) for one in value)


def _turn(message: Any) -> Turn:
    role = ROLES.get(str(message.get("role", ""))) if isinstance(message, dict) else None
    if role is None:
        raise Unreadable(f"a message has a role of {', '.join(ROLES)}, got {message!r}"[:160])
    if strange := sorted(set(message) - {"role", "content", "tool_calls", "tool_call_id", "name"}):
        raise Unreadable(f"unknown key {strange[0]} of a message")
    content, calls = message.get("content"), tuple(_calls(message.get("tool_calls")))
    if not isinstance(content, str | None) or (content is None and not calls):
        raise Unreadable(f"the content of a message is a text, got {type(content).__name__}")
    if calls and role != "assistant":
        raise Unreadable(f"tool_calls of {role}")
    if role == "assistant" and not (content or calls):
        raise Unreadable("an assistant's turn says nothing")
    return Turn(role=role, text=content or "", calls=calls, answers=message.get("tool_call_id"))


def _calls(value: Any) -> Iterator[ToolCall]:
    if not isinstance(value, list | None):
        raise Unreadable(f"tool_calls are a list, got {type(value).__name__}")
    for place, call in enumerate(value or ()):
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Unreadable(f"a tool call has a name, got {call!r}"[:160])
        if strange := sorted(map(str, set(function) - {"name", "arguments", "id", "type", "index"})):
            raise Unreadable(f"unknown key {strange[0]} of a call")
        given = function.get("arguments")
        arguments = {} if given is None or given == "" else _json(given, "the arguments of a call")
        if not isinstance(arguments, dict):
            raise Unreadable(f"the arguments of {function['name']} are no object: {arguments!r}"[:160])
        yield ToolCall(id=str(call.get("id", f"call_{place}")), name=function["name"], arguments=arguments)


def _tools(value: Any) -> Iterator[ToolSchema]:
    tools = _json(value or [], "tools")
    if not isinstance(tools, list):
        raise Unreadable(f"tools are a list, got {type(tools).__name__}")
    for one in tools:
        tool = _json(one, "a tool")
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Unreadable(f"a tool is a function with a name, got {one!r}"[:160])
        parameters = _json(function.get("parameters") or {"type": "object", "properties": {}}, "the parameters of a tool")
        if not isinstance(parameters, dict):
            raise Unreadable(f"the parameters of {function['name']} are no object: {parameters!r}"[:160])
        yield ToolSchema(name=function["name"], description=function.get("description") or "", parameters=parameters)


def _json(value: Any, what: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{what} cannot be read: {error}"[:160]) from None


def called(row: Row) -> Sequence[str]:
    """The tools that a row's turns call and that it does not describe."""
    known = {tool.name for tool in row.tools}
    return [call.name for turn in (*row.turns, *row.answers) for call in turn.calls if call.name not in known]
