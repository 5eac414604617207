"""Attempts that a stage samples for itself: recorded before the first token, judged, each with its one outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.experience.admission import outcome
from rollbook.ledger import close_census
from rollbook.orchestration.judges import judging
from rollbook.orchestration.session import Session, TaskStream
from rollbook.orchestration.step import families
from rollbook.records import PolicyVersion, RecipeError, Task, Trace, Verdict
from rollbook.records.graph import TRAIN, family_of
from rollbook.records.recipe import SamplingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is sampled: `samples` attempts at each task by `policy`, named by `scope`; `reward` names who judges."""

    scope: str
    tasks: Sequence[Task]
    samples: int
    sampling: SamplingSettings
    policy: PolicyVersion
    reward: str | None = None


def attempts(session: Session, asked: Asked) -> list[tuple[Trace, Verdict]]:
    """The attempts with their verdicts, task by task; each stands for itself in the census."""
    rollouts = session.rollouts(asked.sampling)
    envelope = rollouts.envelope(asked.policy.weights)
    issued = rollouts.dispatch(asked.tasks, asked.samples, scope=asked.scope, envelope=envelope)
    session.ledger.append_many([envelope, issued])
    traces = rollouts.solve(asked.tasks, asked.samples, scope=asked.scope, envelope=envelope)
    verdicts = judging(session, asked.reward).judge.judge(traces, session.tasks)
    outcomes = [outcome(t, v, session.tasks[t.task].family) for t, v in zip(traces, verdicts, strict=True)]
    session.ledger.write_traces(asked.scope, traces, verdicts, outcomes)
    session.ledger.append(close_census(asked.scope, families([issued], session.tasks), outcomes))
    return list(zip(traces, verdicts, strict=True))


def pool(session: Session, source: str) -> tuple[Task, ...]:
    """The training tasks, those of one family, or those that the stage `source` selected."""
    if source == TRAIN:
        return session.sides.train
    if (family := family_of(source)) is not None:
        return tuple(task for task in session.sides.train if task.family == family)
    kept = set(session.selections[source])
    if not kept:
        raise RecipeError(f"stage {source} selected no task to train on", got="an empty selection",
                          why="no candidate was solved as often as its bounds ask",
                          fix=f"widen --set stages.{source}.low and .high, or raise .candidates, in a new run")
    return tuple(task for task in session.sides.train if task.id in kept)


def first(session: Session, source: str, count: int) -> list[Task]:
    """The first `count` tasks of a pool in the run's order, each once; fewer where the pool is smaller."""
    held = pool(session, source)
    stream = TaskStream(held, seed=session.settings.run.seed, cursor=0)
    return [next(stream) for _ in range(min(count, len(held)))]
