"""The stages of a pipeline: evaluation, supervised fine-tuning, pass-rate selection, policy gradient."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import assert_never

from rollbook.evaluation.heldout import Evaluated, Protocol, compare, dispatch, evaluate, tasks_hash
from rollbook.experience.admission import AdmissionRule, outcome
from rollbook.ledger import close_census
from rollbook.objectives.settings import from_settings
from rollbook.orchestration.recording import sft_tensors
from rollbook.orchestration.session import Session, TaskStream
from rollbook.orchestration.state import StepState, drop_state, restore_optimizer, save_state
from rollbook.orchestration.step import PolicyRun, StepSettings, families, step
from rollbook.records import (
    Demonstration,
    EvalReport,
    Message,
    PolicyVersion,
    ProtocolBundle,
    RecipeError,
    Scored,
    Selection,
    SftReport,
    Span,
    Task,
    Verdict,
    content_id,
)
from rollbook.records.recipe import Evaluate, PassRate, PolicyGradient, SamplingSettings, Sft, Stage
from rollbook.tasks import GENERAL_PROMPTS, demonstrations, select
from rollbook.training.optimizer import Optimizer
from rollbook.training.policy import PolicyLearner
from rollbook.training.sft import sft_update

GENERAL = SamplingSettings(temperature=0.7, top_p=1.0, top_k=0, min_p=0.0)


def run_stage(session: Session, name: str, stage: Stage, state: StepState | None) -> None:
    """Runs one stage to its end; `state` is where an interrupted run of it stood."""
    match stage:
        case Evaluate():
            _evaluate(session, name, stage)
        case Sft():
            _sft(session, name, stage, state)
        case PassRate():
            _pass_rate(session, name, stage)
        case PolicyGradient():
            _policy_gradient(session, name, stage, state)
        case _:
            assert_never(stage)


def steps_of(stage: Stage) -> int:
    """How many steps a stage shows in its progress."""
    return stage.steps if isinstance(stage, (Sft, PolicyGradient)) else 1


def _evaluate(session: Session, name: str, stage: Evaluate) -> None:
    policy = session.take(stage.policy)
    protocol = _protocol(session, stage.sampling, session.sides.heldout, ("heldout", stage.trials, stage.seed))
    done = _evaluated(session, name, protocol, policy)
    if stage.compare_to is not None:
        before = next(r for r in session.ledger.records(EvalReport) if r.stage == stage.compare_to)
        comparison = compare(before, done.report, changed="policy")
        session.ledger.append(comparison)
        gain = comparison.gain
        session.progress.note(f"{name}: {100 * gain.estimate:+.1f} points over {stage.compare_to} "
                              f"(paired 95% interval {100 * gain.low:+.1f} to {100 * gain.high:+.1f}, {gain.count} problems)")
    session.progress.step(1, {"eval/heldout_accuracy": done.report.accuracy.estimate})
    session.finish(name, "Evaluate", policy, policy)


def _protocol(session: Session, sampling: SamplingSettings, tasks: Sequence[Task], named: tuple[str, int, int]) -> Protocol:
    name, trials, seed = named
    bundle = ProtocolBundle(
        name=name, tasks=tasks_hash(tasks), task_count=len(tasks), environment=content_id(session.image),
        verifier=session.judge.digest, template=session.policy.tokenizer.template_digest, temperature=sampling.temperature,
        top_p=sampling.top_p, max_tokens=session.settings.tasks.max_tokens, trials=trials, seed=seed, aggregation="mean")
    return Protocol(bundle=bundle, tasks=tuple(tasks), rollouts=session.rollouts(sampling), judge=session.judge,
                    in_family=session.sides.manifest.in_family)


def _evaluated(session: Session, name: str, protocol: Protocol, policy: PolicyVersion) -> Evaluated:
    """The evaluation with its record: protocol and attempts before the first token, trajectories, census, report."""
    tasks, scope = session.tasks, f"eval/{name}"
    envelope = protocol.rollouts.envelope(policy.weights)
    issued = dispatch(protocol, envelope)
    session.ledger.append_many([envelope, protocol.bundle, issued])
    done = evaluate(protocol, policy, stage=name)
    outcomes = [outcome(t, v, tasks[t.task].family) for t, v in zip(done.traces, done.verdicts, strict=True)]
    session.ledger.write_traces(scope, done.traces, done.verdicts, outcomes)
    session.ledger.append_many([close_census(scope, families([issued], tasks), outcomes), done.report])
    return done


def _sft(session: Session, name: str, stage: Sft, state: StepState | None) -> None:
    started = session.versions[stage.policy]
    if state is None:
        session.take(stage.policy)
        shown = _demonstrations(session, name, stage)
        session.ledger.write_table(f"{name}/demonstrations", shown)
    else:
        shown = list(session.ledger.records(Demonstration))
    optimizer = Optimizer(session.policy.decoder.parameters(), stage.optimizer, stage.steps)
    if state is not None:
        restore_optimizer(session, optimizer)
    for number in range(state.step if state else 0, stage.steps):
        began = time.monotonic()
        batch = shown[number * stage.batch:(number + 1) * stage.batch]
        done = sft_update(session.policy.decoder, optimizer, batch, dtype=session.dtype, max_tokens=stage.max_batch_tokens,
                          where=f"{name} step {number + 1}")
        session.ledger.append(SftReport(
            stage=name, step=number + 1, demonstrations=tuple(content_id(d) for d in batch), tokens=done.tokens,
            tensors=sft_tensors(session.ledger, batch, done.weight_T),
            loss_nats=done.loss_nats, grad_norm=done.stepped.grad_norm, learning_rate=done.stepped.learning_rate,
            observed={"time/step_s": time.monotonic() - began}))
        session.progress.step(number + 1, {"sft/loss_nats": done.loss_nats})
        if session.stop:
            save_state(session, optimizer, stage=name, step=number + 1, cursor=0, version=started)
            session.check_stop()
    session.publisher.rehash()
    window = tuple(content_id(report) for report in session.ledger.records(SftReport) if report.stage == name)
    ended = session.publisher.publish(name, started, window, optimizer=optimizer.digest())
    session.finish(name, "Sft", started, ended)
    drop_state(session.root)


def _demonstrations(session: Session, name: str, stage: Sft) -> list[Demonstration]:
    """Reasoning traces by a program and general answers by the start policy, shuffled by the run's seed."""
    total = stage.steps * stage.batch
    general = round(total * stage.general_share)
    tokenizer = session.policy.tokenizer
    stop = min(tokenizer.stop_ids)
    seed = session.settings.run.seed
    made = []
    for task, text, author in demonstrations(session.sides.train, count=total - general, seed=seed, mixture=stage.traces):
        made.append(_demonstration(session, task.id, task.prompt, ((*tokenizer.encode(text), stop), author)))
    rollouts = session.rollouts(GENERAL)
    prompts = [(Message(role="user", content=text, origin="program"),) for text in GENERAL_PROMPTS]
    asked = [index % len(prompts) for index in range(general)]
    session.ledger.append(rollouts.envelope(session.publisher.weights))
    answers = rollouts.complete([tokenizer.prompt(prompts[index]) for index in asked], scope=f"{name}/general")
    for index, answer in zip(asked, answers, strict=True):
        made.append(_demonstration(session, f"general:{index}", prompts[index], (answer.token_ids, "policy:start")))
    random.Random(seed).shuffle(made)
    return made


