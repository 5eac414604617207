"""Steps on recorded elements computed again: reward models on rankings, policies on pairs of answers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from rollbook.audit.ruler import Ruler
from rollbook.experience.batches import Packed
from rollbook.models.decoder import Decoder
from rollbook.models.scalar import ScalarModel, on_body, read_scalar
from rollbook.models.shape import load_shaped
from rollbook.models.weights import weight_hash
from rollbook.records import Demonstration, LedgerError, ModuleUpdate, ModuleVersion, Ranking, TaskId, Trace
from rollbook.records.recipe import Distill, PolicyGradient, Preference, RewardModel
from rollbook.training.averaging import Average
from rollbook.training.family import FamilyStep
from rollbook.training.full_distill import DistillLearner, distill_update
from rollbook.training.optimizer import Optimizer, standing
from rollbook.training.policy import PolicyLearner, Teachers, frozen_copy
from rollbook.training.preference import PreferenceLearner, optimizer_of, pair_of, preference_update
from rollbook.training.reward_model import reward_model_update
from rollbook.training.value import CriticLearner, updates_of

ARITHMETIC = 1e-6
Weights = Mapping[str, Tensor]


class Trainee(Protocol):
    """A module in training again: takes a step on elements by their ids, knows its optimizer and its weights."""

    @property
    def optimizer(self) -> Optimizer: ...

    def take(self, elements: Sequence[str], where: str) -> FamilyStep: ...

    def weights(self) -> str: ...


@dataclass(slots=True, kw_only=True)
class RewardModelTrainee:
    """A reward model from its beginning."""

    model: ScalarModel
    optimizer: Optimizer
    stage: RewardModel
    rankings: Mapping[str, Ranking]
    dtype: torch.dtype

    def take(self, elements: Sequence[str], where: str) -> FamilyStep:
        batch = [self.rankings[name] for name in elements]
        return reward_model_update(self.model, self.optimizer, batch, self.stage, dtype=self.dtype, where=where)

    def weights(self) -> str:
        return weight_hash(self.model.named_parameters())


@dataclass(slots=True, kw_only=True)
class PreferenceTrainee:
    """The policy on pairs of answers, with its frozen reference."""

    learner: PreferenceLearner
    stage: Preference
    rankings: Mapping[str, Ranking]

    @property
    def optimizer(self) -> Optimizer:
        return self.learner.optimizer

    def take(self, elements: Sequence[str], where: str) -> FamilyStep:
        pairs = [pair_of(self.rankings[name], self.stage.by) for name in elements]
        kept = [pair for pair in pairs if pair is not None]
        if len(kept) < len(pairs):
            raise LedgerError(f"{where} was taken on rankings without a pair", got=f"{len(pairs) - len(kept)} of {len(pairs)}")
        return preference_update(self.learner, kept, self.stage, where=where)

    def weights(self) -> str:
        return weight_hash(self.learner.policy.named_parameters())


@dataclass(slots=True, kw_only=True)
class DistillTrainee:
    """A student with its teachers; `traces_of` finds the answers of a step by their ids, `hard` holds hard targets by theirs."""

    learner: DistillLearner
    stage: Distill
    traces_of: Callable[[Sequence[str]], list[Trace]]
    hard: Mapping[str, Demonstration]

    @property
    def optimizer(self) -> Optimizer:
        return self.learner.optimizer

    def take(self, elements: Sequence[str], where: str) -> FamilyStep:
        shown = [self.hard[name] for name in elements if name in self.hard]
        if len(shown) != (0 if self.stage.hard is None else self.stage.hard.batch):
            raise LedgerError(f"{where} was taken on another number of hard targets than the recipe says", got=str(len(shown)))
        sampled = [name for name in elements if name not in self.hard]
        return distill_update(self.learner, self.traces_of(sampled), self.stage, where=where, shown=shown)

    def weights(self) -> str:
        return weight_hash(self.learner.policy.named_parameters())


@dataclass(slots=True, kw_only=True)
class CriticTrainee:
    """The critic of a policy stage; `packed` is the minibatch that its next steps are taken on."""

    critic: CriticLearner
    packed: Packed | None = None

    @property
    def optimizer(self) -> Optimizer:
        return self.critic.optimizer

    def take(self, elements: Sequence[str], where: str) -> FamilyStep:
        if self.packed is None:
            raise LedgerError(f"{where} was taken on a batch that does not stand before it", got=", ".join(elements))
        return self.critic.update(self.packed, where)

    def weights(self) -> str:
        return weight_hash(self.critic.model.named_parameters())


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a replay holds when a stage begins: the decoder with the stage's first weights, the rankings, weights by stage."""

    decoder: Decoder
    rankings: Mapping[str, Ranking]
    demonstrations: Mapping[str, Demonstration]
    weights_of: Callable[[str], Weights]
    format_ids: frozenset[int]
    dtype: torch.dtype
    seed: int
    family: Callable[[TaskId], str]
    module_folder: Callable[[str, str], Path]
    traces_of: Callable[[Sequence[str]], list[Trace]]
    vocabulary: str


