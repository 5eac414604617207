"""Reasoning with a Python that keeps its variables (tool-integrated reasoning): the answer is the policy's, not the program's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rollbook.environments.builtin.common import Tool, ToolEpisode, call, code_digest, schema
from rollbook.environments.builtin.math import Mathematics
from rollbook.environments.builtin.sessions import opened, shown, within
from rollbook.environments.describing import image_of
from rollbook.environments.sandbox.packages import installed
from rollbook.environments.sandbox.session import Session
from rollbook.records import (
    EnvironmentImage,
    FinalState,
    Grade,
    Message,
    Observation,
    Services,
    Solutions,
    Task,
    TaskSet,
    Ungraded,
)

SYSTEM = ("Solve the problem; you may run Python with the tool `python`, which keeps its variables and has sympy and numpy. "
          "Then give "
          "the final answer in \\boxed{}.")
OUTPUT_BYTES = 64_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """Problems of the mathematics environment (its fields) with a Python; `call_seconds` is what one call may take."""

    problems: str = ""
    equal: str = ""
    call_seconds: float = 10.0
    output_characters: int = 4000

    def image(self) -> EnvironmentImage:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(installed().items()))
        return image_of(self, extra={"code": code_digest("common.py", "math.py", "interpreter.py", "sessions.py"),
                                     "problems": self._mathematics().image().digest, "packages": versions})

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        found = self._mathematics().tasks(count=count, seed=seed)
        system = Message(role="system", content=SYSTEM, origin="recipe")
        return TaskSet(raw=found.raw, tasks=tuple(replace(task, family="interpreter", prompt=(system, *task.prompt[1:]),
                                                          tools=("python",)) for task in found.tasks))

    def build(self, *, services: Services, seed: int) -> InterpreterEpisode:
        return InterpreterEpisode(services=services, seconds=self.call_seconds, characters=self.output_characters)

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        found = self._mathematics().verify(task, state, services=services)
        return found if isinstance(found, Ungraded) else replace(found,
                                                                 parts={**found.parts, "calls": float(state.facts["calls"])})

    def solutions(self, task: Task) -> Solutions:
        run = call("python", code="x = 1\nprint(x)")
        own = self._mathematics().solutions(task)
        return Solutions(gold=tuple((run, *actions) for actions in own.gold),
                         wrong=(*((run, *actions) for actions in own.wrong), (run,)))

    def _mathematics(self) -> Mathematics:
        return Mathematics(problems=self.problems, equal=self.equal)


@dataclass(slots=True)
class InterpreterEpisode(ToolEpisode):
    """One problem and one Python. A snapshot is what was run: restoring runs it again."""

    services: Services = field(kw_only=True, repr=False)
    seconds: float = 10.0
    characters: int = 4000
    session: Session | None = field(default=None, repr=False)
    ran: tuple[str, ...] = ()

    async def reset(self, task: Task) -> Observation:
        self.session = await opened(self.services, {})
        about = schema("python", "Runs Python code; variables stay. Shows what it prints and the value of a last expression.",
                       ("code",),
                       code={"type": "string"})
        self.offered = {"python": Tool(schema=about, run=self._python)}
        return Observation()

    async def close(self) -> None:
        if self.session is not None:
            self.session.close()

    async def _python(self, arguments: Mapping[str, Any]) -> str:
        session, code = self.session, arguments["code"]
        assert session is not None
        self.ran += (code,)
        ran = await within(session, lambda: session.python(code, seconds=self.seconds, output_bytes=OUTPUT_BYTES))
        return shown(ran, self.seconds, self.characters)

    def saved(self) -> dict[str, Any]:
        return {"ran": list(self.ran)}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.ran = tuple(saved["ran"])
        if self.session is not None:
            for code in self.ran:
                self.session.python(code, seconds=self.seconds, output_bytes=OUTPUT_BYTES)
