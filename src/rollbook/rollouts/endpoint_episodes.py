"""Episodes of an endpoint: tools go to it as chat completions know them, its calls are played in the environment here.

How its template writes tools, calls and replies is not shown, nor whether the model sees its earlier reasoning. Each turn is a
call of its own, so each is a context of its own in the record: what was read for it and what was sampled, as the endpoint counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from rollbook.records import (
    Action,
    AttemptId,
    Dispatch,
    Environment,
    EnvironmentDefinition,
    EnvironmentFault,
    EnvironmentSpec,
    Episode,
    EpisodeBudget,
    FinalState,
    ModelError,
    Observation,
    Part,
    Reply,
    SamplingEnvelope,
    Segment,
    Services,
    Task,
    ToolSchema,
    Trace,
    Turn,
    content_id,
    digest,
    group_name,
)
from rollbook.records.rollout import StopReason
from rollbook.rollouts.answering import Read, answer, first_observation, guarded, read_turn
from rollbook.rollouts.dialects import Made, Malformed, Spoken
from rollbook.rollouts.dialects.reading import NotJson, read_object, reasoning_end
from rollbook.rollouts.endpoint import ENDS, EndpointRollouts, Said, counted, malformed, message_of, noted, read_choice, readable
from rollbook.rollouts.engines.wire import Unanswered
from rollbook.rollouts.environment import check_answered, scaffold
from rollbook.rollouts.instance import built, closed, ended_as, final_state, permitted
from rollbook.rollouts.rules import EpisodeRules

TURN_ENDS: Mapping[str, StopReason] = {**ENDS, "tool_calls": "end_of_turn"}
ROLES = {"system": "system"}            # of replies that answer no call; every other owner is the user


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """A call as the endpoint handed it over: `read` is what it says, `document` how it is sent back."""

    read: Made | Malformed
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoke(Said):
    """An answer with the calls that came beside its text."""

    calls: tuple[Called, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The environment that all episodes are played in, and by which rules; prompt and turns fill `context` tokens at most, as the
    endpoint counts them."""

    spec: EnvironmentSpec
    definition: EnvironmentDefinition
    services: Services
    rules: EpisodeRules
    context: int


class EndpointEpisodes:
    """Episodes asked of an endpoint, `workers` at a time. Refuses what chat completions cannot be asked for, by name."""

    def __init__(self, asks: EndpointRollouts, place: Place):
        self.asks, self.place = asks, place
        self.tools = None if place.spec.no_tools else place.spec.tools

    @property
    def budget(self) -> EpisodeBudget:
        """The spec's budget, with fewer tokens where the protocol gives fewer."""
        return replace(self.place.spec.budget, max_tokens=min(self.asks.max_tokens, self.place.spec.budget.max_tokens))

    def envelope(self, weights: str | None) -> SamplingEnvelope:
        """What the endpoint is asked for, an episode in all."""
        budget = self.budget
        return replace(self.asks.envelope(weights), max_tokens=budget.max_tokens, max_turns=budget.max_turns,
                       max_seconds=budget.max_seconds, scaffold=scaffold(self.place.spec, self.place.rules))

    def dispatch(self, tasks: Sequence[Task], per_task: int, *, scope: str, envelope: SamplingEnvelope) -> Dispatch:
        """What `solve` will issue, to be recorded before it does."""
        return self.asks.dispatch(tasks, per_task, scope=scope, envelope=envelope)

    def solve(self, tasks: Sequence[Task], per_task: int, *, scope: str, envelope: SamplingEnvelope) -> list[Trace]:
        """`per_task` episodes at each task, in order. One in which a turn stays unanswered failed; refuses where not one attempt
        got an answer, and where no environment worked."""
        named = [(task, group_name(scope, place, task.id), sample)
                 for place, task in enumerate(tasks) for sample in range(per_task)]
        played = asyncio.run(self._together(named, content_id(envelope)))
        silent = [one.failed for one in played if one.failed is not None and not one.turns]
        if silent and len(silent) == len(played):
            raise ModelError(f"not one of {len(silent)} attempts was answered", got=str(silent[0]),
                             why="every further one would end the same way",
                             fix="mend what the first of them says, then give the same command again")
        traces = [one.trace() for one in played]
        check_answered(traces)
        return traces

    async def _together(self, named: Sequence[tuple[Task, str, int]], envelope: str) -> list[Conversation]:
        some = asyncio.Semaphore(self.asks.endpoint.workers)
        with ThreadPoolExecutor(self.asks.endpoint.workers, thread_name_prefix="asking") as threads:
            async def one(task: Task, group: str, sample: int) -> Conversation:
                talk = Conversation(episodes=self, task=task, group=group, key=f"{group}/{sample}", envelope=envelope,
                                    threads=threads)
                async with some:
                    await talk.play()
                return talk
            return list(await asyncio.gather(*(one(*name) for name in named)))


