"""Optimizer steps outside a policy's batch, checked from their records: numbering, chain of weights, schedule, loss by hand.

Legend: T tokens, S answers, B pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from rollbook.audit.copied import times_shown
from rollbook.audit.elements import due_elements, due_order, merge_fault
from rollbook.audit.estimator import rate
from rollbook.audit.followed import Valued
from rollbook.audit.index import RunIndex
from rollbook.ledger.kinds import TraceTable
from rollbook.records import Batch, Demonstration, Merged, ModuleUpdate, Ranking, StepReport
from rollbook.records.recipe import Critic, Distill, Dpo, OptimizerSettings, PolicyGradient, Preference, RewardModel, Stage

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
    of_table: dict[str, list[str]] = field(default_factory=dict)    # stage -> the ids of its rankings, in order
    demonstrated: dict[str, list[str]] = field(default_factory=dict)    # stage -> the ids of its demonstrations, in order
    order: dict[str, list[str]] = field(default_factory=dict)       # stage -> the elements that it shows, in order
    batches: dict[str, str] = field(default_factory=dict)           # batches of the open step -> their tensors
    answers: list[tuple[str, int]] = field(default_factory=list)    # the attempts of a distillation's step, with their tokens
    valued: Valued = field(default_factory=Valued)                  # the critic's steps within the open step of the policy

    def record(self, run: RunIndex, identity: str, record: object, ended: Mapping[str, str], fail: Fail) -> None:
        """Keeps what the steps are taken on, and holds a merge against the recipe; `ended` maps a stage to its last version."""
        match record:
            case Ranking():
                self.rankings[identity] = record
                self.of_table.setdefault((run.table or "").partition("/")[0], []).append(identity)
            case Demonstration():
                self.demonstrated.setdefault((run.table or "").partition("/")[0], []).extend(
                    [identity] * times_shown(run, record))
            case Batch():
                self.batches[identity] = record.tensors
            case StepReport():
                self.batches.clear()
            case TraceTable():
                self.answers.clear()
            case Merged():
                if problem := merge_fault(run, record, ended):
                    fail(identity, problem, "merge what the recipe names, as it says")
            case _:
                pass

    def row(self, run: RunIndex, identity: str, tokens: int) -> None:
        """Notes an attempt of a step of distillation."""
        stage = run.recipe.settings.stages.get((run.table or "").partition("/")[0]) if run.recipe is not None else None
        if isinstance(stage, Distill):
            self.answers.append((identity, tokens))

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
        self._shown(run, identity, update, where, stage, fail)
        self._loss(run, identity, update, where, stage, fail)

    def _shown(self, run: RunIndex, identity: str, update: ModuleUpdate, where: str, stage: Stage | None, fail: Fail) -> None:
        """The elements of a step are those that are due by recipe and seed: none is left out for being hard, none comes twice."""
        if isinstance(stage, Distill):
            due = [name for name, count in self.answers if count]
            due += self._hard(run, update, stage)
            tokens = sum(count for _, count in self.answers)
            if update.tokens != tokens:
                fail(identity, f"{where} counts {update.tokens} tokens, {tokens} were sampled", ARITHMETIC)
        elif isinstance(stage, (RewardModel, Preference)) and run.recipe is not None:
            if update.stage not in self.order:
                held = {source: [(name, self.rankings[name]) for name in self.of_table.get(source, ())] for source in stage.data}
                self.order[update.stage] = due_elements(stage, held, run.recipe.settings.run.seed)
            due = self.order[update.stage][(update.step - 1) * stage.batch:update.step * stage.batch]
        else:
            return
        if list(update.elements) != due:
            left, strange = set(due) - set(update.elements), set(update.elements) - set(due)
            fail(identity, f"{where} was taken on {len(update.elements)} elements that are not the {len(due)} that are due "
                 f"({len(left)} left out, {len(strange)} not due)", "train on the recipe's data, in the order of its seed")

    def beside(self, run: RunIndex, batch: Batch) -> list[str] | None:
        """The demonstrations that are due beside a policy batch; None where the recipe has none for it."""
        name, _, place = batch.scope.partition("/")
        stage = run.recipe.settings.stages.get(name) if run.recipe is not None else None
        if run.recipe is None or not isinstance(stage, PolicyGradient) or stage.pretraining is None:
            return None
        given, (step, _, part) = stage.pretraining, place.partition("/")
        if not (step.isdigit() and part.isdigit()):
            return []
        if name not in self.order:
            pools = {source: self.demonstrated.get(source, ()) for source in given.data}
            self.order[name] = due_order(pools, given.data, stage.steps * stage.minibatches * given.batch,
                                         run.recipe.settings.run.seed)
        at = ((int(step) - 1) * stage.minibatches + int(part)) * given.batch
        return self.order[name][at:at + given.batch]

    def _hard(self, run: RunIndex, update: ModuleUpdate, stage: Distill) -> list[str]:
        """The hard targets that are due at a step of a distillation."""
        if stage.hard is None or run.recipe is None:
            return []
        if update.stage not in self.order:
            pools = {source: self.demonstrated.get(source, ()) for source in stage.hard.data}
            self.order[update.stage] = due_order(pools, stage.hard.data, stage.steps * stage.hard.batch,
                                                 run.recipe.settings.run.seed)
        return self.order[update.stage][(update.step - 1) * stage.hard.batch:update.step * stage.hard.batch]

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
            answers = sum(len(one.candidates) for one in known)
            if given["score"].size != answers:
                fail(identity, f"{where} stores {given['score'].size} scores for {answers} answers", ARITHMETIC)
                return
            due = reward_loss(known, given["score"], stage)
        elif isinstance(stage, Preference) and len(known) == len(rankings):
            due = preference_loss(known, given, stage, self._format_ids(run))
        elif isinstance(stage, Distill):
            due = distill_loss(given, stage, update.step)
            if given["kl"].size != update.tokens or given["kl"].min(initial=0.0) < -CLOSE:
                fail(identity, f"{where} stores {given['kl'].size} divergences for {update.tokens} tokens, the least "
                     f"{given['kl'].min(initial=0.0):.3g}", ARITHMETIC)
        elif isinstance(stage, PolicyGradient) and stage.critic is not None and update.elements[0] in self.batches:
            batch = load(run.ledger.get(self.batches[update.elements[0]]))
            self.valued.add(update, batch)
            due = self._critic(identity, (where, stage.critic), given, batch, fail)
        stated = sum(update.loss.values())
        if due is None and isinstance(stage, Preference) and len(known) == len(rankings):
            fail(identity, f"the log-probs of {where} are of {given['logp'].size} tokens, its pairs have another number",
                 "train on the best and the worst answer of every ranking")
        if due is not None and not abs(stated - due) <= CLOSE * max(1.0, abs(due)):
            fail(identity, f"the loss of {where} is recorded as {stated:.6g}, computed {due:.6g} from its tensors", ARITHMETIC)
        if isinstance(stage, (RewardModel, Preference)) and len(known) < len(rankings):
            fail(identity, f"{where} was taken on {len(rankings) - len(known)} rankings that are not on record",
                 "record every element before it trains")
        if any(one.heldout for one in known):
            fail(identity, f"{where} was taken on a ranking that is kept apart", "train on what is not kept apart")


    def _format_ids(self, run: RunIndex) -> frozenset[int]:
        return frozenset(i for i in run.tokenizer.stop_ids if i is not None) if run.tokenizer is not None else frozenset()

    def _critic(self, identity: str, about: tuple[str, Critic], given: Mapping[str, Floats],
                batch: Mapping[str, NDArray[np.generic]], fail: Fail) -> float | None:
        """The loss of a critic's step on a batch; its gradient by value is held against the one that is stored."""
        where, rule = about
        if not {"value", "return"} <= batch.keys() or batch["return"].shape != given["value"].shape:
            fail(identity, f"{where} was taken on returns that its batch does not hold", ARITHMETIC)
            return None
        loss, gradient_T = value_loss(given["value"], batch["value"].astype(np.float64), batch["return"].astype(np.float64), rule)
        off_T = np.abs(given["gradient"] - gradient_T) > CLOSE * max(float(np.abs(gradient_T).max(initial=0.0)), 1e-9)
        edge_T = np.abs(np.abs(given["value"] - batch["value"].astype(np.float64)) - (rule.clip or 0.0)) < CLOSE
        if (off_T & ~edge_T).any():
            at = int((off_T & ~edge_T).argmax())
            fail(identity, f"the gradient of {int((off_T & ~edge_T).sum())} of {off_T.size} values of {where} is not that of the "
                 f"{rule.loss} loss: token {at} has {given['gradient'][at]:.6g}, computed {gradient_T[at]:.6g}", ARITHMETIC)
        return loss


