"""Any OpenEnv server as an environment: one session of its own for an episode, its schema as a tool, its reward as the grade.

OpenEnv (its package openenv 0.10): `GET /schema` describes actions; over `/ws` the messages `reset`, `step` and `close`
are answered by `observation` (`observation`, `reward`, `done`) or `error`. Spoken here without its package.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from rollbook.environments.describing import image_of
from rollbook.environments.texts import Posed
from rollbook.environments.websocket import Broken, WebSocket
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
    ToolCall,
    ToolSchema,
    Ungraded,
    canonical,
    digest,
)

LARGEST = 32 * 2**20        # bytes of a message
PRIVATE = ("metadata",)     # of an action: for the protocol's own use


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEnvServer:
    """Episodes on the server at `address`. Tasks are seeds of `reset`, asked by `instruction`.

    Each call of the tool `act` is a step. An answer without a call ends the episode, or is a step where the environment takes
    one text: then `text_field` names the action's field. Solved is a reward of at least `solved`: the `last`, or the `sum`.
    `gold` and `wrong` are actions of whole episodes, for validation; `gold` solves the seeds `gold_seeds`, or all where these are
    empty. `reset` are further arguments of a reset.
    Limit: what a server remembers from one session to the next, or draws in spite of its seed, is its own affair; `rollbook env
    check` plays a session twice.
    """

    address: str
    instruction: str
    text_field: str = ""
    grade: Literal["last", "sum"] = "last"
    solved: float = 1.0
    steps: int = 100
    reset: Mapping[str, Any] = field(default_factory=dict)
    gold: tuple[Mapping[str, Any], ...] = ()
    gold_seeds: tuple[int, ...] = ()
    wrong: tuple[Mapping[str, Any], ...] = ()
    starting_s: float = 20.0
    call_s: float = 60.0

    def image(self) -> EnvironmentImage:
        """Its digest changes with the server's schemas; what the server does behind them it cannot show."""
        return image_of(self, network="loopback", extra={"schema": digest(canonical(schema_of(self.address, self.starting_s)))})

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        """`count` seeds of the environment, each its own split unit."""
        asked = (Message(role="user", content=self.instruction, origin="raw"),)
        posed = [Posed(family="openenv", messages=asked, reference="", unit=f"{self.address}:{number}", licence="unstated",
                       start=json.dumps({"seed": number}), source=f"OpenEnv server {self.address}",
                       lineage={"seed": str(number)}, tools=() if self.text_field else ("act",)).records()
                 for number in range(seed, seed + count)]
        return TaskSet(raw=tuple(raw for raw, _ in posed), tasks=tuple(task for _, task in posed))

    def build(self, *, services: Services, seed: int) -> OpenEnvEpisode:
        return OpenEnvEpisode(definition=self)

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        rewards = [float(one) for one in state.facts["rewards"]]
        if not rewards:
            return Grade(accuracy=0.0, detail="no step was rewarded", parts={"steps": float(state.facts["steps"])})
        total = rewards[-1] if self.grade == "last" else sum(rewards)
        return Grade(accuracy=float(total >= self.solved), parts={"reward": total, "steps": float(state.facts["steps"])},
                     detail=f"{self.grade} reward {total:g} in {state.facts['steps']} steps")

    def solutions(self, task: Task) -> Solutions:
        known = self.gold and (not self.gold_seeds or int(json.loads(task.initial_state)["seed"]) in self.gold_seeds)
        return Solutions(gold=(self._played(self.gold),) if known else (),
                         wrong=(self._played(self.wrong) if self.wrong else (Action(text=""),),))

    def _played(self, actions: tuple[Mapping[str, Any], ...]) -> tuple[Action, ...]:
        if self.text_field:
            return tuple(Action(text=str(one[self.text_field])) for one in actions)
        return tuple(Action(calls=(ToolCall(id=f"call_{place}_0", name="act", arguments=dict(one)),))
                     for place, one in enumerate(actions))


