"""What the built-in environments share: tools as functions, tasks from questions, answers read from texts and compared."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from rollbook.records import (
    Action,
    Budget,
    Ended,
    FinalState,
    Grade,
    Message,
    Observation,
    RawTask,
    Reply,
    ReplyError,
    Task,
    ToolCall,
    ToolSchema,
    Ungraded,
    content_id,
    digest,
)

HERE = Path(__file__).parent
ACQUIRED = "2026-11-30"
ANSWER_LINE = re.compile(r"^\W*(?:final\s+)?answer\W*?:\s*(.*\S)\s*$", re.IGNORECASE | re.MULTILINE)
LONGEST_ANSWER = 2000
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
EDGES = " \t\n.,;:!?\"'`*_()[]{}$"
ARTICLES = re.compile(r"^(?:the|a|an)\s+")
BUDGET = Budget(max_tokens=4096, max_turns=32)


class Refused(Exception):
    """A tool call that is answered with an error: `error` says of which kind, the message what it was."""

    def __init__(self, text: str, error: ReplyError = "refused"):
        super().__init__(text)
        self.error = error


Handler = Callable[[Mapping[str, Any]], str | Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool: its schema, and what it does with the arguments. It returns a text or raises Refused."""

    schema: ToolSchema
    run: Handler


def schema(name: str, description: str, required: Sequence[str] = (), /, **parameters: Mapping[str, Any]) -> ToolSchema:
    """A tool's schema; `required` names those parameters that must be there.

    Example: schema("open", "Opens a page.", ("name",), name={"type": "string"})
    """
    return ToolSchema(name=name, description=description, parameters={
        "type": "object", "properties": dict(parameters), "required": list(required), "additionalProperties": False})


@dataclass(slots=True)
class ToolEpisode:
    """An episode of tools until a turn without calls, which is the answer. Subclasses fill `offered` at reset."""

    offered: dict[str, Tool] = field(default_factory=dict)
    answer: str | None = None
    calls: int = 0
    ended: Ended | None = None

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return tuple(tool.schema for tool in self.offered.values())

    async def reset(self, task: Task) -> Observation:
        return Observation()

    async def act(self, action: Action) -> Observation:
        if not action.calls:
            self.answer = action.text
            self.ended = "answered"
            return Observation(ended="answered")
        return Observation(replies=tuple([await self.reply(call) for call in action.calls]), ended=self.ended)

    async def reply(self, call: ToolCall) -> Reply:
        """One call's answer; after the end of an episode all calls are refused."""
        if self.ended is not None:
            return Reply(owner="tool", content="the episode is over", call=call.id, error="refused")
        self.calls += 1
        if call.name not in self.offered:
            return Reply(owner="tool", content=f"there is no tool {call.name!r}; there are: {', '.join(self.offered)}",
                         call=call.id,
                         error="unknown_tool")
        try:
            found = self.offered[call.name].run({name: whole(value) for name, value in call.arguments.items()})
            content = await found if inspect.isawaitable(found) else found
        except Refused as refused:
            return Reply(owner="tool", content=str(refused), call=call.id, error=refused.error)
        assert isinstance(content, str)
        return Reply(owner="tool", content=content, call=call.id)

    def facts(self) -> dict[str, Any]:
        """What the final state says beside the answer."""
        return {}

    def state(self) -> FinalState:
        return FinalState(facts={"answer": self.answer, "calls": self.calls, **self.facts()})

    async def close(self) -> None:
        pass

    def saved(self) -> dict[str, Any]:
        """What a subclass adds to a snapshot, as JSON values."""
        return {}

    def load(self, saved: Mapping[str, Any]) -> None:
        """The opposite of `saved`; an episode is restored after its reset with the same task."""

    def snapshot(self) -> bytes:
        return json.dumps({"answer": self.answer, "calls": self.calls, "ended": self.ended, "own": self.saved()}).encode()

    def restore(self, snapshot: bytes) -> None:
        document = json.loads(snapshot)
        self.answer, self.calls, self.ended = document["answer"], document["calls"], document["ended"]
        self.load(document["own"])


