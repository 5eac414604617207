"""Full-vocabulary on-policy distillation: the student samples, its teachers say what they would have, exactly."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.orchestration.imitation import demonstrated
from rollbook.orchestration.recording import blob
from rollbook.orchestration.session import Session, TaskStream
from rollbook.orchestration.stages.attempts import Asked, attempts, pool
from rollbook.orchestration.stages.elements import batches, order
from rollbook.orchestration.state import POLICY, StepState, Trained, drop_state, restore_trained, save_state
from rollbook.records import Demonstration, ModuleUpdate, PolicyVersion, Trace, content_id
from rollbook.records.recipe import Distill
from rollbook.training.full_distill import DistillLearner, distill_update
from rollbook.training.optimizer import Optimizer
from rollbook.training.policy import Teachers

FAMILY = "distill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What one step learns from: sampled answers, and hard targets beside them."""

    traces: tuple[Trace, ...]
    shown: Sequence[Demonstration]

    @property
    def names(self) -> tuple[str, ...]:
        """The ids of all of it, answers first."""
        return (*(trace.id for trace in self.traces), *(content_id(one) for one in self.shown))


def run(session: Session, name: str, stage: Distill, state: StepState | None) -> None:
    """Samples, compares, updates and publishes, step by step."""
    started = session.versions[stage.policy] if state is not None else session.take(stage.policy)
    version = started if state is None else state.version
    learner = _learner(session, stage)
    held = {POLICY: Trained(module=learner.policy, optimizer=learner.optimizer)}
    if state is not None:
        restore_trained(session, held)
    hard = _hard(session, stage)
    stream = TaskStream(pool(session, stage.tasks), seed=session.settings.run.seed, cursor=state.cursor if state else 0,
                        weights=session.sides.weights)
    for number in range((state.step if state else 0) + 1, stage.steps + 1):
        tasks = [next(stream) for _ in range(stage.prompts)]
        made = attempts(session, Asked(scope=f"{name}/{number:06d}", tasks=tasks, samples=stage.per_task, sampling=stage.sampling,
                                       policy=version))
        batch = Given(traces=tuple(trace for trace, _ in made if trace.action_count), shown=hard[number - 1] if hard else ())
        version = _step(session, (name, stage, number), learner, batch, version)
        if number < stage.steps and (session.stop or number % stage.checkpoint_every == 0):
            save_state(session, held, stage=name, step=number, cursor=stream.cursor, version=version)
            session.check_stop()
    learner.optimizer.check_standing(learner.policy)
    session.finish(name, "Distill", started, version)
    drop_state(session.root)


def _learner(session: Session, stage: Distill) -> DistillLearner:
    decoder = session.policy.decoder
    teachers = Teachers(models={source: session.frozen(source) for source in sorted(set(stage.teachers.values()))},
                        stages=stage.teachers, families=lambda task: session.tasks[task].family)
    return DistillLearner(policy=decoder, teachers=teachers, optimizer=Optimizer.of(decoder, stage.optimizer, stage.steps),
                          vocabulary=session.policy.tokenizer.digest, dtype=session.dtype)


def _hard(session: Session, stage: Distill) -> list[Sequence[Demonstration]]:
    """The hard targets of every step, in an order that depends on the recipe's seed alone; none where the stage has none."""
    if stage.hard is None:
        return []
    pools = demonstrated(session, stage.hard.data)
    return batches(order(pools, stage.hard.data, stage.steps * stage.hard.batch, session.settings.run.seed), stage.hard.batch)


def _step(session: Session, at: tuple[str, Distill, int], learner: DistillLearner, batch: Given,
          version: PolicyVersion) -> PolicyVersion:
    """One optimizer step on the sampled answers, and its publication; the old version where nothing was sampled."""
    name, stage, number = at
    if not batch.traces:
        return version
    began, before = time.monotonic(), session.publisher.weights
    done = distill_update(learner, batch.traces, stage, where=f"{name} step {number}", shown=batch.shown)
    update = ModuleUpdate(
        stage=name, module=POLICY, family=FAMILY, step=learner.optimizer.steps, elements=batch.names,
        tensors=session.ledger.put(blob(done.tensors)), loss=done.loss, tokens=done.tokens, grad_norm=done.stepped.grad_norm,
        grad_clipped=done.stepped.clipped, learning_rate=done.stepped.learning_rate, weights_before=before,
        weights_after=session.publisher.rehash(), observed={"time/step_s": time.monotonic() - began})
    session.ledger.append(update)
    session.progress.step(number, {"module/loss": sum(done.loss.values())})
    return session.publisher.publish(name, version, (update.id,), optimizer=learner.optimizer.digest())
