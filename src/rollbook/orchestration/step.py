"""The policy-improvement step: from tasks to a published policy, every arrow one function from records to a record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from rollbook.experience.admission import Admission, AdmissionRule, AdmittedGroup, admit, group
from rollbook.experience.batches import Packed, as_if_written, credited, minibatches, pack, with_subagents, with_token_credit
from rollbook.experience.mixing import mixed
from rollbook.experience.token_credit import per_token
from rollbook.ledger import Ledger, close_census
from rollbook.objectives import all_reads
from rollbook.objectives.core import Objective
from rollbook.orchestration.critic import critic_metrics, critic_steps, warming
from rollbook.orchestration.exploring import Controller
from rollbook.orchestration.measures import Updated, step_metrics
from rollbook.orchestration.publish import Publisher
from rollbook.orchestration.recording import Moved, batch_record, update_record
from rollbook.records import (
    Batch,
    Credit,
    Demonstration,
    Dispatch,
    Diverged,
    Judge,
    PolicyVersion,
    StepReport,
    Task,
    TaskId,
    Trace,
    Verdict,
)
from rollbook.rollouts.solve import Rollouts
from rollbook.training.policy import PolicyLearner
from rollbook.training.value import CriticLearner


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """Sizes of a step. Waves of `prompts` x `per_task` attempts go out until `groups` groups are admitted or `max_waves` went.

    `fresh_optimizer`: the policy's optimizer forgets its moments before the first update of every step.
    """

    prompts: int
    per_task: int
    groups: int
    max_waves: int
    minibatches: int
    max_batch_tokens: int
    max_length: int
    misfit_penalty: float = 0.0
    observation_loss: bool = False
    subagents_learn: bool = False
    fresh_optimizer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """What a policy stage works with; the step reads it and changes nothing but the learner's weights and the ledger."""

    stage: str
    ledger: Ledger
    rollouts: Rollouts
    judge: Judge
    learner: PolicyLearner
    publisher: Publisher
    objective: Objective
    admission: AdmissionRule
    settings: StepSettings
    tasks: Mapping[TaskId, Task]
    critic: CriticLearner | None = None
    pretraining: Callable[[int], Sequence[Demonstration]] | None = None      # of an optimizer step, counted from 0
    exploring: Controller | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """All attempts of a step with their verdicts and what admission made of them."""

    traces: tuple[Trace, ...]
    verdicts: tuple[Verdict, ...]
    admission: Admission
    issued: tuple[Dispatch, ...]
    rollout_s: float


class Source(Protocol):
    """Where a step's attempts come from: issued here in waves, or taken from what asynchronous generators have finished."""

    def gather(self, run: PolicyRun, policy: PolicyVersion, scope: str) -> Gathered: ...

    def still(self) -> AbstractContextManager[None]:
        """Nothing is issued or ended while this is held, so that a state can be saved whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waves:
    """Attempts issued and finished while the learner waits: no token is older than the policy it trains."""

    tasks: Iterator[Task]

    def gather(self, run: PolicyRun, policy: PolicyVersion, scope: str) -> Gathered:
        return gather(run, self.tasks, policy, scope)

    def still(self) -> AbstractContextManager[None]:
        return nullcontext()


def step(run: PolicyRun, source: Source, policy: PolicyVersion, number: int) -> tuple[PolicyVersion, StepReport]:
    """One step: solve, judge, admit, credit, pack, score, update, publish, record."""
    began = time.monotonic()
    scope = f"{run.stage}/{number:06d}"
    gathered = source.gather(run, policy, scope)                        # traces, verdicts, admission; refilled
    run.ledger.write_traces(scope, gathered.traces, gathered.verdicts, gathered.admission.outcomes)
    census = run.ledger.append(close_census(scope, families(gathered.issued, run.tasks), gathered.admission.outcomes))
    parts = minibatches(gathered.admission.groups, run.settings.minibatches)             # cut between groups
    updated: list[Updated] = []
    trained = time.monotonic()
    packed = packed_of(run, parts, credits_of(run, parts, scope))
    scored = [run.learner.score(one, run.objective, next_up=not place)  # anchor, reference: only what is read, before any update
              for place, one in enumerate(packed)]
    if scored and per_token(run.objective.credit):
        values = None if run.critic is None else [run.critic.values(one) for one in scored]
        scored = with_token_credit(scored, run.objective.credit, values)
    warm, batches, losses = warming(run.critic, number), [], []
    for place, one in enumerate(scored):
        due = one.reference_T is not None or (number - 1) % KL_EVERY == 0
        if warm:
            batches.append(_record_batch(run, one, policy).id)
        else:
            one = _with_pretraining(run, one, (number - 1) * run.settings.minibatches + place)
            updated.append(_update(run, one, policy, Place(first=not place, kl=not place and due)))
            batches.append(updated[-1].update.batch)
        if run.critic is not None:
            losses += critic_steps(run.ledger, run.critic, one, batches[-1], run.stage)
    version = _publish(run, policy, updated) if updated else policy
    metrics = step_metrics(gathered, updated, version=policy.index, update_s=time.monotonic() - trained,
                           step_s=time.monotonic() - began) | critic_metrics(scored, losses)
    report = StepReport(stage=run.stage, step=number, policy=policy.id, published=version.id, census=census,
                        batches=tuple(batches), updates=tuple(u.update.id for u in updated),
                        metrics={k: v for k, v in metrics.items() if not k.startswith(OBSERVED_METRICS)},
                        observed={k: v for k, v in metrics.items() if k.startswith(OBSERVED_METRICS)})
    run.ledger.append(report)
    return version, report


def packed_of(run: PolicyRun, parts: Sequence[Sequence[AdmittedGroup]], credits: Sequence[Credit]) -> list[Packed]:
    """The batch of every minibatch, of the policy's own tokens unless the stage trains on observations too."""
    learnt = [as_if_written(part) for part in parts] if run.settings.observation_loss else parts
    learnt = [with_subagents(part) for part in learnt] if run.settings.subagents_learn else learnt
    return [pack(part, credit, run.objective, max_tokens=run.settings.max_batch_tokens, max_length=run.settings.max_length)
            for part, credit in zip(learnt, credits, strict=True)]


