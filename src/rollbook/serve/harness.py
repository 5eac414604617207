"""Any agent as the harness: it gets an address and a task, its calls become the trace, its result the final state."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from rollbook.records import (
    AttemptId,
    Episode,
    FinalState,
    Observation,
    RollbookError,
    SamplingEnvelope,
    Segment,
    Task,
    Trace,
    content_id,
    digest,
    group_name,
)
from rollbook.rollouts.dialects import dialect
from rollbook.rollouts.meeting import turn_sampler
from rollbook.rollouts.rendering import Renderer
from rollbook.rollouts.rules import EpisodeRules
from rollbook.rollouts.solve import Rollouts
from rollbook.serve.gateway import Allowed, Gateway
from rollbook.serve.running import serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What an agent is given: OpenAI's base address and key, a model name, and the task.

    Example: Assignment(base_url="http://127.0.0.1:4123/attempts/a1/v1", api_key="..", model="policy", task=Task(...))
    """

    base_url: str
    api_key: str
    model: str
    task: Task


Agent = Callable[[Assignment], FinalState]


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessRollouts(Rollouts):
    """Rollouts whose turns are an outside agent's. `agent` works until it is done and returns the final state, to be graded.

    `name` says which agent, with its version: it is the scaffold of the envelope. The server's sampling settings hold, whatever
    the agent asks for. Limit: which calls are sampled together depends on when they come: a run is not made again bit for bit.
    """

    agent: Agent
    name: str
    rules: EpisodeRules
    context: int
    parallel: int = 8

    def envelope(self, weights: str) -> SamplingEnvelope:
        """The request as it is made to the policy; the number of turns is the agent's own."""
        return replace(Rollouts.envelope(self, weights), max_turns=10_000, scaffold=f"harness/{self.name}")

    def solve(self, tasks: Sequence[Task], per_task: int, *, scope: str, envelope: SamplingEnvelope) -> list[Trace]:
        """`per_task` attempts at each task by the agent, in order. An agent that raises leaves an attempt without a state."""
        renderer = Renderer(self.tokenizer, dialect(self.rules.dialect), announces=self.rules.announces)  # type: ignore[arg-type]
        gateway = Gateway(turn_sampler(self.sampler), renderer, self.sampling,
                          Allowed(context=self.context, max_tokens=self.max_tokens, seed=self.seed, fixed=True))
        named = [(task, group_name(scope, place, task.id), sample)
                 for place, task in enumerate(tasks) for sample in range(per_task)]
        with serving(gateway) as served, ThreadPoolExecutor(max_workers=self.parallel) as pool:
            def work(one: tuple[Task, str, int]) -> Trace:
                task, group, sample = one
                attempt = f"{group}/{sample}"
                known = digest(attempt.encode())[:24]
                assignment = Assignment(base_url=served.base_url(known), api_key=served.token, model="policy", task=task)
                return self._attempt(gateway, assignment, (known, attempt, group), content_id(envelope))
            return list(pool.map(work, named))

    def _attempt(self, gateway: Gateway, assignment: Assignment, named: tuple[str, str, str], envelope: str) -> Trace:
        known, attempt, group = named
        began, state, fault = time.monotonic(), None, None
        try:
            state = self.agent(assignment)
        except RollbookError as error:
            fault = str(error)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"[:300]
        parts = gateway.finish(known)
        spoke = [part for part in parts if part.sampled]
        last = spoke[-1] if spoke else None
        ids = self.tokenizer.prompt(assignment.task.prompt)
        segments = last.segments if last is not None else (Segment(owner="user", token_ids=ids),)
        episode = Episode(environment=f"harness:{self.name}", seed=self.seed, dialect=self.rules.dialect, reasoning="split",
                          opening=Observation(), turns=(), state=state, fault=fault)
        turns = [segment for segment in segments if segment.owner == "policy"]
        stop = last.stop_reason if last is not None else "end_of_turn"
        return Trace(attempt=AttemptId(attempt), task=assignment.task.id, group=group, envelope=envelope,
                     segments=tuple(segments), stop_reason="environment_failed" if fault is not None else stop,
                     text=self.tokenizer.decode(turns[-1].token_ids) if turns else "", episode=episode, parts=tuple(spoke[:-1]),
                     sampled=last.sampled if last is not None else (), observed={"episode_s": time.monotonic() - began})
