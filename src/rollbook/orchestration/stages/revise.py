"""Critique and revision by principles: a policy's answers become demonstrations of what it made of them itself."""

from __future__ import annotations

from collections.abc import Mapping

from rollbook.orchestration.session import Session
from rollbook.orchestration.stages.attempts import Asked, attempts, first
from rollbook.orchestration.stages.supervised import demonstration
from rollbook.records import RecipeError, Revised, Revision, Trace, Unrated
from rollbook.records.recipe import Principle, Revise
from rollbook.rewards.judges import Constitution, LocalChat
from rollbook.rollouts.engines.embedded import EmbeddedEngine


def run(session: Session, name: str, stage: Revise) -> None:
    """Samples, lets the policy criticise and revise, writes what came of it; what could not be revised is left out."""
    policy = session.take(stage.policy)
    tasks = first(session, stage.tasks, stage.prompts)
    made = attempts(session, Asked(scope=name, tasks=tasks, samples=1, sampling=stage.sampling, policy=policy))
    whole = [trace for trace, _ in made if trace.action_count and trace.stop_reason not in ("length", "cancelled", "failed")]
    names = sorted(stage.principles)
    chat = LocalChat(session.engine, session.policy.tokenizer, name=f"policy:{stage.policy}", weights=session.publisher.weights,
                     context=session.settings.model.context, temperature=stage.sampling.temperature,
                     seed=session.settings.run.seed)
    asked = Constitution(chat, judged(stage.principles), max_tokens=stage.max_tokens)
    pairs = [(session.tasks[trace.task].prompt[-1].content, spoken(session, trace)) for trace in whole]
    found = asked.revise_all(pairs, seed=session.settings.run.seed, rounds=stage.rounds)
    kept: list[Revised] = []
    lost = len(made) - len(whole)
    for trace, one in zip(whole, found, strict=True):
        if isinstance(one, Unrated):
            lost += 1
            continue
        kept.append(Revised(stage=name, task=trace.task, trace=trace.id, first=one.first, rounds=tuple(
            Revision(principle=names[each.principle], critique=each.critique, response=each.response) for each in one.rounds)))
    if not kept:
        raise RecipeError(f"{name} revised no answer", got=f"{lost} of {len(made)} were cut, empty or could not be revised",
                          why="there is nothing to learn from", fix=f"raise stages.{name}.max_tokens or model.context")
    session.ledger.write_table(f"{name}/revisions", kept)
    tokenizer, stop = session.policy.tokenizer, min(session.policy.tokenizer.stop_ids)
    session.ledger.write_table(f"{name}/demonstrations", [
        demonstration(session, one.task, session.tasks[one.task].prompt,
                      ((*tokenizer.encode(one.final), stop), f"revised:{stage.policy}")) for one in kept])
    session.progress.note(f"{name}: revised {len(kept)} of {len(made)} answers {stage.rounds} times")
    session.progress.step(1, {})
    session.finish(name, "Revise", policy, policy)


def judged(principles: Mapping[str, Principle]) -> list[Principle]:
    """The recipe's principles in the order of their names."""
    return [one for _, one in sorted(principles.items())]


def spoken(session: Session, trace: Trace) -> str:
    """What the policy said, without its end of turn."""
    tokenizer = session.policy.tokenizer
    return tokenizer.decode([token for segment in trace.policy_segments for token in segment.token_ids
                             if token not in tokenizer.stop_ids])


def constitution(session: Session, source: str, principles: Mapping[str, Principle]) -> Constitution:
    """The principles as the policy of stage `source` applies them, in an engine of its own."""
    decoder = session.frozen(source)
    tokenizer = session.policy.tokenizer
    engine = EmbeddedEngine(stop_ids=tokenizer.stop_ids, dtype=session.dtype, decode=tokenizer.decode,
                            device=session.policy.decoder.device)
    chat = LocalChat(engine, tokenizer, name=f"policy:{source}", weights=engine.load(decoder, session.versions[source].index),
                     context=session.settings.model.context)
    return Constitution(chat, judged(principles))