def value_loss(value_T: Floats, anchor_T: Floats, return_T: Floats, rule: Critic) -> tuple[float, Floats]:
    """The critic's mean loss over the tokens of a step, and its derivative by each value."""
    loss_T, slope_T = (value_T - return_T)**2, 2 * (value_T - return_T)
    if rule.loss == "clipped" and rule.clip is not None:
        held_T = (anchor_T + np.clip(value_T - anchor_T, -rule.clip, rule.clip) - return_T)**2
        frozen_T = (np.abs(value_T - anchor_T) > rule.clip) & (held_T > loss_T)
        loss_T, slope_T = np.maximum(loss_T, held_T), np.where(frozen_T, 0.0, slope_T)
    return rule.factor * float(loss_T.mean()), rule.factor * slope_T / max(value_T.size, 1)


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


def preference_loss(rankings: list[Ranking], given: Mapping[str, Floats], stage: Preference,
                    format_ids: frozenset[int]) -> float | None:
    """The mean over pairs of the stage's loss, from the log-probs that were stored; None where they are not the pairs' tokens."""
    at, total, rule = 0, 0.0, stage.loss
    pairs = [pair for one in rankings if (pair := _pair(one, stage.by)) is not None]
    tokens = sum(len(ids) for pair in pairs for ids in pair)
    if len(pairs) < len(rankings) or not tokens == given["logp"].size == given["reference"].size:
        return None
    for pair in pairs:
        sides: list[float] = []
        nll = 0.0
        for place, ids in enumerate(pair):
            logp, reference = (given[name][at:at + len(ids)] for name in ("logp", "reference"))
            at += len(ids)
            if isinstance(rule, Dpo):
                sides.append(float((logp - reference).sum()) / (len(ids) if rule.normalize else 1))
                continue
            kept = np.array([token not in format_ids for token in ids])
            sides.append(float((logp - reference)[kept].sum()))
            if place == 0:
                learnt = logp[kept] if rule.nll_on == "unmasked" else logp
                nll = -float(learnt.sum()) / (max(learnt.size, 1) if rule.nll_reduction == "mean" else 1)
        total += float(np.logaddexp(0, -rule.beta * (sides[0] - sides[1])))
        total += 0.0 if isinstance(rule, Dpo) else rule.nll_coefficient * nll
    return total / len(rankings)


def distill_loss(given: Mapping[str, Floats], stage: Distill, step: int) -> float:
    """The mean KL, or its mixture with the NLL of the hard targets at the step's share; NaN where their tensor is missing."""
    hard = stage.hard
    if hard is None:
        return float(given["kl"].mean())
    share = hard.first + (hard.last - hard.first) * ((step - 1) / (stage.steps - 1) if stage.steps > 1 else 0.0)
    nll = -float(given["hard_logp"].mean()) if "hard_logp" in given else float("nan")
    return (1 - share) * float(given["kl"].mean()) + share * nll


def _pair(one: Ranking, by: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Tokens of the chosen and of the rejected answer, None where a ranking has no such pair."""
    right = [c for c in one.candidates if by == "score" or c.correct]
    wrong = [c for c in one.candidates if by == "score" or c.correct is False]
    if not right or not wrong:
        return None
    best = max(right, key=lambda c: c.score)
    worst = max(wrong, key=lambda c: c.score) if by == "correct" else min(wrong, key=lambda c: c.score)
    return best.token_ids, worst.token_ids