@dataclass(slots=True, kw_only=True)
class Conversation:
    """One attempt while it goes on. `length` is the conversation's in tokens so far, `failed` the call that stayed unanswered."""

    episodes: EndpointEpisodes
    task: Task
    group: str
    key: str
    envelope: str
    threads: ThreadPoolExecutor
    messages: list[dict[str, Any]] = field(default_factory=list)
    opening: Observation = field(default_factory=Observation)
    tools: tuple[ToolSchema, ...] = ()
    turns: list[Turn] = field(default_factory=list)
    said: list[Spoke] = field(default_factory=list)
    stop: StopReason = "failed"
    state: FinalState | None = None
    fault: str | None = None
    failed: Unanswered | None = None
    length: int = 0
    notes: dict[str, float] = field(default_factory=dict)

    @property
    def budget(self) -> EpisodeBudget:
        return self.episodes.budget

    @property
    def seed(self) -> int:
        """Of the environment: one for all attempts of a group."""
        return int(digest(f"{self.episodes.asks.seed}/{self.group}".encode())[:12], 16)

    async def play(self) -> None:
        """Plays it to its end; what the environment cannot do ends it as `environment_failed`."""
        place, began = self.episodes.place, time.monotonic()
        environment: Environment | None = None
        try:
            environment = built(lambda seed: place.definition.build(services=place.services, seed=seed), self.seed)
            self.stop = await self._play(environment, began)
            self.state = final_state(environment)
        except EnvironmentFault as error:
            self.fault = str(error)
        finally:
            self.fault = await closed(environment, self.budget.call_seconds, self.fault)
        if self.fault is not None:
            self.stop, self.state = "environment_failed", None
        self.notes["episode_s"] = time.monotonic() - began

    async def _play(self, environment: Environment, began: float) -> StopReason:
        seen = await guarded("reset", self.budget.call_seconds, lambda: environment.reset(self.task))
        self.opening = first_observation(seen, self.budget)
        self.tools = permitted(environment, self.episodes.tools)
        self.messages = [*map(message_of, self.task.prompt), *(_shown(reply, {}) for reply in self.opening.replies)]
        if self.opening.ended is not None:
            return ended_as(self.opening.ended)
        while True:
            room, reason = self._room(time.monotonic() - began)
            if reason is not None:
                return reason
            said = await self._asked(room)
            if isinstance(said, Unanswered):
                self.failed = said
                return "failed"
            ended = await self._turn(environment, said)
            if ended is not None:
                return ended

    def _room(self, seconds: float) -> tuple[int, StopReason | None]:
        """Tokens that the next turn may have, or why there is none."""
        budget, left = self.budget, self.episodes.place.context - self.length
        spent = sum(said.sampled for said in self.said)
        tokens = min(budget.max_tokens - spent, budget.turn_tokens or budget.max_tokens)
        if tokens < 1:
            return 0, "length"
        if len(self.turns) >= budget.max_turns:
            return 0, "turn_limit"
        if budget.max_seconds is not None and seconds > budget.max_seconds:
            return 0, "time_limit"
        return min(tokens, left), "context_full" if left < 1 else None

    async def _asked(self, room: int) -> Spoke | Unanswered:
        asks, began = self.episodes.asks, time.monotonic()
        body = asks.body(f"{self.key}@{len(self.said)}", self.messages, room)
        if self.tools:
            body["tools"] = [_described(tool) for tool in self.tools]
        said, tries = await asyncio.get_running_loop().run_in_executor(self.threads, partial(asks.call, body, read_spoken))
        self.notes["latency_s"] = self.notes.get("latency_s", 0.0) + time.monotonic() - began
        for name, value in noted(said, tries).items():
            self.notes[name] = max(value, self.notes.get(name, 0.0))
        if isinstance(said, Spoke):
            self.said.append(said)
            self.length = said.read + said.sampled
        return said

    async def _turn(self, environment: Environment, said: Spoke) -> StopReason | None:
        """What a turn leads to; why there is no next one, else None with its replies among the messages."""
        end = reasoning_end(said.text)
        spoken = Spoken(text=said.text[end:].strip(), calls=tuple(one.read for one in said.calls), reasoning_end=end)
        full = self.length > self.episodes.place.context
        if full or said.ended != "end_of_turn":
            self._note(Read(action=Action(text=said.text), misfits=(), order=()), Observation(), said)
            return "context_full" if self.length >= self.episodes.place.context else said.ended
        read = read_turn(spoken, self.tools, turn=len(self.turns), ids=(), decode=lambda ids: "")
        called = sum(len(turn.action.calls) for turn in self.turns) + len(read.action.calls)
        if self.budget.max_calls is not None and called > self.budget.max_calls:
            self._note(read, Observation(), said)
            return "call_limit"
        seen = await answer(environment, read, self.budget, {})
        self._note(read, seen, said, acted=bool(read.action.calls) or not read.order)
        if seen.ended is not None:
            return ended_as(seen.ended)
        self._go_on(said, read, seen)
        return None

    def _go_on(self, said: Spoke, read: Read, seen: Observation) -> None:
        """The turn as it is sent back, then what it led to: replies to calls first, as chat completions want them.

        A call that no server could read again goes back as text, and what it was answered as the user's words."""
        keeps = self.episodes.place.rules.reasoning == "keep"
        kept = said.content if keeps else said.content[reasoning_end(said.content):].strip()
        names = {name: f"{one.document.get('id') or name}" for name, one in zip(read.order, said.calls, strict=True)
                 if isinstance(one.read, Made)}
        if len(set(names.values())) < len(names):
            names = {name: name for name in names}
        calls = [{**one.document, "id": names[name]} for name, one in zip(read.order, said.calls, strict=True) if name in names]
        lost = [_words(one.document) for one in said.calls if isinstance(one.read, Malformed)]
        self.messages.append({"role": "assistant", "content": "\n".join([*([kept] if kept else []), *lost])}
                             | ({"tool_calls": calls} if calls else {}))
        replies = [_shown(reply, names) for reply in seen.replies]
        self.messages += sorted(replies, key=lambda message: message["role"] != "tool")

    def _note(self, read: Read, seen: Observation, said: Spoke, *, acted: bool = False) -> None:
        self.turns.append(Turn(action=read.action, misfits=read.misfits, observation=seen, part=len(self.turns), acted=acted,
                               tokens=said.sampled))

    def trace(self) -> Trace:
        """The attempt as it happened."""
        last = len(self.said) - 1
        place = {number: 0 if number == last else number + 1 for number in range(len(self.said))}
        parts = [Part(kind="context", parent=None if number == 0 else place[number - 1], segments=counted(one),
                      stop_reason=one.ended) for number, one in enumerate(self.said[:-1])]
        around = self.episodes.place
        episode = Episode(environment=around.spec.id, seed=self.seed, dialect=around.rules.dialect,
                          reasoning=around.rules.reasoning, opening=self.opening, state=self.state, fault=self.fault,
                          turns=tuple(replace(turn, part=place[turn.part]) for turn in self.turns))
        segments = counted(self.said[-1]) if self.said else (Segment(owner="user", token_ids=()),)
        return Trace(attempt=AttemptId(self.key), task=self.task.id, group=self.group, envelope=self.envelope, segments=segments,
                     stop_reason=self.stop, text=self.said[-1].text if self.said else "", episode=episode, parts=tuple(parts),
                     observed=self.notes)


