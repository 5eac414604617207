"""Supervised fine-tuning: the demonstrations it shows and the steps it takes."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from rollbook.orchestration.imitation import demonstrated
from rollbook.orchestration.recording import sft_tensors
from rollbook.orchestration.session import Session
from rollbook.orchestration.stages.attempts import pool
from rollbook.orchestration.stages.elements import order
from rollbook.orchestration.state import POLICY, StepState, Trained, drop_state, restore_trained, save_state
from rollbook.orchestration.surroundings import demonstrations_of
from rollbook.records import Demonstration, Message, PolicyVersion, Scored, SftReport, Span, Trace, Verdict, content_id
from rollbook.records.recipe import SamplingSettings, Sft
from rollbook.tasks import GENERAL_PROMPTS, Written, demonstrations, document
from rollbook.tasks.splits import apportion
from rollbook.training.optimizer import Optimizer
from rollbook.training.sft import sft_update

GENERAL = SamplingSettings(temperature=0.7, top_p=1.0, top_k=0, min_p=0.0)


def run(session: Session, name: str, stage: Sft, state: StepState | None) -> None:
    started = session.versions[stage.policy]
    if state is None:
        session.take(stage.policy)
        made = written(session, name, stage)
        if made:
            session.ledger.write_table(f"{name}/demonstrations", made)
    else:
        made = [] if alone(stage) else session.table(f"{name}/demonstrations", Demonstration)
    shown = learnt(session, stage, made) if stage.data else made
    optimizer = Optimizer.of(session.policy.decoder, stage.optimizer, stage.steps)
    trained = {POLICY: Trained(module=session.policy.decoder, optimizer=optimizer)}
    if state is not None:
        restore_trained(session, trained)
    for number in range(state.step if state else 0, stage.steps):
        began = time.monotonic()
        batch = shown[number * stage.batch:(number + 1) * stage.batch]
        done = sft_update(session.policy.decoder, optimizer, batch, dtype=session.dtype, max_tokens=stage.max_batch_tokens,
                          where=f"{name} step {number + 1}", repeats=stage.repeats)
        session.ledger.append(SftReport(
            stage=name, step=number + 1, demonstrations=tuple(content_id(d) for d in batch), tokens=done.tokens,
            repeated=None if stage.repeats is None else done.repeated,
            tensors=sft_tensors(session.ledger, batch, done.weight_T),
            loss_nats=done.loss_nats, grad_norm=done.stepped.grad_norm, learning_rate=done.stepped.learning_rate,
            observed={"time/step_s": time.monotonic() - began}))
        session.progress.step(number + 1, {"sft/loss_nats": done.loss_nats})
        if session.along is not None and session.along.due(number + 1, stage.steps):
            session.along.ask(name, number + 1, None)
        if session.stop:
            save_state(session, trained, stage=name, step=number + 1, cursor=0, version=started)
            session.check_stop()
    session.publisher.rehash()
    optimizer.check_standing(session.policy.decoder)
    window = tuple(content_id(report) for report in session.ledger.records(SftReport) if report.stage == name)
    ended = session.publisher.publish(name, started, window, optimizer=optimizer.digest())
    session.finish(name, "Sft", started, ended)
    drop_state(session.root)


def written(session: Session, name: str, stage: Sft) -> list[Demonstration]:
    """Reasoning traces by a program and general answers by the start policy, shuffled by the run's seed."""
    general = _general(stage)
    tokenizer = session.policy.tokenizer
    stop = min(tokenizer.stop_ids)
    seed = session.settings.run.seed
    made = []
    count, tasks = by_programs(stage), pool(session, stage.tasks)
    if session.around is not None and count:
        made += demonstrations_of(session.around, tasks, tokenizer, count=count, seed=seed, mixture=stage.traces)
        count = 0
    for one in demonstrations(tasks, count=count, seed=seed, mixture=stage.traces) if count else ():
        asked = (session, one.task.id, one.task.prompt)
        made.append(plain(session, one, stage.fim) if stage.form == "text" else
                    demonstration(*asked, ((*tokenizer.encode(one.text), stop), one.author)))
    if general or not stage.data:
        made += _answered(session, name, general)
    random.Random(seed).shuffle(made)
    return made


