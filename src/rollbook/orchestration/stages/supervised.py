"""Supervised fine-tuning: the demonstrations it shows and the steps it takes."""

from __future__ import annotations

import random
import time

from rollbook.orchestration.recording import sft_tensors
from rollbook.orchestration.session import Session
from rollbook.orchestration.state import POLICY, StepState, Trained, drop_state, restore_trained, save_state
from rollbook.records import Demonstration, Message, SftReport, Span, content_id
from rollbook.records.recipe import SamplingSettings, Sft
from rollbook.tasks import GENERAL_PROMPTS, demonstrations
from rollbook.training.optimizer import Optimizer
from rollbook.training.sft import sft_update

GENERAL = SamplingSettings(temperature=0.7, top_p=1.0, top_k=0, min_p=0.0)


def run(session: Session, name: str, stage: Sft, state: StepState | None) -> None:
    started = session.versions[stage.policy]
    if state is None:
        session.take(stage.policy)
        shown = written(session, name, stage)
        session.ledger.write_table(f"{name}/demonstrations", shown)
    else:
        shown = list(session.ledger.records(Demonstration))
    optimizer = Optimizer(session.policy.decoder.parameters(), stage.optimizer, stage.steps)
    trained = {POLICY: Trained(module=session.policy.decoder, optimizer=optimizer)}
    if state is not None:
        restore_trained(session, trained)
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
            save_state(session, trained, stage=name, step=number + 1, cursor=0, version=started)
            session.check_stop()
    session.publisher.rehash()
    window = tuple(content_id(report) for report in session.ledger.records(SftReport) if report.stage == name)
    ended = session.publisher.publish(name, started, window, optimizer=optimizer.digest())
    session.finish(name, "Sft", started, ended)
    drop_state(session.root)


def written(session: Session, name: str, stage: Sft) -> list[Demonstration]:
    """Reasoning traces by a program and general answers by the start policy, shuffled by the run's seed."""
    total = stage.steps * stage.batch
    general = round(total * stage.general_share)
    tokenizer = session.policy.tokenizer
    stop = min(tokenizer.stop_ids)
    seed = session.settings.run.seed
    made = []
    for task, text, author in demonstrations(session.sides.train, count=total - general, seed=seed, mixture=stage.traces):
        made.append(demonstration(session, task.id, task.prompt, ((*tokenizer.encode(text), stop), author)))
    rollouts = session.rollouts(GENERAL)
    prompts = [(Message(role="user", content=text, origin="program"),) for text in GENERAL_PROMPTS]
    asked = [index % len(prompts) for index in range(general)]
    session.ledger.append(rollouts.envelope(session.publisher.weights))
    answers = rollouts.complete([tokenizer.prompt(prompts[index]) for index in asked], scope=f"{name}/general")
    for index, answer in zip(asked, answers, strict=True):
        made.append(demonstration(session, f"general:{index}", prompts[index], (answer.token_ids, "policy:start")))
    random.Random(seed).shuffle(made)
    return made


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
