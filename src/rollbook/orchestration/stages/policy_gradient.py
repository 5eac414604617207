"""Reinforcement learning of one policy: the loop over `step`, its probes and its states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from typing import assert_never

from rollbook.experience.admission import AdmissionRule
from rollbook.experience.token_credit import of_group
from rollbook.models.decoder import Decoder
from rollbook.models.scalar import on_body
from rollbook.models.weights import load_into
from rollbook.objectives.settings import from_settings
from rollbook.orchestration.asynchronous.stage import Begun, gathering
from rollbook.orchestration.critic import MODULE as CRITIC
from rollbook.orchestration.curriculum import begin_step, end_step, stream_of, watched, written
from rollbook.orchestration.exploring import controller_of
from rollbook.orchestration.imitation import demonstrated
from rollbook.orchestration.judges import judging
from rollbook.orchestration.session import Session, TaskStream
from rollbook.orchestration.stages import evaluation
from rollbook.orchestration.stages.attempts import pool
from rollbook.orchestration.stages.elements import batches, order
from rollbook.orchestration.stages.modules import publish_module, scalar_of
from rollbook.orchestration.state import POLICY, StepState, Trained, drop_state, restore_trained, save_state
from rollbook.orchestration.step import PolicyRun, Source, StepSettings, Waves, step
from rollbook.records import Batch, Demonstration, Merged, ModuleUpdate, PolicyVersion
from rollbook.records.recipe import Alone, Fsdp2, PolicyGradient
from rollbook.rollouts.solve import Rollouts
from rollbook.tasks.curriculum import PoolStream
from rollbook.training.averaging import Average
from rollbook.training.optimizer import Optimizer
from rollbook.training.policy import PolicyLearner, Teachers
from rollbook.training.ranked import RankedLearner
from rollbook.training.value import CriticLearner, updates_of

IN_TRAINING = "average_in_training"


def run(session: Session, name: str, stage: PolicyGradient, state: StepState | None) -> None:
    started = session.versions[stage.policy]
    version = started if state is None else state.version
    if state is None:
        session.take(stage.policy)
    tasks = pool(session, stage.tasks)
    stream = stream_of(session, stage, tasks, state)
    run = watched(_policy_run(session, name, stage, resumed=state is not None), stream)
    with closing(run.learner), _source(session, run, stage, stream, Begun(first=started, resumed=state is not None)) as source:
        for number in range((state.step if state else 0) + 1, stage.steps + 1):
            begin_step(stream, number)
            version, report = step(run, source, version, number)
            end_step(session, name, stream, number)
            metrics = {**report.metrics, **report.observed}
            if stage.probe_every and number % stage.probe_every == 0 and number < stage.steps:
                metrics["eval/probe_accuracy"] = _probe(session, name, stage, version, number)
            if session.along is not None and session.along.due(number, stage.steps):
                with source.still():
                    session.along.ask(name, number, version)
            session.progress.step(number, metrics)
            last = number == stage.steps
            if not last and (session.stop or (stage.checkpoint_every and number % stage.checkpoint_every == 0)):
                with source.still():
                    save_state(session, trained(run), stage=name, step=number, cursor=stream.cursor, version=version,
                               files=written(stream))
                session.check_stop()
    if run.critic is not None:
        window = [one.id for one in session.ledger.records(ModuleUpdate) if one.stage == name and one.module == CRITIC]
        publish_module(session, name, CRITIC, trained(run)[CRITIC], (started, window))
    run.learner.optimizer.check_standing(session.policy.decoder)
    if run.learner.average is not None:
        version = _averaged(session, name, run.learner.average, version)
    session.finish(name, "PolicyGradient", started, version)
    drop_state(session.root)


def _averaged(session: Session, name: str, average: Average, last: PolicyVersion) -> PolicyVersion:
    """The moving average in the place of the weights it was taken of, published as a version of its own."""
    load_into(session.policy.decoder, {key: p.detach() for key, p in average.module.named_parameters()})
    how = session.ledger.append(Merged(stage=name, weights=session.publisher.rehash(), method=IN_TRAINING, parts={last.id: 1.0},
                                       base=None, decay=average.decay))
    return session.publisher.publish(name, last, (how,), optimizer=None)


def _source(session: Session, run: PolicyRun, stage: PolicyGradient, stream: TaskStream | PoolStream,
            begun: Begun) -> AbstractContextManager[Source]:
    """Waves that the learner waits for, or the loops that go on while it trains."""
    if stage.asynchrony is None:
        return nullcontext(Waves(tasks=stream))
    return gathering(session, run, stage, stage.asynchrony, stream, begun)


def _policy_run(session: Session, name: str, stage: PolicyGradient, *, resumed: bool) -> PolicyRun:
    objective = from_settings(dict(stage.objective))
    learner = _learner(session, stage, start=session.frozen(stage.policy) if resumed else None)
    learner.routing = stage.routing
    learner.average = None if stage.ema is None else Average(session.policy.decoder, stage.ema)
    if stage.reference is not None:
        learner.reference = session.frozen(stage.reference)
    if stage.teachers:
        learner.teachers = Teachers(models={source: session.frozen(source) for source in sorted(set(stage.teachers.values()))},
                                    stages=stage.teachers, families=lambda task: session.tasks[task].family)
    settings = StepSettings(prompts=stage.prompts, per_task=stage.per_task, groups=stage.groups, max_waves=stage.max_waves,
                            minibatches=stage.minibatches, max_batch_tokens=stage.max_batch_tokens,
                            max_length=stage.max_tokens or session.settings.tasks.max_tokens,
                            misfit_penalty=around.misfit_penalty if (around := session.settings.environment) else 0.0,
                            fresh_optimizer=stage.optimizer_reset == "publication",
                            observation_loss=stage.observation_loss, subagents_learn=stage.subagents_learn)
    run = PolicyRun(stage=name, ledger=session.ledger, rollouts=_rollouts(session, stage),
                    judge=judging(session, stage.reward).judge, learner=learner, publisher=session.publisher, objective=objective,
                    admission=admission(stage, objective.credit), settings=settings, tasks=session.tasks,
                    critic=_critic(session, stage), pretraining=_pretraining(session, stage),
                    exploring=controller_of(objective, name, session.ledger.records(Batch) if resumed else ()))
    if resumed:
        restore_trained(session, trained(run))
    return run


def _pretraining(session: Session, stage: PolicyGradient) -> Callable[[int], Sequence[Demonstration]] | None:
    """The demonstrations beside an optimizer step by its number, in an order that depends on the recipe's seed alone."""
    given = stage.pretraining
    if given is None:
        return None
    pools = demonstrated(session, given.data)
    total = stage.steps * stage.minibatches * given.batch
    parts = batches(order(pools, given.data, total, session.settings.run.seed), given.batch)
    return lambda at: parts[at]