def critic(stage: PolicyGradient, held: Held) -> CriticTrainee | None:
    """The stage's critic as it stood before its first step; None where it has none."""
    if stage.critic is None:
        return None
    if stage.critic.start is not None:
        model = read_scalar(held.module_folder(stage.critic.start, "reward_model"), held.decoder)
    else:
        own = {name: p.detach() for name, p in held.decoder.named_parameters()}
        model = on_body(held.decoder, own, layers=stage.critic.head_layers, seed=held.seed)
    total = updates_of(stage.critic, steps=stage.steps, minibatches=stage.minibatches)
    return CriticTrainee(critic=CriticLearner(model, stage.critic, total=total, dtype=held.dtype))


def equip(learner: PolicyLearner, stage: PolicyGradient, held: Held) -> None:
    """Gives a policy learner the frozen reference, the teachers and the moving average of its stage."""
    if stage.reference is not None:
        learner.reference = _frozen(held, stage.reference)
    if stage.teachers:
        learner.teachers = _teachers(held, stage.teachers)
    if stage.ema is not None:
        learner.average = Average(learner.decoder, stage.ema)


def _frozen(held: Held, source: str) -> Decoder:
    model = copy.deepcopy(held.decoder)
    load_shaped(model, held.weights_of(source))
    return frozen_copy(model, held.dtype)


def _teachers(held: Held, stages: Mapping[str, str]) -> Teachers:
    return Teachers(models={name: _frozen(held, name) for name in sorted(set(stages.values()))}, stages=stages,
                    families=held.family)


def trainee(stage: RewardModel | Preference | Distill, held: Held) -> Trainee:
    """The module of a stage as it stood before its first step."""
    own = {name: p.detach() for name, p in held.decoder.named_parameters()}
    if isinstance(stage, RewardModel):
        model = on_body(held.decoder, own, layers=stage.head_layers, seed=held.seed)
        return RewardModelTrainee(model=model, optimizer=Optimizer.of(model, stage.optimizer, stage.steps), stage=stage,
                                  rankings=held.rankings, dtype=held.dtype)
    if isinstance(stage, Distill):
        student = DistillLearner(policy=held.decoder, teachers=_teachers(held, stage.teachers), vocabulary=held.vocabulary,
                                 optimizer=Optimizer.of(held.decoder, stage.optimizer, stage.steps), dtype=held.dtype)
        return DistillTrainee(learner=student, stage=stage, traces_of=held.traces_of, hard=held.demonstrations)
    base = None if stage.merging is None else held.weights_of(stage.merging.base)
    begun = {name: value.clone() for name, value in own.items()}
    learner = PreferenceLearner(policy=held.decoder, reference=_frozen(held, stage.reference or stage.policy), dtype=held.dtype,
                                optimizer=optimizer_of(held.decoder, stage, begun, base), format_ids=held.format_ids)
    return PreferenceTrainee(learner=learner, stage=stage, rankings=held.rankings)


def module_step(ruler: Ruler, made: Trainee, update: ModuleUpdate, given: Mapping[str, Tensor]) -> None:
    """Takes the step and compares everything that was recorded of it; `given` are the stored tensors."""
    ruler.hash("weights_before", update.weights_before, made.weights())
    done = made.take(update.elements, f"{update.stage} step {update.step}")
    slack = ruler.tolerance
    for name in sorted({*given, *done.tensors}):
        ruler.tensor(name, given.get(name), done.tensors.get(name), slack.logp_nats)
    ruler.text("loss terms", sorted(update.loss), sorted(done.loss))
    for name, value in done.loss.items():
        ruler.number(f"loss.{name}", update.loss.get(name), value, slack.loss, share=False)
    ruler.text("tokens", update.tokens, done.tokens)
    first = made.optimizer.steps == 1
    ruler.number("grad_norm", update.grad_norm, done.stepped.grad_norm, slack.grad_norm if first else None)
    ruler.number("learning_rate", update.learning_rate, done.stepped.learning_rate, ARITHMETIC)
    ruler.hash("weights_after", update.weights_after, made.weights())


def module_version(ruler: Ruler, made: Trainee, version: ModuleVersion, window: Sequence[str]) -> None:
    """The module as it was published against the one that was trained again."""
    ruler.hash("weights", version.weights, made.weights())
    ruler.hash("optimizer", version.optimizer, made.optimizer.digest())
    ruler.text("window", version.window, tuple(window), "the updates of the stage")
    module = made.model if isinstance(made, RewardModelTrainee) else None
    if isinstance(made, CriticTrainee):
        module = made.critic.model
    if module is not None:
        still = standing(module, made.optimizer.settings.frozen)
        ruler.text("frozen", version.frozen is None, not still)
        if still:
            ruler.hash("frozen", version.frozen, weight_hash(still.items()))
