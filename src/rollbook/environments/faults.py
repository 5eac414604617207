"""Faults put into the tools of any environment: seeded, at rates of their own for each tool, and recorded.

Controlled simulation after AgentWorld (2606.24597): pagination, intermittent errors, partial results and batch failures, and
beside them latency, schema drift and stale data. What is drawn depends on the seed, the task and the number of the call alone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rollbook.environments.wrapping import Inner, WrappedEpisode, wrapped_image
from rollbook.records import (
    Action,
    EnvironmentFault,
    EnvironmentImage,
    FinalState,
    Grade,
    Observation,
    Reply,
    Services,
    Solutions,
    Task,
    TaskSet,
    ToolCall,
    ToolSchema,
    Ungraded,
    canonical,
    digest,
)

FaultKind = Literal["error", "latency", "timeout", "page", "partial", "batch", "drift", "stale"]
ERRORS = ("503 service unavailable, try again", "429 too many requests, try again", "connection reset by peer",
          "500 internal error (request id {id})")
NEXT = ToolSchema(name="next_page", description="Shows the next page of a result that was cut, by its cursor.", parameters={
    "type": "object", "properties": {"cursor": {"type": "string"}}, "required": ["cursor"], "additionalProperties": False})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How often what happens to one tool; each rate is a probability for each call.

    `error`: the call is not made, and an error that says so comes back. `latency`: it takes an exponential time of mean
    `latency_s`; beyond `timeout_s` it counts as made but its result is lost. `page`: a result of more than `page_lines` lines
    comes page by page. `partial`: a share of the result's lines is missing, which `partial_told` says or not. `batch`: where
    several calls are made at once, those from a drawn one on fail. `drift`: from a drawn call on, within `drift_within`, results
    have another form. `stale`: a call that was made before gives what it gave the first time.
    """

    error: float = 0.0
    latency: float = 0.0
    latency_s: float = 2.0
    timeout_s: float = 10.0
    page: float = 0.0
    page_lines: int = 10
    partial: float = 0.0
    partial_told: bool = True
    batch: float = 0.0
    drift: float = 0.0
    drift_within: int = 10
    stale: float = 0.0

    def __post_init__(self) -> None:
        for name in ("error", "latency", "page", "partial", "batch", "drift", "stale"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise EnvironmentFault(f"the rate {name} is a probability", code="build", got=str(getattr(self, name)))
        for name in ("latency_s", "timeout_s", "page_lines", "drift_within"):
            if not getattr(self, name) > 0:
                raise EnvironmentFault(f"{name} must be positive", code="build", got=str(getattr(self, name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulty:
    """Any environment with faults in its tools: `rates` by tool, `*` for those that are not named.

    With `real_time` latencies are waited for; without, they are only recorded. The grade is the inner environment's; its state
    has the fact `faults`: every fault with its call, tool and kind.
    """

    inner: Inner
    rates: Mapping[str, Rates] = field(default_factory=dict)
    seed: int = 0
    real_time: bool = False

    def image(self) -> EnvironmentImage:
        return wrapped_image(self, self.inner.load(), digest(Path(__file__).read_bytes()))

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        return self.inner.load().tasks(count=count, seed=seed)

    def build(self, *, services: Services, seed: int) -> FaultyEpisode:
        return FaultyEpisode(inner=self.inner.load().build(services=services, seed=seed), definition=self,
                             drawn_from=f"{self.seed}/{seed}")

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        facts = {name: value for name, value in state.facts.items() if name != "faults"}
        found = self.inner.load().verify(task, dataclasses.replace(state, facts=facts), services=services)
        if isinstance(found, Ungraded):
            return found
        return dataclasses.replace(found, parts={**found.parts, "faults": float(len(state.facts["faults"]))})

    def solutions(self, task: Task) -> Solutions:
        return self.inner.load().solutions(task)

    def rates_of(self, tool: str) -> Rates:
        return self.rates.get(tool) or self.rates.get("*") or Rates()


@dataclass(slots=True)
class FaultyEpisode(WrappedEpisode):
    """One episode with faults."""

    definition: Faulty
    drawn_from: str
    task: str = ""
    number: int = 0                                  # calls so far
    faults: list[dict[str, Any]] = field(default_factory=list)
    rest: dict[str, list[str]] = field(default_factory=dict)         # by cursor, the lines that are still to come
    first: dict[str, str] = field(default_factory=dict)              # by call, the result that it gave first

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        pages = any(rates.page > 0 for rates in self.definition.rates.values())
        return (*self.inner.tools, NEXT) if pages else self.inner.tools

    async def reset(self, task: Task) -> Observation:
        self.task = task.id
        unknown = sorted(set(self.definition.rates) - {"*"})
        seen = await self.inner.reset(task)
        if missing := [name for name in unknown if name not in {tool.name for tool in self.inner.tools}]:
            raise EnvironmentFault("faults are set for tools that there are not", code="reset", got=", ".join(missing),
                                   fix=f"tools: {', '.join(tool.name for tool in self.inner.tools)}, or *")
        return seen

    async def act(self, action: Action) -> Observation:
        if not action.calls:
            return await self.inner.act(action)
        broken = self._batch(action.calls)
        replies: list[Reply] = []
        ended = None
        for place, call in enumerate(action.calls):
            if place >= broken:
                replies.append(self._failed(call, "batch", f"batch failed at call {broken + 1} of {len(action.calls)}; not made"))
                self.number += 1
                continue
            reply, seen = await self._call(call)
            replies.append(reply)
            ended = ended or (seen.ended if seen is not None else None)
        return Observation(replies=tuple(replies), ended=ended)

    def facts(self) -> dict[str, Any]:
        return {"faults": [dict(fault) for fault in self.faults]}

    def saved(self) -> dict[str, Any]:
        return {"number": self.number, "faults": self.faults, "rest": self.rest, "first": self.first}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.number, self.faults = saved["number"], list(saved["faults"])
        self.rest, self.first = dict(saved["rest"]), dict(saved["first"])

    def _draw(self, kind: str, number: int | None = None) -> random.Random:
        return random.Random(f"faults/{self.drawn_from}/{self.task}/{self.number if number is None else number}/{kind}")

    def _happens(self, kind: str, rate: float) -> bool:
        return rate > 0 and self._draw(kind).random() < rate

    def _record(self, call: ToolCall, kind: FaultKind, detail: str) -> None:
        self.faults.append({"call": self.number, "tool": call.name, "kind": kind, "detail": detail})

    def _failed(self, call: ToolCall, kind: FaultKind, text: str) -> Reply:
        self._record(call, kind, text)
        return Reply(owner="tool", content=text, call=call.id, error="injected")

    def _batch(self, calls: tuple[ToolCall, ...]) -> int:
        """The place of the first call that fails with its batch; beyond the last where none does."""
        rate = max(self.definition.rates_of(call.name).batch for call in calls)
        if len(calls) < 2 or not self._happens("batch", rate):
            return len(calls)
        return self._draw("batch place").randrange(1, len(calls))

    async def _call(self, call: ToolCall) -> tuple[Reply, Observation | None]:
        if call.name == NEXT.name and NEXT in self.tools:
            return self._next_page(call), None
        rates = self.definition.rates_of(call.name)
        if self._happens("error", rates.error):
            text = self._draw("which error").choice(ERRORS).format(id=self._draw("error id").randrange(16**6))
            reply = self._failed(call, "error", text)
            self.number += 1
            return reply, None
        lost = await self._wait(call, rates)
        reply, seen = await self.inner_reply(call)
        reply = Reply(owner="tool", content=lost, call=call.id, error="injected") if lost else self._changed(call, reply, rates)
        self.number += 1
        return reply, seen

    async def inner_reply(self, call: ToolCall) -> tuple[Reply, Observation]:
        return await WrappedEpisode.one(self, call)

    async def _wait(self, call: ToolCall, rates: Rates) -> str | None:
        """The message of a call whose result came too late; None where it is in time."""
        if not self._happens("latency", rates.latency):
            return None
        seconds = self._draw("how long").expovariate(1 / rates.latency_s)
        late = seconds > rates.timeout_s
        self._record(call, "timeout" if late else "latency", f"{min(seconds, rates.timeout_s):.3f} s")
        if self.definition.real_time:
            await asyncio.sleep(min(seconds, rates.timeout_s))
        return f"no answer within {rates.timeout_s:g} s; the call may have been made" if late else None

    def _changed(self, call: ToolCall, reply: Reply, rates: Rates) -> Reply:
        """The reply with what happens to its result."""
        if reply.error is not None:
            return reply
        text, name = reply.content, digest(canonical({"tool": call.name, "arguments": dict(call.arguments)}))
        if name in self.first and self.first[name] != text and self._happens("stale", rates.stale):
            text = self.first[name]
            self._record(call, "stale", "the result of the first such call")
        self.first.setdefault(name, reply.content)
        lines = text.split("\n")
        if len(lines) > 2 and self._happens("partial", rates.partial):
            drawn = self._draw("which lines")
            kept = [line for place, line in enumerate(lines) if place == 0 or drawn.random() < 0.5]
            self._record(call, "partial", f"{len(lines) - len(kept)} of {len(lines)} lines missing")
            lines = [*kept, f"[incomplete: {len(lines) - len(kept)} lines missing]"] if rates.partial_told else kept
        if self._drifted(rates):
            self._record(call, "drift", "results are JSON")
            lines = json.dumps({"version": 2, "items": lines}, ensure_ascii=False, indent=0).split("\n")
        if len(lines) > rates.page_lines and self._happens("page", rates.page):
            lines = self._page(call, lines, rates.page_lines)
        return dataclasses.replace(reply, content="\n".join(lines))

    def _drifted(self, rates: Rates) -> bool:
        """Whether results have changed their form: from a call on that is drawn once for the episode."""
        if not (rates.drift > 0 and self._draw("drift", 0).random() < rates.drift):
            return False
        return self.number >= self._draw("drift begins", 0).randrange(rates.drift_within)

    def _page(self, call: ToolCall, lines: list[str], size: int) -> list[str]:
        cursor = f"c{self.number}-{len(self.rest)}"
        self.rest[cursor] = lines[size:]
        self._record(call, "page", f"{size} of {len(lines)} lines")
        return [*lines[:size], f"[{len(lines) - size} more lines; cursor {cursor}]"]

    def _next_page(self, call: ToolCall) -> Reply:
        cursor = call.arguments.get("cursor")
        if cursor not in self.rest:
            return Reply(owner="tool", content="there is no such cursor", call=call.id, error="refused")
        lines = self.rest.pop(cursor)
        size = max(rates.page_lines for rates in self.definition.rates.values() if rates.page > 0)
        if len(lines) > size:
            lines = self._page(call, lines, size)
        self.number += 1
        return Reply(owner="tool", content="\n".join(lines), call=call.id)
