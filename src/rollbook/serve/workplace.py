"""Where an outside agent works: one environment, whose tools it asks for over HTTP; what happens there is recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollbook.records import (
    Action,
    Environment,
    EnvironmentFault,
    EpisodeBudget,
    FinalState,
    Observation,
    Reply,
    RollbookError,
    Task,
    ToolSchema,
    Turn,
)
from rollbook.rollouts.answering import Read, answer, first_observation, guarded, passed_on, read_turn
from rollbook.rollouts.dialects import Made, Spoken


@dataclass(slots=True, kw_only=True)
class Workplace:
    """One episode of an environment whose actions come from outside. Its calls are answered one after the other, on one loop.

    What an agent calls is checked as the turn loop checks it: a call that cannot be made is answered, counted, and never reaches
    the environment. `turns` are the actions in their order, enough to play them again.
    """

    environment: Environment
    budget: EpisodeBudget
    permitted: tuple[str, ...] | None
    opening: Observation = field(default_factory=Observation)
    tools: tuple[ToolSchema, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    calls: int = 0
    over: str | None = None
    fault: str | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def begin(self, task: Task) -> None:
        """Resets the environment; EnvironmentFault where it cannot."""
        seen = await guarded("reset", self.budget.call_seconds, lambda: self.environment.reset(task))
        self.opening = first_observation(seen, self.budget)
        offered = {tool.name: tool for tool in self.environment.tools}
        names = () if self.permitted is None else self.permitted or tuple(offered)
        if unknown := [name for name in names if name not in offered]:
            raise EnvironmentFault(f"the environment offers no tool {unknown[0]!r}", code="build",
                                   got=", ".join(offered) or "none", fix="correct the list of tools")
        self.tools = tuple(offered[name] for name in names)
        self.over = self.opening.ended

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Reply:
        """What the tool answers; where the episode is over, that it is."""
        written = json.dumps({"name": name, "arguments": arguments}, default=str)
        spoken = Spoken(text="", calls=(Made(name=name, arguments=dict(arguments), start=0, end=len(written)),), reasoning_end=0)
        async with self.lock:
            if self.over is not None:
                return Reply(owner="tool", content=f"error: the episode is over ({self.over})", error="refused")
            self.calls += 1
            if self.budget.max_calls is not None and self.calls > self.budget.max_calls:
                self.over = "call_limit"
                return Reply(owner="tool", content="error: no more calls", error="call_limit")
            read = read_turn(spoken, self.tools, turn=len(self.turns), ids=(), decode=lambda ids: "")
            seen = await self._acted(read)
        return seen.replies[0] if seen.replies else Reply(owner="tool", content="")

    async def say(self, text: str) -> None:
        """The agent's last words, as the policy's answer; not where the episode is over."""
        async with self.lock:
            if self.over is None and self.fault is None:
                await self._acted(Read(action=Action(text=text), misfits=(), order=()))

    async def end(self) -> FinalState | None:
        """The final state, and the environment gives back what it held; None where it failed, `fault` says how."""
        state: FinalState | None = None
        async with self.lock:
            self.over = self.over or "taken"
            if self.fault is None:
                state = self._guarded_state()
            try:
                await guarded("state", self.budget.call_seconds, self.environment.close)
            except EnvironmentFault as error:
                self.fault = self.fault or str(error)
        return None if self.fault is not None else state

    def _guarded_state(self) -> FinalState | None:
        try:
            return self.environment.state()
        except Exception as error:
            self.fault = f"the environment's state failed: {error if isinstance(error, RollbookError) else type(error).__name__}"
            return None

    async def _acted(self, read: Read) -> Observation:
        acted = passed_on(read, ()) is not None
        try:
            seen = await answer(self.environment, read, self.budget, {})
        except EnvironmentFault as error:
            self.fault, self.over = str(error), "environment_failed"
            return Observation(replies=(Reply(owner="tool", content="error: the environment failed", error="unavailable"),))
        self.turns.append(Turn(action=read.action, misfits=read.misfits, observation=seen, part=0, tokens=0, acted=acted))
        self.over = seen.ended
        return seen
