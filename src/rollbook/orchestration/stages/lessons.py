"""Lessons in criticising, revising and choosing: a policy's answers and their verdicts become demonstrations, by a program."""

from __future__ import annotations

from rollbook.orchestration.session import Session
from rollbook.orchestration.stages.attempts import Asked, attempts, first
from rollbook.orchestration.stages.revise import judged
from rollbook.orchestration.stages.supervised import demonstration
from rollbook.records import Message, RecipeError
from rollbook.records.recipe import Lessons
from rollbook.rewards.judges.lessons import AUTHOR, Told, lessons, told
from rollbook.tasks import solution


def run(session: Session, name: str, stage: Lessons) -> None:
    """Samples answers to each task and writes what they teach; an answer that was cut or has no verdict teaches nothing."""
    policy = session.take(stage.policy)
    tasks = first(session, stage.tasks, stage.prompts)
    made = attempts(session, Asked(scope=name, tasks=tasks, samples=stage.answers, sampling=stage.sampling, policy=policy))
    tokenizer, seed, principles = session.policy.tokenizer, session.settings.run.seed, judged(stage.principles)
    stop = min(tokenizer.stop_ids)
    answers: dict[str, list[Told]] = {task.id: [] for task in tasks}
    for trace, verdict in made:
        if (known := told(trace, verdict)) is not None:
            answers[trace.task].append(known)
    written = []
    for task in tasks:
        for one in lessons(task.prompt[-1].content, answers[task.id], solution(task, stage.style, seed), principles, seed=seed,
                           teach=stage.teach):
            asked = (Message(role="user", content=one.question, origin="program"),)
            written.append(demonstration(session, f"lesson:{one.kind}:{task.id}", asked,
                                         ((*tokenizer.encode(one.answer), stop), AUTHOR)))
    if not written:
        raise RecipeError(f"{name} wrote no lesson", got=f"{len(made)} answers, cut, unjudged, or no two of unlike worth",
                          why="there is nothing to teach", fix="raise tasks.max_tokens, or begin from a policy that answers")
    session.ledger.write_table(f"{name}/demonstrations", written)
    session.progress.note(f"{name}: {len(written)} lessons from {len(made)} answers")
    session.progress.step(1, {})
    session.finish(name, "Lessons", policy, policy)
