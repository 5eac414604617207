"""Pass-rate selection: which training tasks a policy solves sometimes and not always."""

from __future__ import annotations

from rollbook.experience.admission import outcome
from rollbook.ledger import close_census
from rollbook.orchestration.session import Session, TaskStream
from rollbook.orchestration.step import families
from rollbook.records import Scored, Selection, Verdict
from rollbook.records.recipe import PassRate
from rollbook.tasks import select


def run(session: Session, name: str, stage: PassRate) -> None:
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