def _demonstration(session: Session, task: str, asked: tuple[Message, ...],
                   written: tuple[tuple[int, ...], str]) -> Demonstration:
    body, author = written
    tokenizer = session.policy.tokenizer
    prompt = tokenizer.prompt(asked)
    spoken = tokenizer.decode([token for token in body if token not in tokenizer.stop_ids])
    answer = Message(role="assistant", content=spoken, origin="program" if author.startswith("program") else "policy")
    return Demonstration(task=task, messages=(*asked, answer), token_ids=prompt + body, tokenizer=tokenizer.digest,
                         owners=(Span(owner="user", length=len(prompt)), Span(owner="policy", length=len(body))),
                         template=tokenizer.template_digest, author=author,
                         validation="correct by construction" if author.startswith("program") else "none")


def _pass_rate(session: Session, name: str, stage: PassRate) -> None:
    policy = session.take(stage.policy)
    stream = TaskStream(session.sides.train, seed=session.settings.run.seed, cursor=0)
    candidates = [next(stream) for _ in range(min(stage.candidates, len(session.sides.train)))]
    rollouts = session.rollouts(stage.sampling)
    envelope = rollouts.envelope(policy.weights)
    issued = rollouts.dispatch(candidates, stage.samples, scope=name, envelope=envelope)
    session.ledger.append_many([envelope, issued])
    traces = rollouts.solve(candidates, stage.samples, scope=name, envelope=envelope)
    verdicts = session.judge.judge(traces, session.tasks)
    accuracies: dict[str, list[float | None]] = {task.id: [] for task in candidates}
    for trace, verdict in zip(traces, verdicts, strict=True):
        accuracies[trace.task].append(_accuracy(verdict))
    chosen = select(candidates, {task: tuple(values) for task, values in accuracies.items()}, stage.low, stage.high)
    outcomes = [outcome(t, v, session.tasks[t.task].family) for t, v in zip(traces, verdicts, strict=True)]
    session.ledger.write_traces(name, traces, verdicts, outcomes)
    session.ledger.append(close_census(name, families([issued], session.tasks), outcomes))
    kept = tuple(task.id for task in chosen.kept)
    session.ledger.append(Selection(stage=name, policy=policy.id, kept=kept, pass_counts=dict(chosen.pass_counts),
                                    samples=stage.samples, rejected=dict(chosen.rejected)))
    session.selections[name] = kept
    session.progress.note(f"{name}: kept {len(kept)} of {len(candidates)} tasks solved {stage.low} to {stage.high} "
                          f"times of {stage.samples}; rejected {dict(chosen.rejected)}")
    session.progress.step(1, {})
    session.finish(name, "PassRate", policy, policy)


