"""An asynchronous policy stage around the synchronous step: what it starts, what it leaves, how it is continued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from rollbook.ledger import Ledger, close_census
from rollbook.orchestration.asynchronous.board import Board
from rollbook.orchestration.asynchronous.flow import Flow, Sizes
from rollbook.orchestration.asynchronous.gathering import Gathering, Wanted
from rollbook.orchestration.asynchronous.issuing import Issuer, group_number
from rollbook.orchestration.asynchronous.loops import Attempts, running
from rollbook.orchestration.runtimes.fleet import Builder, Fleet
from rollbook.orchestration.runtimes.host import HostSpec, attempts_of
from rollbook.orchestration.runtimes.processes import Processes
from rollbook.orchestration.session import Session, TaskStream
from rollbook.orchestration.step import PolicyRun, families
from rollbook.records import Dispatch, Outcome, PolicyVersion, Task, TaskId
from rollbook.records.asynchrony import Asynchrony
from rollbook.records.recipe import PolicyGradient
from rollbook.tasks.curriculum import PoolStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Where an asynchronous stage starts: the version it began with, and whether it continues after an interruption."""

    first: PolicyVersion
    resumed: bool


@contextmanager
def gathering(session: Session, run: PolicyRun, stage: PolicyGradient, how: Asynchrony,
              stream: TaskStream | PoolStream, begun: Begun) -> Iterator[Gathering]:
    """The source of the stage's batches while its loops run. What is left at its regular end is recorded as such."""
    before = _before(session.ledger, run.stage) if begun.resumed else Before(accepted=0, rejected=0, lost=(), next_number=0)
    _end_lost(session.ledger, before.lost, run.tasks)
    issuer = Issuer(session.ledger, run.stage, next_number=before.next_number)
    flow = Flow(how, Sizes(batch=stage.groups * stage.per_task, per_task=stage.per_task), Board(how.stall_s), tasks=stream,
                issue=issuer.issue, first=begun.first.index)
    flow.restore(accepted=before.accepted, rejected=before.rejected)
    wanted = Wanted(groups=stage.groups, decisions=stage.max_waves * stage.prompts, max_policy_age=stage.max_policy_age,
                    rule=run.admission)
    made = Gathering(flow, wanted, run.tasks, issuer)
    issuer.use(run.rollouts.envelope(session.publisher.weights))
    with _attempts(session, run, how, stream.tasks) as attempts, running(flow, attempts, run.judge, run.tasks):
        yield made
        flow.close()
        _record_rest(run, made)


@contextmanager
def _attempts(session: Session, run: PolicyRun, how: Asynchrony, tasks: Sequence[Task]) -> Iterator[Attempts]:
    """Where attempts are made: on the session's engine, or on a fleet that follows every publication."""
    longest = max(len(session.policy.tokenizer.prompt(task.prompt)) for task in tasks)
    if how.runtime == "threads":
        yield attempts_of(run.rollouts, session.engine, rows=how.concurrency, longest_prompt=longest, on_update=how.on_update)
        return
    spec = HostSpec(settings=session.settings, sampling=run.rollouts.sampling, rows=-(-how.concurrency // how.generators),
                    longest_prompt=longest, on_update=how.on_update, dtype=str(session.dtype).removeprefix("torch."), threads=1)
    fleet = Fleet(_builder(how.runtime, spec), how.generators)
    try:
        fleet.load(session.policy.decoder, session.engine.version)
        session.publisher.followers.append(fleet)
        yield fleet
    finally:
        session.publisher.followers = [one for one in session.publisher.followers if one is not fleet]
        fleet.close()


def _builder(runtime: Literal["processes", "ray"], spec: HostSpec) -> Builder:
    if runtime == "processes":
        return Processes(spec)
    from rollbook.orchestration.runtimes.ray import Actors  # Ray is an extra, and takes seconds to import
    return Actors(spec)


def _record_rest(run: PolicyRun, made: Gathering) -> None:
    """What was under way or not needed when the stage ended, with its census."""
    rest = made.rest()
    if rest.issued:
        scope = f"{run.stage}/rest"
        run.ledger.write_traces(scope, rest.traces, rest.verdicts, rest.admission.outcomes)
        run.ledger.append(close_census(scope, families(rest.issued, run.tasks), rest.admission.outcomes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What the log says of a stage that is continued: attempts by their end, and dispatches whose process ended first."""

    accepted: int
    rejected: int
    lost: tuple[Dispatch, ...]
    next_number: int


def _before(ledger: Ledger, stage: str) -> Before:
    mine = [one for one in ledger.records(Dispatch) if group_number(stage, one.scope) is not None]
    ended = {outcome.attempt: outcome.code for outcome in ledger.records(Outcome)
             if group_number(stage, outcome.attempt.split("/0/", 1)[0]) is not None}
    lost = tuple(one for one in mine if not any(attempt in ended for attempt, _ in one.attempts()))
    codes = Counter(ended.values())
    numbers = [number for one in mine if (number := group_number(stage, one.scope)) is not None]
    forgotten = sum(one.samples for one in lost)
    return Before(accepted=codes["accepted"], rejected=sum(codes.values()) - codes["accepted"] + forgotten, lost=lost,
                  next_number=max(numbers, default=-1) + 1)


def _end_lost(ledger: Ledger, lost: Sequence[Dispatch], tasks: Mapping[TaskId, Task]) -> None:
    """Attempts whose process ended under them are over: cancelled, each dispatch with a census of its own."""
    for one in lost:
        issued = families([one], tasks)
        outcomes = [Outcome(attempt=attempt, family=family, code="cancelled", detail="the process ended")
                    for attempt, family in issued.items()]
        ledger.append_many([*outcomes, close_census(one.scope, issued, outcomes)])
