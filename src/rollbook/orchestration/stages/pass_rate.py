"""Pass-rate selection: which training tasks a policy solves sometimes and not always."""

from __future__ import annotations

from rollbook.orchestration.session import Session
from rollbook.orchestration.stages.attempts import Asked, attempts, first
from rollbook.records import Scored, Selection, Verdict
from rollbook.records.recipe import PassRate
from rollbook.tasks import select


def run(session: Session, name: str, stage: PassRate) -> None:
    policy = session.take(stage.policy)
    candidates = first(session, stage.tasks, stage.candidates)
    made = attempts(session, Asked(scope=name, tasks=candidates, samples=stage.samples, sampling=stage.sampling, policy=policy,
                                   reward=stage.reward))
    accuracies: dict[str, list[float | None]] = {task.id: [] for task in candidates}
    for trace, verdict in made:
        accuracies[trace.task].append(_accuracy(verdict))
    chosen = select(candidates, {task: tuple(values) for task, values in accuracies.items()}, stage.low, stage.high)
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
