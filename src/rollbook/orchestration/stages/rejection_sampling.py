"""Rejection sampling: many answers of one policy, of which the best become demonstrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import assert_never

from rollbook.orchestration.session import Session
from rollbook.orchestration.stages.attempts import Asked, attempts, first
from rollbook.orchestration.stages.scoring import RewardModelScorer
from rollbook.orchestration.stages.supervised import sampled_demonstration
from rollbook.records import Curation, Rated, Scored, Trace, Verdict
from rollbook.records.recipe import RejectionSampling

Judged = tuple[Trace, Verdict]


def run(session: Session, name: str, stage: RejectionSampling) -> None:
    """Samples, rates where a reward model is named, keeps, and writes the demonstrations."""
    policy = session.take(stage.policy)
    tasks = first(session, stage.tasks, stage.prompts)
    made = attempts(session, Asked(scope=name, tasks=tasks, samples=stage.samples, sampling=stage.sampling, policy=policy))
    scorer = RewardModelScorer.of(session, stage.scorer) if stage.scorer is not None else None
    ratings: dict[str, float] = {}
    if scorer is not None:
        given = scorer.score([trace for trace, _ in made], session.tasks)
        ratings = {trace.id: rated.value for (trace, _), rated in zip(made, given, strict=True) if isinstance(rated, Rated)}
    kept, rejected = chosen(made, stage, ratings)
    session.ledger.append(Curation(stage=name, policy=policy.id, kept=tuple(trace.id for trace, _ in kept), rejected=rejected,
                                   scorer=None if scorer is None else scorer.version.id, ratings=ratings))
    session.ledger.write_table(f"{name}/demonstrations", [sampled_demonstration(session, one, policy) for one in kept])
    session.progress.note(f"{name}: kept {len(kept)} of {len(made)} answers; rejected {rejected}")
    session.progress.step(1, {})
    session.finish(name, "RejectionSampling", policy, policy)


def chosen(made: Sequence[Judged], stage: RejectionSampling,
           ratings: Mapping[str, float]) -> tuple[list[Judged], dict[str, int]]:
    """The answers that are kept, in the order they were sampled, and how many were not, by reason."""
    kept: list[Judged] = []
    rejected: Counter[str] = Counter()
    by_task: dict[str, list[Judged]] = {}
    for trace, verdict in made:
        by_task.setdefault(trace.task, []).append((trace, verdict))
    for held in by_task.values():
        fit = [one for one in held if isinstance(one[1], Scored) and one[0].action_count and one[0].stop_reason != "length"]
        rejected["unfinished or unscored"] += len(held) - len(fit)
        match stage.keep:
            case "all":
                best = fit
            case "correct":
                right = [one for one in fit if isinstance(one[1], Scored) and one[1].vector.accuracy == 1.0]
                rejected["wrong"] += len(fit) - len(right)
                best = sorted(right, key=lambda one: one[0].action_count)[:stage.per_task]
                rejected["surplus"] += len(right) - len(best)
            case "best":
                rated = [one for one in fit if one[0].id in ratings]
                best = [max(rated, key=lambda one: ratings[one[0].id])] if rated else []
                rejected["not the best"] += len(fit) - len(best)
            case _:
                assert_never(stage.keep)
        names = {trace.id for trace, _ in best}
        kept += [one for one in held if one[0].id in names]
    return kept, {reason: count for reason, count in sorted(rejected.items()) if count}
