"""The environment of a run: from the recipe's settings to what stages sample, judge and show with."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollbook.environments import load_definition, open_services
from rollbook.models.load import Policy
from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import (
    Action,
    Demonstration,
    EnvironmentDefinition,
    EnvironmentImage,
    EnvironmentSpec,
    EpisodeBudget,
    RecipeError,
    Services,
    Task,
)
from rollbook.records.recipe import AgentSettings, EnvironmentSettings, SamplingSettings, Settings
from rollbook.rollouts.demonstrating import Shown, show
from rollbook.rollouts.dialects import dialect
from rollbook.rollouts.engines.kinds import Engine
from rollbook.rollouts.environment import EnvironmentRollouts
from rollbook.rollouts.rendering import Renderer
from rollbook.rollouts.rules import Compaction, EpisodeRules
from rollbook.rollouts.solve import Rollouts
from rollbook.tasks import Acquired, Split, split

if TYPE_CHECKING:
    from rollbook.serve.harness import AgentRollouts

STYLES = ("gold", "direct")
SPARE = 1.5          # tasks drawn for one that is wanted: a held-out problem may have several forms


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The environment that all of a run's attempts are made in."""

    spec: EnvironmentSpec
    definition: EnvironmentDefinition
    image: EnvironmentImage
    services: Services
    rules: EpisodeRules
    agent: AgentSettings | None = None


@contextlib.contextmanager
def surroundings(environment: EnvironmentSettings | None, max_tokens: int) -> Iterator[Surroundings | None]:
    """The environment, while it is used; None where every task is a single turn. `max_tokens` are the policy's of an episode."""
    if environment is None:
        yield None
        return
    spec = spec_of(environment, max_tokens)
    definition = load_definition(spec)
    with open_services() as services:
        yield Surroundings(spec=spec, definition=definition, image=definition.image(), services=services,
                           rules=rules_of(environment), agent=environment.agent)


def rollouts_of(settings: Settings, policy: Policy, engine: Engine, around: Surroundings | None,
                sampling: SamplingSettings) -> Rollouts:
    """What a stage samples with: single turns, or episodes in the run's environment."""
    plain = Rollouts(sampler=engine, tokenizer=policy.tokenizer, sampling=sampling, seed=settings.run.seed,
                     max_tokens=settings.tasks.max_tokens)
    context = min(settings.model.context, policy.decoder.architecture.context)      # that prompt and turns may fill together
    return plain if around is None else episodes(plain, around, context)


def episodes(plain: Rollouts, around: Surroundings, context: int) -> EnvironmentRollouts | AgentRollouts:
    """The same sampling as episodes in an environment; prompt and turns fill `context` tokens together at most."""
    if around.agent is not None:
        return _of_agent(plain, around, around.agent, context)
    return EnvironmentRollouts(sampler=plain.sampler, tokenizer=plain.tokenizer, sampling=plain.sampling, seed=plain.seed,
                               max_tokens=plain.max_tokens, stop=plain.stop, spec=around.spec, definition=around.definition,
                               services=around.services, rules=around.rules, context=context)


def _of_agent(plain: Rollouts, around: Surroundings, agent: AgentSettings, context: int) -> AgentRollouts:
    """The same sampling behind a server, asked by an outside agent that works in the environment."""
    from rollbook.serve.commands import Command
    from rollbook.serve.harness import AgentRollouts
    return AgentRollouts(sampler=plain.sampler, tokenizer=plain.tokenizer, sampling=plain.sampling, seed=plain.seed,
                         max_tokens=plain.max_tokens, stop=plain.stop, name=agent.name, rules=around.rules, context=context,
                         parallel=agent.parallel, spec=around.spec, definition=around.definition, services=around.services,
                         work=Command(settings=agent))


