"""Rollouts in an environment: tasks in, traces with their episodes out, hundreds of episodes at a time on one engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import (
    EnvironmentDefinition,
    EnvironmentSpec,
    EpisodeBudget,
    ModelError,
    Request,
    SamplingEnvelope,
    Services,
    Task,
    Trace,
    content_id,
    digest,
    encode,
    group_name,
)
from rollbook.records.codec import canonical
from rollbook.rollouts.dialects import dialect
from rollbook.rollouts.episodes import Harness, Playing
from rollbook.rollouts.meeting import Meeting, turn_sampler
from rollbook.rollouts.rendering import Renderer
from rollbook.rollouts.rules import EpisodeRules
from rollbook.rollouts.solve import Rollouts

SCAFFOLD = "turns/1"


def scaffold(spec: EnvironmentSpec, rules: EpisodeRules) -> str:
    """The name of the harness: its version with a hash of environment and rules."""
    return f"{SCAFFOLD}/{digest(canonical([spec.id, encode(rules)]))[:32]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRollouts(Rollouts):
    """What a stage samples with where tasks have an environment. `context` is the model's, in tokens.

    An episode's seed depends on the run's seed and its group: attempts that share a baseline meet the same environment.
    """

    spec: EnvironmentSpec
    definition: EnvironmentDefinition
    services: Services
    rules: EpisodeRules
    context: int

    @property
    def budget(self) -> EpisodeBudget:
        """The spec's budget, with fewer tokens where a stage gives fewer."""
        return replace(self.spec.budget, max_tokens=min(self.max_tokens, self.spec.budget.max_tokens))

    def envelope(self, weights: str) -> SamplingEnvelope:
        """The request as it is made to the policy with this weight hash; `scaffold` names the harness and its rules."""
        budget = self.budget
        return replace(Rollouts.envelope(self, weights), max_tokens=budget.max_tokens, max_turns=budget.max_turns,
                       max_seconds=budget.max_seconds, scaffold=scaffold(self.spec, self.rules))

    def solve(self, tasks: Sequence[Task], per_task: int, *, scope: str, envelope: SamplingEnvelope) -> list[Trace]:
        """`per_task` episodes at each task, in order; a task's attempts form one group, named by scope, place and task.

        An episode whose environment failed, or that the engine could not continue, is a trace that says so.
        """
        named = [(task, group_name(scope, place, task.id), sample)
                 for place, task in enumerate(tasks) for sample in range(per_task)]
        size = self.rules.concurrency
        parts = [named[at:at + size] for at in range(0, len(named), size)]
        traces = [trace for part in parts for trace in asyncio.run(self._together(part, content_id(envelope)))]
        check_answered(traces)
        return traces

    async def _together(self, named: Sequence[tuple[Task, str, int]], envelope: str) -> list[Trace]:
        engine = turn_sampler(self.sampler)
        meeting = Meeting(engine, lockstep=self.rules.lockstep)
        harness = self.harness(envelope)
        playing = [Playing(harness=harness, task=task, group=group, seed=self.seed_of(group), engine=engine, meeting=meeting,
                           request=self.asked(f"{group}/{sample}", task, harness)) for task, group, sample in named]
        return list(await asyncio.gather(*(one.play() for one in playing)))

    def harness(self, envelope: str) -> Harness:
        """What all episodes under this envelope (its id) share."""
        if not isinstance(self.tokenizer, ChatTokenizer):
            raise ModelError("episodes need a tokenizer with its chat template", got=type(self.tokenizer).__name__)
        spoken = dialect(self.rules.dialect)
        tools = None if self.spec.no_tools else self.spec.tools
        return Harness(environment=self.spec.id, build=partial(_build, self.definition, self.services), tools=tools,
                       budget=self.budget, rules=self.rules, context=self.context, envelope=envelope,
                       renderer=Renderer(self.tokenizer, spoken, announces=self.rules.announces))

    def asked(self, key: str, task: Task, harness: Harness) -> Request:
        """The attempt of this name as the engine is first asked."""
        request = self.request(key, self.tokenizer.prompt(task.prompt))
        return replace(request, stop_ids=tuple(sorted(harness.renderer.stop_ids - self.tokenizer.stop_ids)),
                       max_tokens=harness.budget.turn_tokens or harness.budget.max_tokens)

    def seed_of(self, group: str) -> int:
        """The seed of every environment of a group."""
        return int(digest(f"{self.seed}/{group}".encode())[:12], 16)


def _build(definition: EnvironmentDefinition, services: Services, seed: int):  # type: ignore[no-untyped-def]
    return definition.build(services=services, seed=seed)


def check_answered(traces: Sequence[Trace]) -> None:
    """Refuses a call in which no environment worked, the fault being then the definition's or the machine's, and one in which no
    policy could say a word, since what stands before its first turn fills the context."""
    faults = [trace.episode.fault for trace in traces if trace.episode is not None and trace.episode.fault is not None]
    if len(faults) > 1 and len(faults) == len(traces):
        raise ModelError(f"not one of {len(faults)} episodes had an environment that worked", got=faults[0],
                         why="every further step would end the same way",
                         fix="run `rollbook env check NAME`, mend what it says, then `rollbook resume RUN`")
    full = [trace for trace in traces if trace.stop_reason == "context_full" and not trace.sampled_count]
    if full and len(full) == len(traces):
        raise ModelError(f"not one of {len(full)} episodes left the policy room to say a word",
                         got=f"{min(trace.prompt_count for trace in full)} tokens and more before its first turn",
                         why="what was never asked would be counted as wrong",
                         fix="raise model.context or the protocol's context, or let less be described before the first turn")