@dataclass(slots=True, kw_only=True)
class OpenEnvEpisode:
    """One session of the server."""

    definition: OpenEnvServer
    socket: WebSocket | None = None
    offered: tuple[ToolSchema, ...] = ()
    rewards: list[float] = field(default_factory=list)
    steps: int = 0
    said: str | None = None

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return self.offered

    async def reset(self, task: Task) -> Observation:
        d = self.definition
        schema = await asyncio.to_thread(schema_of, d.address, d.starting_s)
        self.offered = () if d.text_field else (_tool(schema),)
        try:
            async with asyncio.timeout(d.starting_s):
                self.socket = await WebSocket.connect(f"{d.address.rstrip('/')}/ws", largest=LARGEST)
                found = await self._asked("reset", {**d.reset, "seed": int(json.loads(task.initial_state)["seed"])})
        except (Broken, OSError, TimeoutError) as error:
            raise EnvironmentFault("the OpenEnv server cannot be reset", code="reset",
                                   got=str(error)[:200] or type(error).__name__,
                                   fix=f"see that it runs at {d.address}, and allows so many sessions at a time") from error
        if isinstance(found, str):
            raise EnvironmentFault("the OpenEnv server refused a reset", code="reset", got=found[:200])
        return self._seen(found, owner="environment", call=None, first=True)

    async def act(self, action: Action) -> Observation:
        d = self.definition
        if not action.calls:
            self.said = action.text[:20_000]
            if not d.text_field:
                return Observation(ended="answered")
            return await self._step({d.text_field: action.text}, owner="environment", call=None)
        replies: list[Reply] = []
        for call in action.calls:
            seen = await self._step(dict(call.arguments), owner="tool", call=call.id)
            replies += seen.replies
            if seen.ended is not None:
                return Observation(replies=tuple(replies), ended=seen.ended)
        return Observation(replies=tuple(replies))

    def state(self) -> FinalState:
        return FinalState(facts={"rewards": list(self.rewards), "steps": self.steps, "answer": self.said})

    async def close(self) -> None:
        if self.socket is not None:
            with contextlib.suppress(Broken, OSError):
                await self.socket.send(json.dumps({"type": "close"}))
            await self.socket.close()

    async def _step(self, action: Mapping[str, Any], *, owner: Literal["tool", "environment"], call: str | None) -> Observation:
        self.steps += 1
        over = self.steps >= self.definition.steps
        try:
            async with asyncio.timeout(self.definition.call_s):
                found = await self._asked("step", action)
        except (Broken, OSError, TimeoutError) as error:        # the session is gone: nothing that follows could be played
            raise EnvironmentFault("the OpenEnv server gave no answer to a step", code="act",
                                   got=str(error)[:200] or type(error).__name__) from error
        if isinstance(found, str):
            told = Reply(owner=owner, content=f"error: {found[:400]}", call=call, error="refused")
            return Observation(replies=(told,), ended="terminal" if over else None)
        seen = self._seen(found, owner=owner, call=call, first=False)
        return seen if seen.ended is not None or not over else Observation(replies=seen.replies, ended="terminal")

    async def _asked(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any] | str:
        """What the server observed; the text of its refusal where it refused the action."""
        if self.socket is None:
            raise Broken("there is no session")
        await self.socket.send(json.dumps({"type": kind, "data": data}))
        try:
            answer = json.loads(await self.socket.receive())
        except ValueError as error:
            raise Broken("an answer that is no JSON") from error
        told = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(told, dict) or answer.get("type") not in ("observation", "error"):
            raise Broken(f"an answer that is no observation: {str(answer)[:120]}")
        if answer["type"] == "error":
            if told.get("code") in ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"):
                raise Broken(str(told.get("message"))[:200])
            return str(told.get("message", "refused")) + "".join(f"; {_reason(one)}" for one in _listed(told.get("errors"))[:4])
        return told

    def _seen(self, found: Mapping[str, Any], *, owner: Literal["tool", "environment"], call: str | None,
              first: bool) -> Observation:
        reward = found.get("reward")
        if reward is not None and not first:
            self.rewards.append(_number(reward))
        text = _text(found.get("observation"))
        replies = () if first and not text else (Reply(owner=owner, content=text, call=call),)
        return Observation(replies=replies, ended="terminal" if found.get("done") is True else None)


@lru_cache(maxsize=16)
def schema_of(address: str, seconds: float) -> dict[str, Any]:
    """The server's schemas; EnvironmentFault where none are to be had."""
    try:
        with build_opener(ProxyHandler({})).open(f"{address.rstrip('/')}/schema", timeout=seconds) as answer:
            found = json.loads(answer.read(LARGEST))
    except (URLError, OSError, ValueError) as error:
        raise EnvironmentFault("the OpenEnv server shows no schema", code="build", got=str(error)[:200],
                               fix=f"start it, and see that {address}/schema answers") from error
    if not isinstance(found, dict) or not isinstance(found.get("action"), dict):
        raise EnvironmentFault("this is no OpenEnv server", code="build", got=str(found)[:120], why="its schema has no action")
    return found


def _tool(schema: Mapping[str, Any]) -> ToolSchema:
    action = dict(schema["action"])
    shown = {name: value for name, value in dict(action.get("properties", {})).items() if name not in PRIVATE}
    parameters = {key: value for key, value in action.items() if key in ("$defs", "additionalProperties")}
    parameters |= {"type": "object", "properties": shown,
                   "required": [name for name in action.get("required", ()) if name in shown]}
    try:
        return ToolSchema(name="act", description=str(action.get("description") or "One step of the environment."),
                          parameters=parameters)
    except RecordError as error:
        raise EnvironmentFault("the server's actions have no schema that a tool could have", code="build",
                               got=error.got) from error


def _number(reward: Any) -> float:
    """A reward that a record can hold; EnvironmentFault for every other."""
    try:
        if isinstance(reward, int | float) and math.isfinite(found := float(reward)):
            return found
    except OverflowError:
        pass
    raise EnvironmentFault("the OpenEnv server gave a reward that is no number", code="act", got=f"{type(reward).__name__}")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(observation: Any) -> str:
    """An observation as text: one that holds a single text is that text, anything else its JSON."""
    if isinstance(observation, Mapping):
        held = {name: value for name, value in observation.items() if value is not None}
        if len(held) == 1 and isinstance(only := next(iter(held.values())), str):
            return only
        return json.dumps(held, ensure_ascii=False, sort_keys=True) if held else ""
    return "" if observation is None else str(observation)


def _reason(error: Any) -> str:
    if not isinstance(error, Mapping):
        return str(error)[:80]
    return f"{'.'.join(map(str, error.get('loc', ())))}: {error.get('msg', '')}"[:120]
