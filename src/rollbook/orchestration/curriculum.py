"""A curriculum inside a policy stage: its stream of tasks, told by the judge how attempts ended, kept with the stage's state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rollbook.orchestration.session import Session, TaskStream
from rollbook.orchestration.state import StepState, folder
from rollbook.orchestration.step import PolicyRun
from rollbook.records import Judge, LedgerError, Scored, Task, TaskId, Trace, Verdict
from rollbook.records.recipe import PolicyGradient
from rollbook.tasks.curriculum import PoolStream

FILE = "curriculum.json"


class ObservedJudge:
    """A judge that tells a curriculum what it found, and changes nothing."""

    def __init__(self, judge: Judge, stream: PoolStream):
        self.inner, self.stream = judge, stream

    def judge(self, traces: Sequence[Trace], tasks: Mapping[TaskId, Task]) -> list[Verdict]:
        """The inner judge's verdicts."""
        verdicts = self.inner.judge(traces, tasks)
        ended: dict[str, dict[TaskId, list[float | None]]] = {}
        for trace, verdict in zip(traces, verdicts, strict=True):
            found = verdict.vector.accuracy if isinstance(verdict, Scored) else None
            ended.setdefault(trace.group, {}).setdefault(trace.task, []).append(found)
        for group in ended.values():
            self.stream.observe(group)
        return verdicts


def stream_of(session: Session, stage: PolicyGradient, tasks: Sequence[Task], state: StepState | None) -> TaskStream | PoolStream:
    """The tasks in the order in which they are attempted: each in its turn, or as the stage's curriculum draws them."""
    seed = session.settings.run.seed
    if stage.curriculum is None:
        return TaskStream(tasks, seed=seed, cursor=state.cursor if state else 0, weights=session.sides.weights)
    stream = PoolStream(tasks, stage.curriculum, seed=seed)
    if state is not None:
        file = folder(session.root) / FILE
        try:
            stream.restore(json.loads(file.read_text()))
        except (OSError, ValueError, KeyError) as error:
            raise LedgerError("the state of the curriculum cannot be read", got=f"{file}: {error}"[:200],
                              why="the pools at that step are in no other place", fix="start the run again") from None
    return stream


def watched(run: PolicyRun, stream: TaskStream | PoolStream) -> PolicyRun:
    """The run with a judge that tells the curriculum, where there is one."""
    return replace(run, judge=ObservedJudge(run.judge, stream)) if isinstance(stream, PoolStream) else run


def begin_step(stream: TaskStream | PoolStream, number: int) -> None:
    """From here on measurements are of the policy of step `number`."""
    if isinstance(stream, PoolStream):
        stream.step = number


def end_step(session: Session, name: str, stream: TaskStream | PoolStream, number: int) -> None:
    """Records the pools where their report is due."""
    if isinstance(stream, PoolStream) and number % stream.rule.report == 0:
        session.ledger.append(stream.report(name))


def written(stream: TaskStream | PoolStream) -> dict[str, str]:
    """The files that a stage's state keeps of a curriculum."""
    return {FILE: json.dumps(stream.state(), sort_keys=True)} if isinstance(stream, PoolStream) else {}
