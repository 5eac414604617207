"""The optimizer step: clipping, schedule, and the refusal to take a step that is not finite."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rollbook.models.weights import weight_hash
from rollbook.records import Diverged, LedgerError, RecipeError
from rollbook.records.recipe import OptimizerSettings
from rollbook.training.lora import PREFIX, LowRank, targets
from rollbook.training.online_merging import MergeRule, OnlineMerging

NO_MATRIX = ("embed_tokens", "lm_head", "head.")       # two-dimensional parameters that Muon is not made for


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
    """AdamW on fp32 master weights, or Muon on the matrices of the layers and AdamW on the rest; `total` optimizer steps is what
    a cosine schedule ends at.

    Named parameters are needed for what the settings say of names (`of`); parameters without names are all trained by AdamW.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], settings: OptimizerSettings, total: int, *,
                 matrices: Sequence[nn.Parameter] = ()):
        self.settings, self.total = settings, total
        self.parameters = list(parameters)
        turned = {id(p) for p in matrices}
        rest = [p for p in self.parameters if id(p) not in turned]
        self._parts: list[tuple[torch.optim.Optimizer, float]] = []
        if rest:
            adam = torch.optim.AdamW(rest, lr=settings.learning_rate, betas=(settings.beta1, settings.beta2), eps=settings.eps,
                                     weight_decay=settings.weight_decay, fused=True)
            self._parts.append((adam, settings.learning_rate))
        if matrices and settings.muon is not None:
            muon = torch.optim.Muon(matrices, lr=settings.muon.learning_rate, momentum=settings.muon.momentum,
                                    weight_decay=settings.muon.weight_decay)
            self._parts.append((muon, settings.muon.learning_rate))
        self.merging: OnlineMerging | None = None
        self.lora: LowRank | None = None
        self.standing: str | None = None            # the hash of the frozen parameters as they were at the beginning
        self.steps = 0

    @classmethod
    def of(cls, module: nn.Module, settings: OptimizerSettings, total: int, *, watch: bool = True) -> Self:
        """The optimizer of a module's parameters but the frozen ones, which need no gradient from here on.

        `watch`: the frozen ones are hashed now, for `check_standing`; a sharded module is watched by whoever holds it whole.
        """
        if settings.lora is not None:
            return cls._of_factors(module, settings, total)
        named = trainable(module, settings.frozen)
        matrices = [p for name, p in named.items() if p.ndim == 2 and not any(part in name for part in NO_MATRIX)]
        made = cls(named.values(), settings, total, matrices=matrices if settings.muon is not None else ())
        still = made._still(module) if watch else {}
        made.standing = weight_hash(still.items()) if still else None
        return made

    @classmethod
    def _of_factors(cls, module: nn.Module, settings: OptimizerSettings, total: int) -> Self:
        """The optimizer of low-rank factors alone; every other parameter is watched."""
        assert settings.lora is not None
        lora = LowRank(targets(module, settings.lora), settings.lora)
        made = cls(lora.factors(), settings, total)
        made.lora = lora
        made.standing = weight_hash(made._still(module).items())
        return made

    def _still(self, module: nn.Module) -> dict[str, Tensor]:
        """The parameters that are not to move, by name."""
        if self.lora is None:
            return standing(module, self.settings.frozen)
        return {name: p.detach() for name, p in module.named_parameters() if name not in self.lora.weights}

    def merge(self, named: Mapping[str, nn.Parameter], reference: Mapping[str, Tensor], rule: MergeRule) -> None:
        """From here on every step is merged with `reference` (the Online Merging Optimizer)."""
        if len(self._parts) != 1 or self.lora is not None:
            raise RecipeError("online merging works with one inner optimizer of the weights", got="Muon or LoRA beside AdamW",
                              why="each step is merged as a whole", fix="leave out optimizer.muon and optimizer.lora")
        self.merging = OnlineMerging(self._parts[0][0], named, reference, rule)
        self.merging.steps = self.steps

    def check_standing(self, module: nn.Module) -> str | None:
        """The hash of the frozen parameters, once it is sure that they did not move; None where all are trained."""
        still = self._still(module)
        if not still:
            return None
        now = weight_hash(still.items())
        if now != self.standing:
            raise LedgerError("frozen parameters have moved", got=f"{len(still)} parameters, first {next(iter(still))}",
                              why="the optimizer was given what it was not to touch", fix="keep optimizer.frozen as it was")
        return now

    def zero(self) -> None:
        for part, _ in self._parts:
            part.zero_grad(set_to_none=True)
        if self.lora is not None:
            self.lora.zero()

    def forget(self) -> None:
        """Begins anew: no moments, and bias corrections from the first step. Warm-up and schedule go on with `steps`."""
        for part, _ in self._parts:
            part.state.clear()

    def step(self, where: str) -> Stepped:
        """One step; raises `Diverged` and leaves the weights alone when the gradient is not finite."""
        if self.lora is not None:
            self.lora.pull()
        norm = _whole(nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm))
        if not math.isfinite(norm):
            raise Diverged(f"the gradient of {where} is not finite", got=f"norm {norm}",
                           why="the batch holds values that overflow, or the weights have been driven too far",
                           fix="look at the batch kept in the run; lower the learning rate or the clip bounds")
        self.steps += 1
        learning_rate = rate(self.settings, self.steps, self.total)
        for part, peak in self._parts:
            same = peak == self.settings.learning_rate
            scaled = learning_rate if same else learning_rate * (peak / self.settings.learning_rate)
            for group in part.param_groups:
                group["lr"] = scaled
            if self.merging is None:
                part.step()
        if self.merging is not None:
            self.merging.step()
        if self.lora is not None:
            self.lora.push()
        return Stepped(grad_norm=norm, clipped=norm > self.settings.max_grad_norm, learning_rate=learning_rate)

    def state(self) -> dict[str, Tensor]:
        """Moments and step count as named tensors, in parameter order."""
        named: dict[str, Tensor] = {"steps": torch.tensor(self.steps)}
        for index, parameter in enumerate(self.parameters):
            for part, _ in self._parts:
                for key, value in part.state.get(parameter, {}).items():
                    named[f"{index}.{key}"] = value
        return named if self.lora is None else named | self.lora.state()

    def digest(self) -> str:
        """A hash over the norms of every moment and the step count: equal for equal states, at a hundredth of their bytes.

        Limit: a fingerprint for records; states made to collide are not told apart.
        """
        named = sorted(self.state().items())
        norms = torch.stack([one.cpu() for one in torch._foreach_norm([value.float() for _, value in named])]).double()
        return hashlib.sha256(norms.numpy().tobytes()).hexdigest()

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Restores what `state` gave."""
        self.steps = int(named["steps"])
        held: dict[int, dict[str, Any]] = {}
        for name, value in named.items():
            if name != "steps" and not name.startswith(PREFIX):
                index, key = name.split(".", 1)
                held.setdefault(int(index), {})[key] = value
        place = {id(parameter): index for index, parameter in enumerate(self.parameters)}
        for part, _ in self._parts:
            own = [parameter for group in part.param_groups for parameter in group["params"]]
            document = part.state_dict()
            document["state"] = {at: held[place[id(p)]] for at, p in enumerate(own) if place[id(p)] in held}
            part.load_state_dict(document)
        if self.lora is not None:
            self.lora.load(named)
        if self.merging is not None:
            self.merging.steps = self.steps


def _whole(norm: Tensor) -> float:
    """A norm as a number; of sharded gradients it is that of all ranks' rows together."""
    whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return float(whole)


def trainable(module: nn.Module, frozen: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters that none of the patterns names; the others are set not to need a gradient.

    Refuses a pattern that names nothing, and patterns that leave nothing to train.
    """
    named = {name: p for name, p in module.named_parameters() if p.requires_grad or _matches(name, frozen)}
    idle = [pattern for pattern in frozen if not any(fnmatchcase(name, pattern) for name in named)]
    if idle:
        raise RecipeError("a pattern of optimizer.frozen names no parameter", got=idle[0],
                          why="what was meant to stand still would move", fix=f"for example {next(iter(named), '')}")
    for name, parameter in named.items():
        if _matches(name, frozen):
            parameter.requires_grad_(False)
    moving = {name: p for name, p in named.items() if p.requires_grad}
    if not moving:
        raise RecipeError("optimizer.frozen leaves no parameter to train", got=", ".join(frozen))
    return moving


def standing(module: nn.Module, frozen: Sequence[str]) -> dict[str, Tensor]:
    """The parameters that are not to move, by name."""
    return {name: p.detach() for name, p in module.named_parameters() if _matches(name, frozen)}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
