"""Any agent as the harness: it gets an address and a task, its calls become the trace, its result the final state."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import (
    AttemptId,
    EnvironmentDefinition,
    EnvironmentSpec,
    Episode,
    FinalState,
    Observation,
    RollbookError,
    SamplingEnvelope,
    Segment,
    Services,
    Task,
    Trace,
    content_id,
    digest,
    encode,
    group_name,
)
from rollbook.records.codec import canonical
from rollbook.records.rollout import StopReason
from rollbook.rollouts.dialects import dialect
from rollbook.rollouts.environment import check_answered
from rollbook.rollouts.meeting import turn_sampler
from rollbook.rollouts.rendering import Renderer
from rollbook.rollouts.rules import EpisodeRules
from rollbook.rollouts.solve import Rollouts
from rollbook.serve.gateway import Allowed, Gateway
from rollbook.serve.running import Serving, serving
from rollbook.serve.workplace import Workplace

T = TypeVar("T")


class OutOfTime(Exception):
    """An agent that was stopped because its time was over: what it left is graded as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What an agent is given: OpenAI's base address and key, a model name, and the task. `tools` is the address of its
    environment's tools, empty where it has none but its own; `seconds` how long it may take.

    Example: Assignment(base_url="http://127.0.0.1:4123/attempts/a1/v1", api_key="..", model="policy", task=Task(...))
    """

    base_url: str
    api_key: str
    model: str
    task: Task
    tools: str = ""
    seconds: float | None = None


Agent = Callable[[Assignment], FinalState]
Worker = Callable[[Assignment], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """What an agent made of one attempt, before it is a trace."""

    environment: str
    seed: int
    agent: str = ""
    workplace: Workplace | None = None
    state: FinalState | None = None
    fault: str | None = None
    stop: StopReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served(Rollouts):
    """Attempts behind one server. `name` says which agent, with its version; the server's sampling settings hold, whatever an
    agent asks for. Limit: which calls are sampled together depends on when they come: a run is not made again bit for bit.
    """

    name: str
    rules: EpisodeRules
    context: int
    parallel: int = 8

    def solve(self, tasks: Sequence[Task], per_task: int, *, scope: str, envelope: SamplingEnvelope) -> list[Trace]:
        """`per_task` attempts at each task by the agent, in order. An agent that raises leaves an attempt without a state."""
        assert isinstance(self.tokenizer, ChatTokenizer)
        renderer = Renderer(self.tokenizer, dialect(self.rules.dialect), announces=self.rules.announces)
        gateway = Gateway(turn_sampler(self.sampler), renderer, self.sampling, self._allowed())
        named = [(task, group_name(scope, place, task.id), sample)
                 for place, task in enumerate(tasks) for sample in range(per_task)]
        gateway.expected = frozenset(_known(f"{group}/{sample}") for _, group, sample in named)
        with _loop() as loop, serving(gateway) as served, ThreadPoolExecutor(max_workers=self.parallel) as pool:
            gateway.workplaces = loop

            def work(one: tuple[Task, str, int]) -> Trace:
                task, group, sample = one
                attempt = f"{group}/{sample}"
                known, began = _known(attempt), time.monotonic()
                done = self._work(served, known, task, group)
                return self._trace(gateway, done, (known, attempt, group), task, content_id(envelope), time.monotonic() - began)
            return list(pool.map(work, named))

    def _allowed(self) -> Allowed:
        return Allowed(context=self.context, max_tokens=self.max_tokens, seed=self.seed, fixed=True)

    def _work(self, served: Serving, known: str, task: Task, group: str) -> _Done:
        raise NotImplementedError

    def _trace(self, gateway: Gateway, done: _Done, named: tuple[str, str, str], task: Task, envelope: str,
               seconds: float) -> Trace:
        known, attempt, group = named
        over = gateway.taken(known)
        spoke = [thread for thread in over.threads if any(segment.owner == "policy" for segment in thread.segments)]
        last = max(spoke, key=lambda thread: thread.used, default=None)         # the one that it ended in, whenever it was opened
        asked = (Segment(owner="user", token_ids=self.tokenizer.prompt(task.prompt)),)
        segments = asked if last is None else tuple(last.segments)
        place = done.workplace
        if last is None and done.fault is None:     # nothing of it is the policy's: no reward can be
            done = replace(done, state=None, fault="the agent ended without asking the policy once")
        episode = Episode(environment=done.environment, seed=done.seed, dialect=self.rules.dialect, reasoning="split",
                          opening=Observation() if place is None else place.opening,
                          turns=() if place is None else tuple(place.turns), state=done.state, fault=done.fault, agent=done.agent)
        turns = [segment for segment in segments if segment.owner == "policy"]
        ended = done.stop or over.stopped or (last.stop_reason if last is not None else "gave_up")
        return Trace(attempt=AttemptId(attempt), task=task.id, group=group, envelope=envelope, segments=segments,
                     stop_reason="environment_failed" if done.fault is not None else ended,
                     text=self.tokenizer.decode(turns[-1].token_ids) if turns else "", episode=episode,
                     parts=tuple(thread.part() for thread in spoke if thread is not last),
                     sampled=tuple(last.sampled) if last is not None else (), observed={"episode_s": seconds})


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessRollouts(_Served):
    """Rollouts whose turns are an outside agent's, with tools of its own. `agent` works until it is done and returns the final
    state, to be graded.
    """

    agent: Agent

    def envelope(self, weights: str) -> SamplingEnvelope:
        """The request as it is made to the policy; the number of turns is the agent's own."""
        return replace(Rollouts.envelope(self, weights), max_turns=10_000, scaffold=f"harness/{self.name}")

    def _work(self, served: Serving, known: str, task: Task, group: str) -> _Done:
        assignment = Assignment(base_url=served.base_url(known), api_key=served.token, model="policy", task=task)
        state, fault = None, None
        try:
            state = self.agent(assignment)
        except RollbookError as error:
            fault = str(error)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"[:300]
        return _Done(environment=f"harness:{self.name}", seed=self.seed, state=state, fault=fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRollouts(_Served):
    """An outside agent in an environment of a recipe: it calls the environment's tools over HTTP, and the state that these leave
    is graded by the environment's verifier. `work` returns what the agent said last, None where that is no answer.

    Its calls are checked, counted and recorded as the turn loop's own, so that an episode can be played again. The budget is the
    spec's: tokens and calls of the policy, calls of tools, seconds.
    """

    spec: EnvironmentSpec
    definition: EnvironmentDefinition
    services: Services
    work: Worker

    def envelope(self, weights: str) -> SamplingEnvelope:
        """The request as it is made to the policy; `scaffold` names the agent and the environment."""
        budget = self.spec.budget
        known = digest(canonical([self.spec.id, encode(self.rules), self.name]))[:32]
        return replace(Rollouts.envelope(self, weights), max_tokens=self._tokens, max_turns=budget.max_turns,
                       max_seconds=budget.max_seconds, scaffold=f"agent/{known}")

    def solve(self, tasks: Sequence[Task], per_task: int, *, scope: str, envelope: SamplingEnvelope) -> list[Trace]:
        """`per_task` attempts at each task by the agent, in order; refused where not one environment or agent worked."""
        traces = _Served.solve(self, tasks, per_task, scope=scope, envelope=envelope)
        check_answered(traces)
        return traces

    @property
    def _tokens(self) -> int:
        return min(self.max_tokens, self.spec.budget.max_tokens)

    def _allowed(self) -> Allowed:
        budget = self.spec.budget
        return Allowed(context=self.context, max_tokens=min(budget.turn_tokens or self._tokens, self._tokens), seed=self.seed,
                       fixed=True, attempt_tokens=self._tokens, attempt_calls=budget.max_turns)

    def seed_of(self, group: str) -> int:
        """The seed of every environment of a group."""
        return int(digest(f"{self.seed}/{group}".encode())[:12], 16)

    def _work(self, served: Serving, known: str, task: Task, group: str) -> _Done:
        seed, loop = self.seed_of(group), served.gateway.workplaces
        assert loop is not None
        done = _Done(environment=self.spec.id, seed=seed, agent=self.name)
        try:
            made = self.definition.build(services=self.services, seed=seed)
        except Exception as error:
            return replace(done, fault=_told("the environment could not be built", error))
        place = Workplace(environment=made, budget=self.spec.budget, permitted=None if self.spec.no_tools else self.spec.tools)
        stop: StopReason | None = None
        try:
            _wait(loop, place.begin(task))
            served.gateway.attempt(known).workplace = place
            said = self.work(Assignment(base_url=served.base_url(known), api_key=served.token, model="policy", task=task,
                                        tools=served.tools_url(known), seconds=self.spec.budget.max_seconds))
            if said is not None:
                _wait(loop, place.say(said))
        except OutOfTime:
            stop = "time_limit"
        except Exception as error:
            if place.over is None and served.gateway.attempt(known).stopped is None:    # it may fail over a budget that is spent
                place.fault = place.fault or _told("the agent failed", error)
        state = _wait(loop, place.end())
        return replace(done, workplace=place, state=state, fault=place.fault, stop=stop or _stopped(place))


def _known(attempt: str) -> str:
    """The name under which an agent finds its attempt."""
    return digest(attempt.encode())[:24]


def _stopped(place: Workplace) -> StopReason | None:
    match place.over:
        case "terminal" | "gave_up" | "call_limit" as ended:
            return ended            # type: ignore[return-value]
        case _:
            return None


def _told(what: str, error: Exception) -> str:
    return str(error) if isinstance(error, RollbookError) else f"{what}: {type(error).__name__}: {error}"[:300]


def _wait(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, loop).result()


@contextlib.contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own, on which environments live while agents work."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="environments", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30.0)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
