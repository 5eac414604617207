"""The critic: a value for every action token, and its own optimizer steps.

Legend: T action tokens of an optimizer step.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from rollbook.experience.batches import Packed
from rollbook.models.layout import pack as lay_out
from rollbook.models.scalar import ScalarModel
from rollbook.objectives.value import clipped_value_loss, squared_value_loss
from rollbook.records import RecordError
from rollbook.records.recipe import Critic
from rollbook.training.family import FamilyStep, check_finite
from rollbook.training.optimizer import Optimizer
from rollbook.training.trees import experience_trees


class CriticLearner:
    """Owns the value model during a policy stage. `held` gives the values of a step, None where that is the model itself."""

    def __init__(self, model: ScalarModel, settings: Critic, *, total: int, dtype: torch.dtype):
        self.model, self.settings, self.dtype = model, settings, dtype
        self.optimizer = Optimizer.of(model, settings.optimizer, total)
        self.held: ScalarModel | None = None

    def hold(self) -> None:
        """Keeps the critic as it is now for the values of minibatches that come one at a time."""
        self.held = copy.deepcopy(self.model).requires_grad_(False)

    def values(self, packed: Packed) -> Tensor:
        """The value before every action token, [T], fp32, without gradient."""
        value_T = torch.empty(packed.seq_T.numel())
        with torch.no_grad():
            for sequences in packed.plan:
                index_T = torch.isin(packed.seq_T, torch.tensor(sequences)).nonzero()[:, 0]
                value_T[index_T] = _tokens(self.held or self.model, packed, sequences, self.dtype)
        return value_T

    def update(self, packed: Packed, where: str) -> FamilyStep:
        """One optimizer step on the batch's returns: the mean over its action tokens, however it is cut into micro-batches.

        Stored: `value`, before the step, and `gradient`, d loss / d value, per token.
        """
        if packed.return_T is None or packed.value_T is None:
            raise RecordError(f"{where} has no returns to learn from", got="None", why="only credit with a critic gives them")
        self.optimizer.zero()
        count, total = packed.seq_T.numel(), 0.0
        value_T, gradient_T = torch.empty(count), torch.empty(count)
        for sequences in packed.plan:
            index_T = torch.isin(packed.seq_T, torch.tensor(sequences)).nonzero()[:, 0]
            own_T = _tokens(self.model, packed, sequences, self.dtype)
            own_T.retain_grad()
            loss = self._loss(own_T, packed.value_T[index_T], packed.return_T[index_T]).sum() / count
            check_finite(loss, where)
            loss.backward()
            assert own_T.grad is not None
            value_T[index_T], gradient_T[index_T] = own_T.detach(), own_T.grad
            total += float(loss.detach())
        return FamilyStep(loss={"value": total}, tokens=count, tensors={"value": value_T, "gradient": gradient_T},
                          stepped=self.optimizer.step(where))

    def _loss(self, own_T: Tensor, anchor_T: Tensor, return_T: Tensor) -> Tensor:
        rule = self.settings
        if rule.loss == "squared":
            return squared_value_loss(own_T, return_T, factor=rule.factor)
        assert rule.clip is not None
        return clipped_value_loss(own_T, anchor_T, return_T, clip=rule.clip, factor=rule.factor)


def updates_of(critic: Critic, *, steps: int, minibatches: int) -> int:
    """How many optimizer steps a critic takes in a stage, at most: what a cosine schedule ends at."""
    return steps * minibatches * critic.updates


def explained_variance(value_T: Tensor, return_T: Tensor) -> float | None:
    """1 - Var(return - value) / Var(return); None where the returns do not vary."""
    spread = float(return_T.double().var(correction=0))
    return None if spread <= 0 else 1.0 - float((return_T - value_T).double().var(correction=0)) / spread


def _tokens(model: ScalarModel, packed: Packed, sequences: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    trees = experience_trees([packed.members[at] for at in sequences])
    return model.tokens(lay_out(trees, window=model.body.architecture.window), dtype)
