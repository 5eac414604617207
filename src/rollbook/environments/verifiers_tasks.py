"""A taskset of the `verifiers` library (0.4) as an environment: its tasks, its tools, and its rewards as the grade.

The library pins packages that others pin otherwise, so it is installed in an environment of its own and runs there, behind
`verifiers_service.py`: one process for all episodes, without network and without a place to write unless `isolated` is false.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollbook.environments.describing import image_of
from rollbook.environments.elsewhere import Elsewhere, Gone, NotGiven, interpreter, running
from rollbook.environments.texts import LONGEST, Posed
from rollbook.records import (
    Action,
    EnvironmentFault,
    EnvironmentImage,
    FinalState,
    Grade,
    Message,
    Observation,
    RecordError,
    Reply,
    Services,
    Solutions,
    Task,
    TaskSet,
    ToolSchema,
    Ungraded,
    canonical,
    digest,
)

SERVICE = Path(__file__).parent / "verifiers_service.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiersTasks:
    """The taskset that `taskset` names (an installed package, or a module in one of `paths`) with the settings `config`.

    `python` is an interpreter in which `verifiers` is installed, and `time-machine`, with which a proof turns its clock. A total
    reward of `full` counts as solved, of `none` as not; one outside is no grade. `gold` and `wrong` are answers for validation,
    with a task's own fields in braces.
    `isolated`: the library runs without network and reads only; a taskset that fetches its rows, and a judge, need the network.
    Limit: what needs a runtime to work in (setup, finalize, a reward that takes one), a container, a user who begins, or a loop
    of the taskset's own is refused.
    """

    python: str
    taskset: str
    config: Mapping[str, Any] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    none: float = 0.0
    full: float = 1.0
    gold: str = "{answer}"
    wrong: str = "?"
    isolated: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)
    starting_s: float = 120.0
    call_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.none < self.full:
            raise RecordError("none must be below full", got=f"{self.none:g} and {self.full:g}",
                              why="a reward's share lies between them")

    def image(self) -> EnvironmentImage:
        """Its digest changes with the taskset's source and with every package of its interpreter."""
        told = self._ask("hello", self.starting_s)
        own = {"service": digest(SERVICE.read_bytes()), "taskset": told["source"], "installed": told["installed"]}
        return image_of(self, network="none" if self.isolated else "open", extra={
            **own, "verifiers": told["verifiers"], "interpreter": told["python"]})

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        """The first `count` tasks with different keys; the split unit is the library's key of a task."""
        posed: dict[str, Posed] = {}
        begun = self._ask("open", self.starting_s, place=0)     # the tasks of a taskset are of one type, with the same tools
        self._ask("close", self.call_s, session=begun["session"])
        for place, row in enumerate(self._ask("rows", self.starting_s, count=count)):
            messages = tuple(Message(role=one["role"], content=one["content"], origin="raw") for one in row["messages"])
            posed.setdefault(row["key"], Posed(
                family=f"verifiers.{self.taskset}", messages=messages, reference=str(row["data"].get("answer", "")),
                unit=f"{self.taskset}:{row['key'][:24]}", start=json.dumps({"place": place, "key": row["key"]}),
                source=f"verifiers taskset {self.taskset}", licence="unstated", lineage={"place": str(place)},
                tools=tuple(one["name"] for one in begun["tools"])))
        pairs = [one.records() for one in posed.values()]
        return TaskSet(raw=tuple(raw for raw, _ in pairs), tasks=tuple(task for _, task in pairs))

    def build(self, *, services: Services, seed: int) -> VerifiersEpisode:
        return VerifiersEpisode(definition=self)

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        """The library's total reward of what was said and done, from `none` to `full`."""
        facts = state.facts
        if facts["said"] is None:
            return Grade(accuracy=0.0, detail="nothing was answered")
        start = json.loads(task.initial_state)
        try:
            asked = {"place": start["place"], "key": start["key"], "turns": facts["turns"], "state": facts["state"]}
            try:
                found = self._ask("score", self.call_s, **asked)
            except Gone:        # over another's answer: this one is not to blame
                found = self._ask("score", self.starting_s, **asked)
        except NotGiven:
            raise
        except EnvironmentFault as error:
            return Ungraded(code="timeout" if error.code == "timeout" else "crash", detail=str(error.got or error.what)[:200])
        reward, missing = found["reward"], [*found["unscored"], *found["errors"]]
        if missing:
            return Ungraded(code="unavailable", detail=f"no score of {', '.join(missing)}"[:200])
        share = (reward - self.none) / (self.full - self.none)
        if not (math.isfinite(reward) and -1e-9 <= share <= 1 + 1e-9):
            return Ungraded(code="malformed", detail=f"reward {reward:g}, outside {self.none:g} to {self.full:g}")
        parts = {name: value for name, value in found["parts"].items() if math.isfinite(value)}
        return Grade(accuracy=min(max(share, 0.0), 1.0), parts={**parts, "reward": reward}, detail=f"reward {reward:g}")

    def solutions(self, task: Task) -> Solutions:
        """`gold` and `wrong` with the task's fields; EnvironmentFault where it has no such field."""
        row = self._ask("rows", self.starting_s, count=json.loads(task.initial_state)["place"] + 1)[-1]["data"]
        return Solutions(gold=((Action(text=_filled(self.gold, row)),),), wrong=((Action(text=_filled(self.wrong, row)),),))

    def _ask(self, op: str, seconds: float, **more: Any) -> Any:
        return self.service().ask(op, seconds, **more)

    def service(self) -> Elsewhere:
        """The process that holds the taskset."""
        paths = os.pathsep.join(os.path.abspath(os.path.expanduser(path)) for path in self.paths)
        variables = {"PYTHONDONTWRITEBYTECODE": "1", **({"PYTHONPATH": paths} if paths else {}), **self.variables}
        config = json.dumps({**self.config, "id": self.taskset}, sort_keys=True)
        return running((interpreter(self.python), str(SERVICE), config), variables, isolated=self.isolated)