def _answered(session: Session, name: str, general: int) -> list[Demonstration]:
    """General prompts in turn, answered by the policy as it is."""
    tokenizer = session.policy.tokenizer
    rollouts = session.rollouts(GENERAL)
    prompts = [(Message(role="user", content=text, origin="program"),) for text in GENERAL_PROMPTS]
    asked = [index % len(prompts) for index in range(general)]
    session.ledger.append(rollouts.envelope(session.publisher.weights))
    answers = rollouts.complete([tokenizer.prompt(prompts[index]) for index in asked], scope=f"{name}/general")
    return [demonstration(session, f"general:{index}", prompts[index], (answer.token_ids, "policy:start"))
            for index, answer in zip(asked, answers, strict=True)]


def alone(stage: Sft) -> bool:
    """Whether a stage shows nothing but what earlier stages left."""
    return bool(stage.data) and not stage.traces and not _general(stage)


def by_programs(stage: Sft) -> int:
    """How many of the demonstrations programs write: all that is not general, or their share of the mixture with `data`."""
    rest = stage.steps * stage.batch - _general(stage)
    if not (stage.traces and stage.data):
        return rest if stage.traces else 0
    return apportion(rest, {"traces": sum(stage.traces.values()), "data": sum(stage.data.values())})["traces"]


def _general(stage: Sft) -> int:
    return round(stage.steps * stage.batch * stage.general_share)


def learnt(session: Session, stage: Sft, made: Sequence[Demonstration]) -> list[Demonstration]:
    """All that the stage shows, in its order: what it wrote itself, and passes over what the stages in `data` left."""
    seed, total = session.settings.run.seed, stage.steps * stage.batch
    shown = [*made, *order(demonstrated(session, stage.data), stage.data, total - len(made), seed)]
    random.Random(seed).shuffle(shown)
    return shown


def sampled_demonstration(session: Session, made: tuple[Trace, Verdict], policy: PolicyVersion) -> Demonstration:
    """An answer that a policy sampled, with its very tokens; validated where the verifier found it correct."""
    trace, verdict = made
    task, tokenizer = session.tasks[trace.task], session.policy.tokenizer
    body = tuple(token for segment in trace.policy_segments for token in segment.token_ids)
    right = isinstance(verdict, Scored) and verdict.vector.accuracy == 1.0
    spoken = tokenizer.decode([token for token in body if token not in tokenizer.stop_ids])
    answer = Message(role="assistant", content=spoken, origin="policy")
    return Demonstration(task=task.id, messages=(*task.prompt, answer), token_ids=trace.prompt_ids + body,
                         tokenizer=tokenizer.digest, template=tokenizer.template_digest, author=f"policy:{policy.stage}",
                         owners=(Span(owner="user", length=len(trace.prompt_ids)), Span(owner="policy", length=len(body))),
                         validation="verified" if right else "none")


def plain(session: Session, written: Written, fim: float) -> Demonstration:
    """A document between two end tokens: everything after the first is learnt."""
    tokenizer, text = session.policy.tokenizer, document(written, fim=fim, seed=session.settings.run.seed)
    stop = min(tokenizer.stop_ids)
    ids = (stop, *tokenizer.encode(text), stop)
    return Demonstration(task=written.task.id, messages=(Message(role="assistant", content=text, origin="program"),),
                         token_ids=ids, owners=(Span(owner="template", length=1), Span(owner="policy", length=len(ids) - 1)),
                         tokenizer=tokenizer.digest, template=tokenizer.template_digest, author=written.author,
                         validation="correct by construction")


def demonstration(session: Session, task: str, asked: tuple[Message, ...],
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