def read_spoken(document: Any) -> Spoke:
    """A turn with its calls in a reply; Unanswered where it holds none that can be read."""
    said = read_choice(document, TURN_ENDS)
    found = document["choices"][0]["message"].get("tool_calls") or ()
    if not isinstance(found, list | tuple):
        raise malformed("its tool_calls are no list", document)
    known = {one.name: getattr(said, one.name) for one in fields(Said)}
    return Spoke(**known, calls=tuple(_call(one, document) for one in found))


def _call(given: Any, document: Any) -> Called:
    function = given.get("function") if isinstance(given, dict) else None
    name, text = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(text, str) or not name:
        raise malformed("one of its tool_calls has no name or no arguments as a text", document)
    name, text = readable(name), readable(text)
    sent = {"id": given.get("id"), "type": "function", "function": {"name": name, "arguments": text or "{}"}}
    try:
        arguments, end = read_object(text or "{}", 0)
        if text[end:].strip():
            raise NotJson(f"something follows the arguments: character {end}")
        return Called(read=Made(name=name, arguments=arguments, start=0, end=0), document=sent)
    except NotJson as error:
        return Called(read=Malformed(why=str(error), start=0, end=0), document=sent)


def _words(document: Mapping[str, Any]) -> str:
    return f"{document['function']['name']} {document['function']['arguments']}"


def _shown(reply: Reply, names: Mapping[str, str]) -> dict[str, Any]:
    """A reply as a message: to a call where it answers one of these, else by the role of who said it."""
    if reply.call in names:
        return {"role": "tool", "tool_call_id": names[reply.call], "content": reply.content}
    return {"role": ROLES.get(reply.owner, "user"), "content": reply.content}


def _described(tool: ToolSchema) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.name, "description": tool.description,
                                             "parameters": dict(tool.parameters)}}