def spec_of(s: EnvironmentSettings, max_tokens: int) -> EnvironmentSpec:
    """The environment as data."""
    budget = EpisodeBudget(max_tokens=max_tokens, max_turns=s.max_turns, turn_tokens=s.turn_tokens, max_calls=s.max_calls,
                           max_seconds=s.max_seconds, call_seconds=s.call_seconds, reply_characters=s.reply_characters)
    return EnvironmentSpec(name=s.name, definition=s.definition, parameters=s.parameters, tools=s.tools, budget=budget,
                           no_tools=s.no_tools)


def rules_of(s: EnvironmentSettings) -> EpisodeRules:
    """The harness as data."""
    compaction = None if s.compaction == "none" else Compaction(
        kind=s.compaction, at_tokens=s.compact_at, summary_tokens=s.summary_tokens, keep_turns=s.keep_turns)
    return EpisodeRules(dialect=s.dialect, reasoning=s.reasoning, announces=s.announce, compaction=compaction,
                        subagents=s.subagents, subagent_tokens=s.subagent_tokens)


def environment_tasks(settings: Settings, environment: EnvironmentSettings) -> tuple[Acquired, Split]:
    """The environment's own tasks, on two sides by their split units."""
    wanted = settings.tasks
    definition = load_definition(spec_of(environment, wanted.max_tokens))
    found = definition.tasks(count=int(SPARE * (wanted.train + wanted.heldout)) + 2, seed=wanted.seed)
    if not found.tasks:
        raise RecipeError(f"the environment {environment.name} has no tasks", got="none", why="there is nothing to train on",
                          fix="correct environment.parameters")
    acquired = Acquired(raw=found.raw, tasks=found.tasks, rejected={}, draws={environment.name: len(found.tasks)},
                        formatter=f"{environment.name}/1")
    return acquired, split(found.tasks, train=wanted.train, heldout=wanted.heldout, seed=wanted.seed)


def demonstrations_of(around: Surroundings, tasks: Sequence[Task], tokenizer: ChatTokenizer, *, count: int, seed: int,
                      mixture: Mapping[str, float]) -> list[Demonstration]:
    """`count` episodes in the proportions of `mixture`: `gold` plays a solution with its tools, `direct` says the reference.

    What comes again is played once: an environment is proved to show the same for the same actions.
    """
    unknown = [style for style in mixture if style not in STYLES]
    if unknown or not sum(mixture.values()) > 0:
        raise RecipeError("the traces of an environment are gold and direct", got=", ".join(mixture) or "none",
                          why="a solution is played in the environment, or its answer is said at once")
    drawn = random.Random(f"demonstrations/{seed}")
    order: list[Task] = []
    while len(order) < count:
        order += drawn.sample(list(tasks), min(len(tasks), count - len(order)))
    styles = drawn.choices(list(mixture), weights=list(mixture.values()), k=count)
    renderer = Renderer(tokenizer, dialect(around.rules.dialect), announces=around.rules.announces)
    wanted = [(task, style) for task, style in zip(order, styles, strict=True)]
    once = {(task.id, style): (task, _actions(around, task, style)) for task, style in wanted}
    played = show(around.definition, list(once.values()), services=around.services, renderer=renderer)
    shown = dict(zip(once, played, strict=True))
    return [_demonstration(renderer, task, style, shown[task.id, style]) for task, style in wanted]


def _actions(around: Surroundings, task: Task, style: str) -> tuple[Action, ...]:
    if style != "gold":
        return (Action(text=task.reference),)
    known = around.definition.solutions(task).gold
    if not known:
        raise RecipeError("a task of this environment has no solution to be shown", got=f"traces gold of {task.id[:17]}",
                          why="no way to solve it is known, and what is shown must be right",
                          fix="say direct in traces, or leave the cold start out")
    return known[0]


def _demonstration(renderer: Renderer, task: Task, style: str, shown: Shown) -> Demonstration:
    tokenizer = renderer.tokenizer
    return Demonstration(task=task.id, messages=shown.messages, token_ids=shown.token_ids, owners=shown.owners,
                         tokenizer=tokenizer.digest, template=tokenizer.template_digest, author=f"program:{style}/1",
                         validation="correct by construction" if style == "gold" else "the reference, without the tools")
