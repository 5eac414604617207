"""Conversations of a file as a policy is asked and answers at serving time: read strictly, rendered turn by turn.

A row of demonstrations has `messages` (or TRL's `prompt` and `completion`), a row of pairs `prompt`, `chosen` and `rejected`;
either may have `tools`, `id`, and assistant messages with `tool_calls`, whose arguments are an object or its JSON text. Values
keep the types that they have, and those are JSON's. A key of a row, a message, a call or a tool that is null is absent in every
format. Parquet gives every struct of a column the keys of all of them, with nulls: inside arguments and schemas, where a null may
be meant, those keys are taken off again, so that what is null on purpose must come as JSON text.
"""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollbook.records import Action, RecordError, Reply, ToolCall, ToolSchema
from rollbook.records.tasks import Role
from rollbook.rollouts.described import Unreadable, only, plain, present, read_calls, read_tools, unique

ROLES: Mapping[str, Role] = {"system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
                             "tool": "tool"}
SUFFIXES = (".json", ".jsonl", ".parquet")
IGNORED = ("id", "source")
PLACE = re.compile(r"row \d+")       # the name of a row without an id


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
    for place, document in enumerate(_documents(data, suffix)):
        name = f"row {place}"
        try:
            row = present(plain(document), "it")
            name = _name(row.get("id"), name, seen)
            found.append(_row(row, name, pairs=pairs))
        except (Unreadable, RecordError) as error:
            wrong[name] = str(error).split("\n")[0]
        except RecursionError:
            wrong[name] = "it is nested too deep"
    return found, wrong


def _name(given: Any, place: str, seen: set[str]) -> str:
    """A row's id, or its place; Unreadable where another row has it."""
    if given is None:
        return place
    if not isinstance(given, str | int) or isinstance(given, bool) or PLACE.fullmatch(str(given)) or not str(given).strip():
        raise Unreadable(f"an id is a text or a whole number, and none that means a place: {given!r}"[:160])
    if str(given) in seen:
        raise Unreadable(f"an earlier row has the id {given}")
    seen.add(str(given))
    return str(given)


def _documents(data: bytes, suffix: str) -> list[Any]:
    try:
        if suffix == ".parquet":
            import pyarrow.parquet as pq
            return [_without_nulls(row) for row in pq.read_table(io.BytesIO(data)).to_pylist()]
        text = data.decode("utf-8")
        if suffix == ".jsonl":
            return [json.loads(line, object_pairs_hook=unique) for line in text.split("\n") if line.strip()]
        rows = json.loads(text, object_pairs_hook=unique)
    except (OSError, ValueError, RuntimeError, TypeError, KeyError, MemoryError) as error:      # pyarrow's, and too deep nesting
        raise Unreadable(str(error)[:200]) from error
    if suffix not in SUFFIXES or not isinstance(rows, list):
        raise Unreadable(f"a file is one of {', '.join(SUFFIXES)} and a list of rows")
    return rows


def _without_nulls(value: Any) -> Any:
    """A value of a Parquet column without the keys that other rows' structs brought along."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _row(row: Mapping[str, Any], name: str, *, pairs: bool) -> Row:
    known = ("prompt", "chosen", "rejected", "tools") if pairs else ("messages", "prompt", "completion", "tools")
    if strange := sorted(set(row) - {*known, *IGNORED}):
        raise Unreadable(f"unknown key {strange[0]}; known are {', '.join((*known, *IGNORED))}")
    tools = read_tools(row.get("tools"))
    if not pairs:
        if "messages" in row and (beside := [key for key in ("prompt", "completion") if key in row]):
            raise Unreadable(f"it has messages and {beside[0]}: which of them is learnt is not said")
        turns = _turns(row["messages"], "user") if "messages" in row else (
            *_turns(_needed(row, "prompt"), "user"), *_turns(_needed(row, "completion"), "assistant"))
        return Row(name=name, turns=_answered(_ordered(turns)), tools=tools)
    chosen, rejected = (_turns(_needed(row, key), "assistant") for key in ("chosen", "rejected"))
    prompt = _turns(row["prompt"], "user") if "prompt" in row else ()
    if not prompt:
        shared = next((at for at, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), 0)
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    if len(chosen) != 1 or len(rejected) != 1 or {chosen[0].role, rejected[0].role} != {"assistant"}:
        raise Unreadable("chosen and rejected are one assistant's turn each, behind the same prompt")
    if prompt[-1:] and prompt[-1].role == "assistant":
        raise Unreadable("the prompt ends with the assistant's own turn")
    return Row(name=name, turns=_answered(_ordered(prompt)), tools=tools, answers=(chosen[0], rejected[0]))


def _ordered(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    if not turns or turns[0].role == "assistant":
        raise Unreadable("it does not begin with what the policy is asked")
    if any(one.role == other.role == "assistant" for one, other in itertools.pairwise(turns)):
        raise Unreadable("two turns of the assistant follow each other")
    return turns


def _answered(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """The turns, of which every one that says which call it answers names an earlier one."""
    made: set[str] = set()
    for turn in turns:
        if turn.answers is not None and turn.answers not in made:
            raise Unreadable(f"a message answers the call {turn.answers!r}, which no earlier turn makes"[:160])
        made.update(call.id for call in turn.calls)
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


def _turn(document: Any) -> Turn:
    message = present(document, "a message")
    role = ROLES.get(message["role"]) if isinstance(message.get("role"), str) else None
    if role is None:
        raise Unreadable(f"a message has a role of {', '.join(ROLES)}, got {message!r}"[:160])
    only(message, ("role", "content", "tool_calls", "tool_call_id", "name"), "a message")
    content, calls, answers = message.get("content"), read_calls(message.get("tool_calls")), message.get("tool_call_id")
    if not isinstance(content, str | None) or (content is None and not calls):
        raise Unreadable(f"the content of a message is a text, got {type(content).__name__}")
    if not isinstance(answers, str | None) or not isinstance(message.get("name"), str | None):
        raise Unreadable(f"tool_call_id and name of a message are texts, got {answers!r} and {message.get('name')!r}"[:160])
    if calls and role != "assistant":
        raise Unreadable(f"tool_calls of {role}")
    if answers is not None and role != "tool":
        raise Unreadable(f"tool_call_id of {role}")
    if role == "assistant" and not (content or calls):
        raise Unreadable("an assistant's turn says nothing")
    return Turn(role=role, text=content or "", calls=calls, answers=answers)


def uncallable(row: Row) -> str | None:
    """The first call that could not be meant as it stands: of a tool that is not described, or in which a table's nulls are left.

    A null of Parquet is no argument, so that one which the tool requires is missing; a null of JSON is kept, so that one which
    the tool does not name was added by whoever wrote the file.
    """
    known = {tool.name: tool for tool in row.tools}
    for call in (call for turn in (*row.turns, *row.answers) for call in turn.calls):
        if call.name not in known:
            return f"it calls {call.name}, which its tools do not describe"
        schema = known[call.name].parameters
        missing = [name for name in schema.get("required", ()) if name not in call.arguments]
        if missing:
            return f"its call of {call.name} lacks {missing[0]}, which the tool requires; a null in Parquet must be JSON text"
        added = [name for name, value in call.arguments.items() if value is None and name not in schema.get("properties", {})]
        if added:
            return f"its call of {call.name} gives null for {added[0]}, which the tool does not name: leave it out"
    return None
