"""Preference data: answers of a policy to one prompt, put in an order by a labeller that is a program or a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rollbook.orchestration.session import Session
from rollbook.orchestration.stages.attempts import Asked, attempts, first
from rollbook.orchestration.stages.revise import constitution, spoken
from rollbook.records import Candidate, Ranking, RecipeError, Scored, TaskId, Trace, Unrated, Verdict, digest
from rollbook.records.codec import canonical, encode
from rollbook.records.recipe import Comparisons, Feedback, Oracle
from rollbook.rewards.judges import Constitution, Pair

Judged = tuple[Trace, Verdict]
SUREST = 1e-6           # a probability is kept this far from 0 and 1, so that its log-odds are finite


def run(session: Session, name: str, stage: Comparisons) -> None:
    """Samples, labels, writes the rankings; answers without a verdict and prompts with fewer than two answers are left out."""
    policy = session.take(stage.policy)
    tasks = first(session, stage.tasks, stage.prompts)
    made = attempts(session, Asked(scope=name, tasks=tasks, samples=stage.per_task, sampling=stage.sampling, policy=policy))
    labeler, label = _labeller(session, stage.labeler)
    by_task: dict[str, list[tuple[Trace, Verdict]]] = {}
    for trace, verdict in made:
        by_task.setdefault(trace.task, []).append((trace, verdict))
    whole = [(task, held) for task, held in ((task, label(pairs)) for task, pairs in by_task.items()) if len(held) >= 2]
    if not whole:
        raise RecipeError(f"{name} has no prompt with two labelled answers", got=f"{len(made)} answers, labelled by {labeler}",
                          why="answers were empty, had no verdict, or the model that labels gives its options no probability",
                          fix=f"look at the answers; let a policy label that answers in one letter: stages.{name}.labeler.policy")
    kept = len(whole) - math.ceil(len(whole) * stage.apart)
    tokenizer = session.policy.tokenizer
    rankings = [Ranking(task=TaskId(task), prompt_ids=tokenizer.prompt(session.tasks[TaskId(task)].prompt),
                        candidates=tuple(held), labeler=labeler, tokenizer=tokenizer.digest,
                        template=tokenizer.template_digest, heldout=place >= kept) for place, (task, held) in enumerate(whole)]
    session.ledger.write_table(f"{name}/rankings", rankings)
    session.progress.note(f"{name}: {len(rankings)} prompts ranked by {labeler}, {len(rankings) - kept} of them kept apart")
    session.progress.step(1, {})
    session.finish(name, "Comparisons", policy, policy)


def _labeller(session: Session, settings: Oracle | Feedback) -> tuple[str, Callable[[Sequence[Judged]], list[Candidate]]]:
    """Who labels, as the rankings name it, and how it makes candidates of the answers to one prompt."""
    if isinstance(settings, Oracle):
        return f"oracle:{digest(canonical(encode(settings)))[:16]}", lambda pairs: labelled(session, settings, pairs)
    asked = constitution(session, settings.policy, settings.principles)
    return f"model:{settings.policy}:{asked.stamp.digest[:16]}", lambda pairs: preferred(session, asked, pairs)


def preferred(session: Session, asked: Constitution, pairs: Sequence[Judged]) -> list[Candidate]:
    """Two answers with a model's label: their scores differ by the log-odds that the first is better; none without a label."""
    whole = [(trace, verdict) for trace, verdict in pairs if trace.action_count]
    if len(whole) != 2:
        return []
    texts = [spoken(session, trace) for trace, _ in whole]
    found = asked.label(Pair(task=session.tasks[whole[0][0].task].prompt[-1].content, one=texts[0], other=texts[1]))
    if isinstance(found, Unrated):
        return []
    sure = min(max(found.probability, SUREST), 1 - SUREST)
    return [Candidate(trace=trace.id, token_ids=tuple(t for s in trace.policy_segments for t in s.token_ids), score=score,
                      truth=None, correct=_correct(verdict))
            for (trace, verdict), score in zip(whole, (math.log(sure / (1 - sure)), 0.0), strict=True)]


def _correct(verdict: Verdict) -> bool | None:
    accuracy = verdict.vector.accuracy if isinstance(verdict, Scored) else None
    return None if accuracy is None else accuracy == 1.0


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
                                   score=graded(oracle, truth + noise(oracle, trace.id)), truth=truth,
                                   correct=_correct(verdict)))
    return found


def truth_of(rule: Mapping[str, float], measured: Mapping[str, float | None]) -> float | None:
    """The weighted sum, None where a part that the rule weighs is not known."""
    parts = [(weight, measured[name]) for name, weight in sorted(rule.items()) if weight]
    if any(value is None for _, value in parts):
        return None
    return math.fsum(weight * value for weight, value in parts if value is not None)


def graded(oracle: Oracle, score: float) -> float:
    """The score on the labeller's scale."""
    return score if oracle.grades is None else round(score / oracle.grades) * oracle.grades


def noise(oracle: Oracle, trace: str) -> float:
    """Gumbel noise of the answer with this id: differences of two are logistic, as Bradley and Terry have it."""
    if not oracle.noise:
        return 0.0
    drawn = np.random.default_rng([oracle.seed, int(digest(trace.encode())[:15], 16)]).gumbel()
    return oracle.noise * float(drawn)