def _accuracy(verdict: Verdict) -> float | None:
    return verdict.vector.accuracy if isinstance(verdict, Scored) else None


def _policy_gradient(session: Session, name: str, stage: PolicyGradient, state: StepState | None) -> None:
    started = session.versions[stage.policy]
    version = started if state is None else state.version
    if state is None:
        session.take(stage.policy)
    pool = _pool(session, stage)
    stream = TaskStream(pool, seed=session.settings.run.seed, cursor=state.cursor if state else 0)
    run = _policy_run(session, name, stage, resumed=state is not None)
    for number in range((state.step if state else 0) + 1, stage.steps + 1):
        version, report = step(run, stream, version, number)
        metrics = {**report.metrics, **report.observed}
        if stage.probe_every and number % stage.probe_every == 0 and number < stage.steps:
            metrics["eval/probe_accuracy"] = _probe(session, name, stage, version, number)
        session.progress.step(number, metrics)
        last = number == stage.steps
        if not last and (session.stop or (stage.checkpoint_every and number % stage.checkpoint_every == 0)):
            save_state(session, run.learner.optimizer, stage=name, step=number, cursor=stream.cursor, version=version)
            session.check_stop()
    session.finish(name, "PolicyGradient", started, version)
    drop_state(session.root)


def _pool(session: Session, stage: PolicyGradient) -> tuple[Task, ...]:
    if stage.tasks == "train":
        return session.sides.train
    kept = set(session.selections[stage.tasks])
    if not kept:
        raise RecipeError(f"stage {stage.tasks} selected no task to train on", got="an empty selection",
                          why="no candidate was solved as often as its bounds ask",
                          fix=f"widen --set stages.{stage.tasks}.low and .high, or raise .candidates, in a new run")
    return tuple(task for task in session.sides.train if task.id in kept)


def _policy_run(session: Session, name: str, stage: PolicyGradient, *, resumed: bool) -> PolicyRun:
    objective = from_settings(dict(stage.objective))
    optimizer = Optimizer(session.policy.decoder.parameters(), stage.optimizer, stage.steps * stage.minibatches)
    learner = PolicyLearner(session.policy.decoder, optimizer, dtype=session.dtype, temperature=stage.sampling.temperature,
                            start=session.frozen(stage.policy) if resumed else None)
    if resumed:
        restore_optimizer(session, optimizer)
    settings = StepSettings(prompts=stage.prompts, per_task=stage.per_task, groups=stage.groups, max_waves=stage.max_waves,
                            minibatches=stage.minibatches, max_batch_tokens=stage.max_batch_tokens,
                            max_length=session.settings.tasks.max_tokens)
    return PolicyRun(stage=name, ledger=session.ledger, rollouts=session.rollouts(stage.sampling), judge=session.judge,
                     learner=learner, publisher=session.publisher, objective=objective,
                     admission=AdmissionRule(least=2, drop_uniform=True), settings=settings, tasks=session.tasks)


def _probe(session: Session, name: str, stage: PolicyGradient, version: PolicyVersion, number: int) -> float:
    """Accuracy on the first `probe` held-out problems as the policy is trained, for the curve only."""
    protocol = _protocol(session, stage.sampling, session.sides.heldout[:stage.probe], ("probe", 1, session.settings.run.seed))
    return _evaluated(session, f"{name}/probe/{number:06d}", protocol, version).report.accuracy.estimate