def credits_of(run: PolicyRun, parts: Sequence[Sequence[AdmittedGroup]], scope: str) -> tuple[Credit, ...]:
    """One credit record a minibatch; none where nothing was admitted."""
    return credited(parts, run.objective, scope, misfit_penalty=run.settings.misfit_penalty) if parts else ()


OBSERVED_METRICS = ("time/", "rollout/tokens_per_s")
KL_EVERY = 4        # steps between two measurements of the KL to the start where they need a pass of their own, 2 to 8% of a step


def gather(run: PolicyRun, source: Iterator[Task], policy: PolicyVersion, scope: str) -> Gathered:
    """Waves of attempts until enough groups carry a signal; uniform groups are dropped, counted, refilled by the next wave."""
    envelope = run.rollouts.envelope(policy.weights)
    run.ledger.append(envelope)
    traces: list[Trace] = []
    verdicts: list[Verdict] = []
    admission = Admission(groups=(), outcomes=())
    issued: list[Dispatch] = []
    spent = 0.0
    for wave in range(run.settings.max_waves):
        if len(admission.groups) >= run.settings.groups:
            break
        tasks = [next(source) for _ in range(run.settings.prompts)]
        place = f"{scope}/{wave}"
        issued.append(run.rollouts.dispatch(tasks, run.settings.per_task, scope=place, envelope=envelope))
        run.ledger.append(issued[-1])                                   # before the first token: nothing can vanish unseen
        began = time.monotonic()
        solved = run.rollouts.solve(tasks, run.settings.per_task, scope=place, envelope=envelope)
        spent += time.monotonic() - began
        judged = run.judge.judge(solved, run.tasks)
        found = admit(group(solved, judged, run.tasks), run.admission)
        traces += solved
        verdicts += judged
        admission = Admission(groups=admission.groups + found.groups, outcomes=admission.outcomes + found.outcomes)
    return Gathered(traces=tuple(traces), verdicts=tuple(verdicts), admission=admission, issued=tuple(issued), rollout_s=spent)


def _publish(run: PolicyRun, policy: PolicyVersion, updated: Sequence[Updated]) -> PolicyVersion:
    return run.publisher.publish(run.stage, policy, tuple(u.update.batch for u in updated),
                                 optimizer=run.learner.optimizer.digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a minibatch stands: the first of its step, whose weights are the sampler's; one on which the KL is measured."""

    first: bool
    kl: bool


def _update(run: PolicyRun, packed: Packed, policy: PolicyVersion, place: Place) -> Updated:
    """Takes the optimizer step, records batch and update; a diverged step leaves its batch in the run."""
    before, objective = run.publisher.weights, run.objective
    if run.exploring is not None:
        packed, objective = run.exploring.take(packed, run.learner)
    if place.first and run.settings.fresh_optimizer:
        run.learner.optimizer.forget()
    try:
        measured = run.learner.update(packed, objective, where=packed.credit.scope)
    except Diverged:
        _record_batch(run, packed, policy)
        raise
    if place.first and "anchor_T" in all_reads(run.objective):
        packed = replace(packed, anchor_T=measured.logp_T)
    batch = _record_batch(run, packed, policy)
    moved = Moved(index=run.learner.optimizer.steps, before=before, after=run.publisher.rehash(), at_sampler=place.first,
                  kl_nats=run.learner.kl_to_start(packed, measured.logp_T) if place.kl else None)
    update = update_record(run.ledger, packed, measured, batch.id, moved)
    run.ledger.append(update)
    return Updated(update=update, measured=measured, packed=packed)


def _with_pretraining(run: PolicyRun, packed: Packed, at: int) -> Packed:
    """The minibatch with the demonstrations that the stage trains beside it, where it does."""
    if run.pretraining is None:
        return packed
    return replace(packed, mixed=mixed(run.pretraining(at), run.objective, max_tokens=run.settings.max_batch_tokens,
                                       max_length=run.settings.max_length))


def _record_batch(run: PolicyRun, packed: Packed, policy: PolicyVersion) -> Batch:
    batch = batch_record(run.ledger, packed, run.objective, policy=policy, dtype=run.learner.dtype)
    run.ledger.append_many([packed.credit, batch])
    return batch


def families(issued: Sequence[Dispatch], tasks: Mapping[TaskId, Task]) -> dict[str, str]:
    """Every attempt that was issued with its task's family."""
    return {attempt: tasks[TaskId(task)].family for one in issued for attempt, task in one.attempts()}
