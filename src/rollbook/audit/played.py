"""Episodes played and graded again from their records: the same observations, the same final state, the same verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Literal

from rollbook.audit.sampled import SampledRow
from rollbook.environments import load_definition, open_services
from rollbook.environments.replaying import replay
from rollbook.ledger import Ledger
from rollbook.records import (
    EnvironmentDefinition,
    EnvironmentImage,
    EnvironmentSpec,
    RollbookError,
    Scored,
    Services,
    Task,
    TaskId,
    content_id,
)
from rollbook.records.recipe import EnvironmentReward
from rollbook.rewards import EnvironmentJudge

Found = tuple[int, Literal["pass", "fail", "not_executed"], str | None, str, str | None]
KEEP = "the environment depends on something that its image does not name: pin it, and do not train on the run"


def compared(ledger: Ledger, reward: EnvironmentReward, rows: Sequence[SampledRow], tasks: Mapping[TaskId, Task]) -> list[Found]:
    """Stages 4 and 8 of a run in an environment."""
    spec = next(iter(ledger.records(EnvironmentSpec)), None)
    if spec is None:
        return [(4, "fail", "EnvironmentSpec", "the run names no environment", "record the environment's spec"),
                (8, "not_executed", None, "there is no environment to grade with", None)]
    try:
        definition = load_definition(spec)
        image = definition.image()
    except RollbookError as error:
        return [(stage, "not_executed", None, f"the environment cannot be built here: {error.what}", None) for stage in (4, 8)]
    same = content_id(image) in {content_id(one) for one in ledger.records(EnvironmentImage)}
    note = "the image was built again with the same digest" if same else "the image built here has another digest"
    with open_services() as services:
        judge = EnvironmentJudge(reward, definition, image, services)
        return [_observed(definition, services, rows, tasks, note), _graded(judge, rows, tasks, note)]


def _observed(definition: EnvironmentDefinition, services: Services, rows: Sequence[SampledRow], tasks: Mapping[TaskId, Task],
              note: str) -> Found:
    played = 0
    for row in rows:
        task, episode = tasks.get(row.trace.task), row.trace.episode
        if task is None or episode is None:
            return 4, "fail", row.id, "it has no task or no episode on record", "record the episode with its trajectory"
        if episode.state is None or any(reply.error == "timeout" for turn in episode.turns for reply in turn.observation.replies):
            continue
        try:
            found = asyncio.run(replay(definition, task, episode, services=services))
        except RollbookError as error:
            found = error.what
        if found is not None:
            return 4, "fail", row.id, f"played again, {row.trace.attempt} differs: {found}", KEEP
        played += 1
    if not played:
        return 4, "not_executed", None, "no sampled episode ended otherwise than by its environment's fault or the clock", None
    return 4, "pass", None, f"{played} episodes played again: equal observations and final states; {note}", None


def _graded(judge: EnvironmentJudge, rows: Sequence[SampledRow], tasks: Mapping[TaskId, Task], note: str) -> Found:
    equal = 0
    for row in rows:
        if not isinstance(row.verdict, Scored):
            continue
        now = judge.verdict(row.trace, tasks.get(row.trace.task))
        if not isinstance(now, Scored) or now.vector.total != row.verdict.vector.total:
            return 8, "fail", row.id, f"graded again, {row.trace.attempt} gets {now}"[:300], KEEP
        equal += 1
    if not equal:
        return 8, "not_executed", None, "no sampled episode has a verdict", None
    return 8, "pass", None, f"{equal} final states graded again: equal verdicts; {note}", None
