"""Optimizer steps outside a policy's batch, checked from their records: numbering, chain of weights, schedule, loss by hand.

Legend: T tokens, S answers, B pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from rollbook.audit.estimator import rate
from rollbook.audit.index import RunIndex
from rollbook.records import ModuleUpdate, Ranking
from rollbook.records.recipe import Distill, Dpo, OptimizerSettings, PolicyGradient, Preference, RewardModel, Stage

Fail = Callable[[str, str, str], None]
Floats = NDArray[np.float64]
CLOSE = 1e-4            # relative: losses are sums of single-precision numbers
ARITHMETIC = "record what the step computed, from the tensors it used"


@dataclass(slots=True)
class ModuleSteps:
    """Where every module of every stage stands: its steps so far and the weights after the last."""

    steps: dict[tuple[str, str], int] = field(default_factory=dict)
    after: dict[tuple[str, str], str] = field(default_factory=dict)
    rankings: dict[str, Ranking] = field(default_factory=dict)

    def take(self, run: RunIndex, identity: str, update: ModuleUpdate, fail: Fail) -> None:
        """One step against the one before it, the recipe and its own tensors."""
        key, where = (update.stage, update.module), f"step {update.step} of the {update.module} of {update.stage}"
        due = self.steps.get(key, 0) + 1
        if update.step != due:
            fail(identity, f"{where} comes where number {due} is due", "number the steps of a module from 1")
        self.steps[key] = update.step
        before = self.after.get(key)
        if before is not None and update.weights_before != before:
            fail(identity, f"{where} starts from weights {update.weights_before[:12]}, the step before ended with {before[:12]}",
                 "let each step start from the weights the last one ended with")
        if update.weights_before == update.weights_after and update.learning_rate > 0 and update.grad_norm > 0:
            fail(identity, f"{where} has gradient norm {update.grad_norm:g} and left the weights as they were",
                 "apply the optimizer step that is recorded")
        self.after[key] = update.weights_after
        stage = run.recipe.settings.stages.get(update.stage) if run.recipe is not None else None
        planned = None if stage is None else schedule(stage, update.module)
        if planned is not None:
            self._optimizer(identity, update, where, planned, fail)
        self._loss(run, identity, update, where, stage, fail)

    def _optimizer(self, identity: str, update: ModuleUpdate, where: str, planned: tuple[OptimizerSettings, int],
                   fail: Fail) -> None:
        settings, total = planned
        due = rate(settings, update.step, total)
        if not abs(update.learning_rate - due) <= 1e-9 * max(abs(due), 1e-12):
            fail(identity, f"{where} was taken at learning rate {update.learning_rate:g}, the recipe's schedule gives {due:g}",
                 "follow the recipe's warm-up and schedule")
        if not (np.isfinite(update.grad_norm) and update.grad_norm >= 0):
            fail(identity, f"the gradient norm of {where} is {update.grad_norm}", "stop before a step that is not finite")
        if update.grad_clipped != (update.grad_norm > settings.max_grad_norm):
            fail(identity, f"the clip of {where} at norm {update.grad_norm:g} is not the recipe's", "clip at max_grad_norm")

    def _loss(self, run: RunIndex, identity: str, update: ModuleUpdate, where: str, stage: Stage | None, fail: Fail) -> None:
        given = {name: value.astype(np.float64) for name, value in load(run.ledger.get(update.tensors)).items()}
        bad = [name for name, value in given.items() if not np.isfinite(value).all()]
        if bad:
            fail(identity, f"values of {bad[0]} of {where} are not finite", "stop before a step that is not finite")
            return
        rankings = [self.rankings.get(name) for name in update.elements]
        known = [one for one in rankings if one is not None]
        due: float | None = None
        if isinstance(stage, RewardModel) and len(known) == len(rankings):
            due = reward_loss(known, given["score"], stage)
        elif isinstance(stage, Preference) and len(known) == len(rankings):
            due = preference_loss(known, given, stage)
        elif isinstance(stage, Distill):
            due = float(given["kl"].mean())
        stated = sum(update.loss.values())
        if due is not None and not abs(stated - due) <= CLOSE * max(1.0, abs(due)):
            fail(identity, f"the loss of {where} is recorded as {stated:.6g}, computed {due:.6g} from its tensors", ARITHMETIC)
        if isinstance(stage, (RewardModel, Preference)) and len(known) < len(rankings):
            fail(identity, f"{where} was taken on {len(rankings) - len(known)} rankings that are not on record",
                 "record every element before it trains")
        if any(one.heldout for one in known):
            fail(identity, f"{where} was taken on a ranking that is kept apart", "train on what is not kept apart")


def schedule(stage: Stage, module: str) -> tuple[OptimizerSettings, int] | None:
    """A module's optimizer settings and how many steps its schedule counts; None where the recipe has none for it."""
    if isinstance(stage, PolicyGradient) and module == "critic" and stage.critic is not None:
        return stage.critic.optimizer, stage.steps * stage.minibatches * stage.critic.updates
    if isinstance(stage, (RewardModel, Preference, Distill)):
        return stage.optimizer, stage.steps
    return None


def reward_loss(rankings: list[Ranking], score_S: Floats, stage: RewardModel) -> float:
    """The mean over prompts of each prompt's loss, from the scores that were stored."""
    at, total = 0, 0.0
    for one in rankings:
        own = score_S[at:at + len(one.candidates)]
        at += len(one.candidates)
        given = np.array(one.scores)
        if stage.loss == "listwise":
            right = np.array([bool(c.correct) for c in one.candidates])
            first, second = np.nonzero(right[:, None] & ~right[None, :])
        else:
            first, second = np.nonzero(given[:, None] > given[None, :])
        gap, apart = own[first] - own[second], given[first] - given[second]
        if stage.loss == "margin":
            place = ((1 - np.clip(apart, 0, 1)) * len(stage.margins)).astype(int).clip(max=len(stage.margins) - 1)
            gap = gap - np.array(stage.margins)[place]
        if stage.loss == "soft_label":
            label = 1 / (1 + np.exp(-apart))
            total += float((label * np.logaddexp(0, -gap) + (1 - label) * np.logaddexp(0, gap)).mean())
        else:
            total += float(np.logaddexp(0, -gap).mean())
    return total / len(rankings)


def preference_loss(rankings: list[Ranking], given: Mapping[str, Floats], stage: Preference) -> float | None:
    """The mean over pairs of DPO's loss, from the log-probs that were stored; None for the variants with further terms."""
    if not isinstance(stage.loss, Dpo):
        return None
    at, total = 0, 0.0
    for one in rankings:
        sides = []
        for size in _lengths(one, stage.by):
            gap = (given["logp"] - given["reference"])[at:at + size].sum()
            sides.append(gap / size if stage.loss.normalize else gap)
            at += size
        total += float(np.logaddexp(0, -stage.loss.beta * (sides[0] - sides[1])))
    return total / len(rankings)


def _lengths(one: Ranking, by: str) -> tuple[int, int]:
    """Tokens of the chosen and of the rejected answer."""
    right = [c for c in one.candidates if by == "score" or c.correct]
    wrong = [c for c in one.candidates if by == "score" or c.correct is False]
    best = max(right, key=lambda c: c.score)
    worst = max(wrong, key=lambda c: c.score) if by == "correct" else min(wrong, key=lambda c: c.score)
    return len(best.token_ids), len(worst.token_ids)
