"""The optimizer step: clipping, schedule, and the refusal to take a step that is not finite."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rollbook.records import Diverged
from rollbook.records.recipe import OptimizerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """What one optimizer step did to the gradient and at which rate it moved."""

    grad_norm: float
    clipped: bool
    learning_rate: float


def rate(settings: OptimizerSettings, step: int, total: int) -> float:
    """Learning rate of optimizer step `step` (first is 1): linear to the peak at `warmup_steps`, then constant or cosine to 0."""
    if step < settings.warmup_steps:
        return settings.learning_rate * step / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.learning_rate
    done = (step - settings.warmup_steps) / max(1, total - settings.warmup_steps)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


class Optimizer:
    """AdamW on fp32 master weights; `total` optimizer steps is what a cosine schedule ends at."""

    def __init__(self, parameters: Iterable[nn.Parameter], settings: OptimizerSettings, total: int):
        self.settings, self.total = settings, total
        self.parameters = list(parameters)
        self._adam = torch.optim.AdamW(self.parameters, lr=settings.learning_rate, betas=(settings.beta1, settings.beta2),
                                       eps=settings.eps, weight_decay=settings.weight_decay, fused=True)
        self.steps = 0

    def zero(self) -> None:
        self._adam.zero_grad(set_to_none=True)

    def step(self, where: str) -> Stepped:
        """One step; raises `Diverged` and leaves the weights alone when the gradient is not finite."""
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm))
        if not math.isfinite(norm):
            raise Diverged(f"the gradient of {where} is not finite", got=f"norm {norm}",
                           why="the batch holds values that overflow, or the weights have been driven too far",
                           fix="look at the batch kept in the run; lower the learning rate or the clip bounds")
        self.steps += 1
        learning_rate = rate(self.settings, self.steps, self.total)
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        self._adam.step()
        return Stepped(grad_norm=norm, clipped=norm > self.settings.max_grad_norm, learning_rate=learning_rate)

    def state(self) -> dict[str, Tensor]:
        """Moments and step count as named tensors, in parameter order."""
        named: dict[str, Tensor] = {"steps": torch.tensor(self.steps)}
        for index, parameter in enumerate(self.parameters):
            for key, value in self._adam.state.get(parameter, {}).items():
                named[f"{index}.{key}"] = value
        return named

    def digest(self) -> str:
        """A hash over the norms of every moment and the step count: equal for equal states, at a hundredth of their bytes.

        Limit: a fingerprint for records; states made to collide are not told apart.
        """
        named = sorted(self.state().items())
        norms = torch.stack(torch._foreach_norm([value.float() for _, value in named])).double()
        return hashlib.sha256(norms.numpy().tobytes()).hexdigest()

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Restores what `state` gave."""
        self.steps = int(named["steps"])
        state: dict[int, dict[str, Any]] = {}
        for name, value in named.items():
            if name != "steps":
                index, key = name.split(".", 1)
                state.setdefault(int(index), {})[key] = value
        document = self._adam.state_dict()
        document["state"] = state
        self._adam.load_state_dict(document)
