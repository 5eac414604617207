"""Preference data: answers of a policy to one prompt, put in an order by a labeller that is a program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rollbook.orchestration.session import Session
from rollbook.orchestration.stages.attempts import Asked, attempts, first
from rollbook.records import Candidate, Ranking, Scored, TaskId, Trace, Verdict, digest
from rollbook.records.codec import canonical, encode
from rollbook.records.recipe import Comparisons, Oracle


def run(session: Session, name: str, stage: Comparisons) -> None:
    """Samples, labels, writes the rankings; answers without a verdict and prompts with fewer than two answers are left out."""
    policy = session.take(stage.policy)
    tasks = first(session, stage.tasks, stage.prompts)
    made = attempts(session, Asked(scope=name, tasks=tasks, samples=stage.per_task, sampling=stage.sampling, policy=policy))
    labeler = f"oracle:{digest(canonical(encode(stage.labeler)))[:16]}"
    by_task: dict[str, list[tuple[Trace, Verdict]]] = {}
    for trace, verdict in made:
        by_task.setdefault(trace.task, []).append((trace, verdict))
    whole = [(task, held) for task, held in ((task, labelled(session, stage.labeler, pairs)) for task, pairs in by_task.items())
             if len(held) >= 2]
    kept = len(whole) - math.ceil(len(whole) * stage.apart)
    tokenizer = session.policy.tokenizer
    rankings = [Ranking(task=TaskId(task), prompt_ids=tokenizer.prompt(session.tasks[TaskId(task)].prompt),
                        candidates=tuple(held), labeler=labeler, tokenizer=tokenizer.digest,
                        template=tokenizer.template_digest, heldout=place >= kept) for place, (task, held) in enumerate(whole)]
    session.ledger.write_table(f"{name}/rankings", rankings)
    session.progress.note(f"{name}: {len(rankings)} prompts ranked by {labeler}, {len(rankings) - kept} of them kept apart")
    session.progress.step(1, {})
    session.finish(name, "Comparisons", policy, policy)


def labelled(session: Session, oracle: Oracle, pairs: Sequence[tuple[Trace, Verdict]]) -> list[Candidate]:
    """The judged answers with the oracle's scores, noise included."""
    found = []
    for trace, verdict in pairs:
        if not isinstance(verdict, Scored) or not trace.action_count:
            continue
        measured = {"format": float((verdict.vector.value("format") or 0.0) > 0.0), "accuracy": verdict.vector.accuracy,
                    "tokens": trace.action_count / session.settings.tasks.max_tokens}
        truth = truth_of(oracle.rule, measured)
        if truth is not None:
            found.append(Candidate(trace=trace.id, token_ids=tuple(t for s in trace.policy_segments for t in s.token_ids),
                                   score=truth + noise(oracle, trace.id), truth=truth,
                                   correct=None if verdict.vector.accuracy is None else verdict.vector.accuracy == 1.0))
    return found


def truth_of(rule: Mapping[str, float], measured: Mapping[str, float | None]) -> float | None:
    """The weighted sum, None where a part that the rule weighs is not known."""
    parts = [(weight, measured[name]) for name, weight in sorted(rule.items()) if weight]
    if any(value is None for _, value in parts):
        return None
    return math.fsum(weight * value for weight, value in parts if value is not None)


def noise(oracle: Oracle, trace: str) -> float:
    """Gumbel noise of the answer with this id: differences of two are logistic, as Bradley and Terry have it."""
    if not oracle.noise:
        return 0.0
    drawn = np.random.default_rng([oracle.seed, int(digest(trace.encode())[:15], 16)]).gumbel()
    return oracle.noise * float(drawn)