def whole(value: Any) -> Any:
    """A float that is a whole number as that number: JSON schemas take 3.0 for an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def call(name: str, /, **arguments: Any) -> Action:
    """A turn with one call, as a gold solution has it."""
    return Action(calls=(ToolCall(id=f"call_{name}", name=name, arguments=arguments),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A task before it has its records. `start` names what the first state is built from, `unit` is the split unit."""

    family: str
    text: str
    reference: str
    unit: str
    start: str
    source: str
    lineage: Mapping[str, str]
    predicate: str
    tools: tuple[str, ...] = ()
    system: str = ""
    licence: str = "CC0-1.0"
    domain: str = "general"
    budget: Budget = BUDGET

    def records(self) -> tuple[RawTask, Task]:
        """The raw task and the task."""
        raw = RawTask(source=self.source, licence=self.licence, acquired_at=ACQUIRED, content=self.text, language="en",
                      domain=self.domain, sensitive=(), lineage=self.lineage)
        system = (Message(role="system", content=self.system, origin="recipe"),) if self.system else ()
        task = Task(raw=content_id(raw), family=self.family, prompt=(*system, Message(role="user", content=self.text,
                                                                                      origin="raw")),
                    reference=self.reference, canonical=self.unit, predicate=self.predicate, initial_state=self.start,
                    tools=self.tools, budget=self.budget, termination=("answered", "turn_limit", "length"))
        return raw, task


def code_digest(*names: str) -> str:
    """One digest of these files and folders of the built-in environments."""
    files = [file for name in names for file in ([HERE / name] if (HERE / name).is_file()
                                                 else sorted((HERE / name).rglob("*.py")))]
    return digest(b"\0".join(str(file.relative_to(HERE)).encode() + b"\0" + file.read_bytes() for file in files))


def final_answer(text: str | None) -> str | None:
    """What a text gives as its answer: its last line `Answer: ...`, else the whole text; None without any."""
    if text is None or not text.strip():
        return None
    lines = ANSWER_LINE.findall(text)
    return (lines[-1] if lines else text.strip())[:LONGEST_ANSWER]


def plain(text: str) -> str:
    """A text without case, article, marks around it and repeated blanks."""
    words = " ".join(text.casefold().split()).strip(EDGES)
    return ARTICLES.sub("", words).strip(EDGES)


def number(text: str) -> Fraction | None:
    """The number that a text is, with commas between thousands and a percent or unit sign refused; None for anything else."""
    stripped = text.strip(" \t\n.$*`")
    if not NUMBER.fullmatch(stripped):
        return None
    try:
        return Fraction(stripped.replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return None


def same_answer(found: str | None, wanted: Sequence[str]) -> bool:
    """Whether an answer names exactly these: equal numbers, equal plain texts, or equal sets of several."""
    if found is None or not wanted:
        return False
    if len(wanted) == 1:
        return _same(found, wanted[0])
    parts = [part for part in re.split(r"\s*[;\n]\s*|\s*,\s*(?:and\s+)?|\s+and\s+", found) if plain(part)]
    return len(parts) == len(wanted) and {plain(part) for part in parts} == {plain(name) for name in wanted}


def _same(found: str, wanted: str) -> bool:
    value = number(wanted)
    return plain(found) == plain(wanted) if value is None else number(found) == value


def graded(task: Task, state: FinalState, parts: Mapping[str, float] | None = None) -> Grade | Ungraded:
    """The grade of a state whose fact `answer` is compared with the task's reference (several joined by '; ')."""
    if not task.reference.strip():
        return Ungraded(code="no_reference", detail="the task has no reference")
    found = final_answer(state.facts.get("answer"))
    right = same_answer(found, task.reference.split("; "))
    return Grade(accuracy=float(right), parts=dict(parts or {}),
                 detail=f"{(found or 'no answer')[:80]} for {task.reference[:80]}")