@dataclass(slots=True, kw_only=True)
class VerifiersEpisode:
    """One attempt: calls of the task's tools, then an answer. What was said and shown is the state that rewards are given to."""

    definition: VerifiersTasks
    offered: tuple[ToolSchema, ...] = ()
    turns: list[dict[str, Any]] = field(default_factory=list)
    said: str | None = None
    kept: dict[str, Any] | None = None
    _session: int | None = None
    _service: Elsewhere | None = None

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return self.offered

    async def reset(self, task: Task) -> Observation:
        service = self._service = await asyncio.to_thread(self.definition.service)
        found = await asyncio.to_thread(service.ask, "open", self.definition.starting_s,
                                        place=json.loads(task.initial_state)["place"])
        try:
            self.offered = tuple(ToolSchema(name=one["name"], description=one["description"], parameters=one["parameters"])
                                 for one in found["tools"])
        except RecordError as error:
            raise EnvironmentFault("a tool of the taskset cannot be offered", code="reset", got=error.got,
                                   why=error.what) from error
        self._session, self.kept = (found["session"] if self.offered else None), found["state"]
        return Observation()

    async def act(self, action: Action) -> Observation:
        text = action.text[:LONGEST]
        turn: dict[str, Any] = {"role": "assistant", "content": text}
        if not action.calls:
            self.said = text
            self.turns.append(turn)
            return Observation(ended="answered")
        self.turns.append({**turn, "tool_calls": [{"id": call.id, "name": call.name, "arguments": canonical(
            dict(call.arguments)).decode()} for call in action.calls]})
        replies = []
        for call in action.calls:
            assert self._service is not None
            found = await asyncio.to_thread(self._service.ask, "call", self.definition.call_s, session=self._session,
                                            name=call.name, arguments=dict(call.arguments))
            self.kept = found["state"]
            self.turns.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": found["text"]})
            replies.append(Reply(owner="tool", content=found["text"], call=call.id, error="refused" if found["failed"] else None))
        return Observation(replies=tuple(replies))

    def state(self) -> FinalState:
        return FinalState(facts={"said": self.said, "turns": list(self.turns), "state": self.kept})

    async def close(self) -> None:
        if self._session is not None and self._service is not None and self._service.usable:
            await asyncio.to_thread(self._service.ask, "close", self.definition.call_s, session=self._session)


def _filled(pattern: str, row: Mapping[str, Any]) -> str:
    names = [name for _, name, _, _ in string.Formatter().parse(pattern) if name is not None]
    if absent := [name for name in names if name not in row]:
        raise EnvironmentFault("a task has no such field to make a solution of", code="no_verifier", got=f"{{{absent[0]}}}",
                               why=f"its fields are {', '.join(row)}"[:200], fix="set gold and wrong to answers of the taskset")
    return pattern.format_map({name: row[name] for name in names})