def _learner(session: Session, stage: PolicyGradient, *, start: Decoder | None) -> PolicyLearner:
    """Where the recipe says that policies are trained: in this process, or on ranks."""
    decoder, total = session.policy.decoder, stage.steps * stage.minibatches
    match session.settings.run.learner:
        case Alone():
            return PolicyLearner(decoder, Optimizer.of(decoder, stage.optimizer, total), dtype=session.dtype,
                                 temperature=stage.sampling.temperature, start=start)
        case Fsdp2() as how:
            return RankedLearner(decoder, stage.optimizer, total, how=how, dtype=session.dtype,
                                 temperature=stage.sampling.temperature, start=start)
        case _:
            assert_never(session.settings.run.learner)


def admission(stage: PolicyGradient, rule: object) -> AdmissionRule:
    """A baseline of the group needs two scored attempts; what is dropped for being uniform is the recipe's choice."""
    return AdmissionRule(least=2 if of_group(rule) else 1, drop_uniform=stage.filter != "none",
                         by="accuracy" if stage.filter == "accuracy" else "reward")


def trained(run: PolicyRun) -> dict[str, Trained]:
    """The modules in training, by name."""
    held = {POLICY: Trained(module=run.learner.decoder, optimizer=run.learner.optimizer)}
    if run.learner.average is not None:
        held["average"] = Trained(module=run.learner.average.module, optimizer=None)
    if run.critic is not None:
        held[CRITIC] = Trained(module=run.critic.model, optimizer=run.critic.optimizer)
    return held


def _critic(session: Session, stage: PolicyGradient) -> CriticLearner | None:
    """The critic as it begins: a reward model, or the stage's first policy with a new head."""
    critic = stage.critic
    if critic is None:
        return None
    if critic.start is not None:
        model = scalar_of(session, critic.start, "reward_model")[1].requires_grad_(True)
    else:
        weights = session.weights(session.versions[stage.policy])
        model = on_body(session.policy.decoder, weights, layers=critic.head_layers, seed=session.settings.run.seed)
    total = updates_of(critic, steps=stage.steps, minibatches=stage.minibatches)
    return CriticLearner(model, critic, total=total, dtype=session.dtype)


def _rollouts(session: Session, stage: PolicyGradient) -> Rollouts:
    """How the stage samples: as the recipe says, within the stage's own budget where it has one."""
    made = replace(session.rollouts(stage.sampling), keep_support=stage.sampling_mask,
                   keep_routes=stage.routing == "sampled")
    return made if stage.max_tokens is None else replace(made, max_tokens=stage.max_tokens)


def _probe(session: Session, name: str, stage: PolicyGradient, version: PolicyVersion, number: int) -> float:
    """Accuracy on the first `probe` held-out problems as the policy is trained, for the curve only."""
    protocol = evaluation.protocol_of(session, stage.sampling, session.sides.heldout[:stage.probe],
                                      ("probe", 1, session.settings.run.seed), reward=stage.reward)
    return evaluation.evaluated(session, f"{name}/probe/{number:06d}", protocol, version).report.accuracy.estimate
