"""Training on recorded elements (rankings, pairs): the loop that all such families share, and the order of what it shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from rollbook.models.weights import weight_hash
from rollbook.orchestration.recording import blob
from rollbook.orchestration.session import Session
from rollbook.orchestration.state import POLICY, StepState, Trained, restore_trained, save_state
from rollbook.records import ModuleUpdate, PolicyVersion, RecipeError
from rollbook.tasks.splits import apportion
from rollbook.training.family import FamilyStep

E = TypeVar("E")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Generic[E]):
    """What is trained and on what: `take` is one optimizer step on some elements, `name_of` names an element in the record.

    `trained` holds the module under its name, and the policy, which the stage began as `version`.
    """

    stage: str
    module: str
    family: str
    shown: Sequence[Sequence[E]]
    name_of: Callable[[E], str]
    take: Callable[[Sequence[E], str], FamilyStep]
    trained: Mapping[str, Trained]
    version: PolicyVersion


def train(session: Session, work: Work[E], state: StepState | None) -> tuple[str, ...]:
    """Takes the steps that are still to be taken; returns the ids of all the stage's updates, in order."""
    if state is not None:
        restore_trained(session, work.trained)
    for number in range(state.step if state else 0, len(work.shown)):
        began = time.monotonic()
        _step(session, work, number + 1, began)
        if session.stop and number + 1 < len(work.shown):
            save_state(session, work.trained, stage=work.stage, step=number + 1, cursor=0, version=work.version)
            session.check_stop()
    return tuple(one.id for one in session.ledger.records(ModuleUpdate)
                 if one.stage == work.stage and one.module == work.module)


def _step(session: Session, work: Work[E], number: int, began: float) -> None:
    batch = work.shown[number - 1]
    before = _hash(session, work)
    done = work.take(batch, f"{work.stage} step {number}")
    after = session.publisher.rehash() if work.module == POLICY else _hash(session, work)
    session.ledger.append(ModuleUpdate(
        stage=work.stage, module=work.module, family=work.family, step=number, elements=tuple(map(work.name_of, batch)),
        tensors=session.ledger.put(blob(done.tensors)), loss=done.loss, tokens=done.tokens, grad_norm=done.stepped.grad_norm,
        grad_clipped=done.stepped.clipped, learning_rate=done.stepped.learning_rate, weights_before=before, weights_after=after,
        observed={"time/step_s": time.monotonic() - began}))
    session.progress.step(number, {"module/loss": sum(done.loss.values())})


def _hash(session: Session, work: Work[E]) -> str:
    if work.module == POLICY:
        return session.publisher.weights
    return weight_hash(work.trained[work.module].module.named_parameters())


def order(pools: Mapping[str, Sequence[E]], weights: Mapping[str, float], count: int, seed: int) -> list[E]:
    """`count` elements: each pool gives its share, passing over itself in a new permutation each time; then all are shuffled.

    Refuses a pool with a share and no element.
    """
    chosen: list[E] = []
    for place, (name, share) in enumerate(sorted(apportion(count, dict(weights)).items())):
        held = pools[name]
        if share and not held:
            raise RecipeError(f"stage {name} left nothing to train on", got="no element that this loss can use",
                              why="all were rejected, or no pair differs", fix=f"raise the number of prompts of stages.{name}")
        for epoch in range(-(-share // len(held)) if held else 0):
            permutation = np.random.default_rng([seed, place, epoch]).permutation(len(held))
            chosen += [held[int(at)] for at in permutation[:share - epoch * len(held)]]
    return [chosen[int(at)] for at in np.random.default_rng([seed, len(weights)]).permutation(len(chosen))]


def batches(elements: Sequence[E], size: int) -> list[Sequence[E]]:
    """The elements in parts of `size`, in order."""
    return [elements[at:at + size] for at in range(0, len(elements), size)]
