"""Held-out evaluation of a policy, and the paired comparison with an earlier one."""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.evaluation.attempts import Attempt
from rollbook.evaluation.best_of import picked
from rollbook.evaluation.heldout import Evaluated, Protocol, compare, dispatch, evaluate, tasks_hash
from rollbook.experience.admission import outcome
from rollbook.ledger import close_census
from rollbook.orchestration.judges import judging
from rollbook.orchestration.session import Session
from rollbook.orchestration.stages.scoring import RewardModelScorer
from rollbook.orchestration.step import families
from rollbook.records import BestOf, EvalReport, PolicyVersion, ProtocolBundle, Rated, Scored, Task, content_id
from rollbook.records.recipe import Evaluate, SamplingSettings


def run(session: Session, name: str, stage: Evaluate) -> None:
    policy = session.take(stage.policy)
    protocol = protocol_of(session, stage.sampling, session.sides.heldout, ("heldout", stage.trials, stage.seed),
                           reward=stage.reward)
    done = evaluated(session, name, protocol, policy)
    if stage.compare_to is not None:
        before = next(r for r in session.ledger.records(EvalReport) if r.stage == stage.compare_to)
        comparison = compare(before, done.report, changed="policy")
        session.ledger.append(comparison)
        gain = comparison.gain
        session.progress.note(f"{name}: {100 * gain.estimate:+.1f} points over {stage.compare_to} "
                              f"(paired 95% interval {100 * gain.low:+.1f} to {100 * gain.high:+.1f}, {gain.count} problems)")
    if stage.scorer is not None:
        best = best_of(session, name, stage, done)
        last = max(best.picked, key=int)
        session.progress.note(f"{name}: best of {last} by {stage.scorer} {best.picked[last]:.1%}, one answer "
                              f"{best.picked['1']:.1%}, possible {best.possible[last]:.1%}")
    if done.report.unscored:
        session.progress.note(unscored(name, done.report))
    session.progress.step(1, {"eval/heldout_accuracy": done.report.accuracy.estimate})
    session.finish(name, "Evaluate", policy, policy)


def unscored(name: str, report: EvalReport) -> str:
    """Of how many tasks an accuracy is where some attempts have no verdict."""
    return (f"{name}: attempts without a verdict, in no mean: {report.unscored}; the accuracy is of {report.accuracy.count} of "
            f"{len(report.outcomes)} tasks")


def best_of(session: Session, name: str, stage: Evaluate, done: Evaluated) -> BestOf:
    """The evaluation's answers rated by a reward model, and what its picks are worth, on record."""
    model = RewardModelScorer.of(session, str(stage.scorer))
    rated = model.score(done.traces, session.tasks)
    ratings = {trace.id: one.value for trace, one in zip(done.traces, rated, strict=True) if isinstance(one, Rated)}
    tasks: dict[str, list[Attempt]] = {task.id: [] for task in session.sides.heldout}
    for trace, verdict in zip(done.traces, done.verdicts, strict=True):
        if isinstance(verdict, Scored) and verdict.vector.accuracy is not None and trace.id in ratings:
            tasks[trace.task].append(Attempt(accuracy=verdict.vector.accuracy, selector=ratings[trace.id]))
    found = picked(tasks, stage.trials)
    record = BestOf(stage=name, report=content_id(done.report), scorer=model.version.id, ratings=ratings, picked=found.picked,
                    possible=found.possible, gain=found.gain)
    session.ledger.append(record)
    return record


def protocol_of(session: Session, sampling: SamplingSettings, tasks: Sequence[Task], named: tuple[str, int, int], *,
                reward: str | None) -> Protocol:
    name, trials, seed = named
    used = judging(session, reward)
    bundle = ProtocolBundle(
        name=name, tasks=tasks_hash(tasks), task_count=len(tasks), environment=content_id(used.image),
        verifier=used.judge.digest, template=session.policy.tokenizer.template_digest, temperature=sampling.temperature,
        top_p=sampling.top_p, max_tokens=session.settings.tasks.max_tokens, trials=trials, seed=seed, aggregation="mean")
    return Protocol(bundle=bundle, tasks=tuple(tasks), rollouts=session.rollouts(sampling), judge=used.judge,
                    in_family=session.sides.manifest.in_family)


def evaluated(session: Session, name: str, protocol: Protocol, policy: PolicyVersion) -> Evaluated:
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
