"""LoRA (2106.09685) through PEFT: low-rank factors are trained, and the weights that everybody else sees are merged.

    W = W_0 + s B A,  dL/dB = s dL/dW A^T,  dL/dA = s B^T dL/dW,  s = alpha / rank

The decoder keeps merged weights, so that hashes, checkpoints, engines and the audit need to know nothing of it; the gradient that
arrives at them is handed on to the factors. Initialisation, scale and the product are PEFT's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from rollbook.records import RecipeError
from rollbook.records.recipe import Lora

ADAPTER = "default"
PREFIX = "lora."


class LowRank:
    """The factors of every target, by the target's name; `weights` are the target matrices themselves, merged."""

    def __init__(self, weights: Mapping[str, nn.Parameter], settings: Lora):
        self.weights = dict(weights)
        self._layers = _adapters([p.detach() for p in self.weights.values()], settings)

    def factors(self) -> list[nn.Parameter]:
        """What is trained: A and B of every target, in the targets' order."""
        return [part for layer in self._layers for part in _factors(layer)]

    def pull(self) -> None:
        """Hands the gradient of the merged weights on to the factors, where it stands alone after that."""
        for weight, layer in zip(self.weights.values(), self._layers, strict=True):
            parts = _factors(layer)
            given = torch.zeros_like(weight) if weight.grad is None else weight.grad
            for part, gradient in zip(parts, torch.autograd.grad(layer.get_delta_weight(ADAPTER), parts, given), strict=True):
                part.grad = gradient
            weight.grad = None

    def push(self) -> None:
        """Merges the factors as they are now into the weights."""
        with torch.no_grad():
            for weight, layer in zip(self.weights.values(), self._layers, strict=True):
                weight.copy_(layer.base_layer.weight + layer.get_delta_weight(ADAPTER))

    def zero(self) -> None:
        for weight in self.weights.values():
            weight.grad = None

    def state(self) -> dict[str, Tensor]:
        """Base and factors by name: the merged weights alone do not say what they were merged of."""
        return {f"{PREFIX}{place}.{name}": part.detach() for place, layer in enumerate(self._layers)
                for name, part in zip(("base", "a", "b"), (layer.base_layer.weight, *_factors(layer)), strict=True)}

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Restores what `state` gave."""
        with torch.no_grad():
            for name, part in self.state().items():
                part.copy_(named[name])


def targets(module: nn.Module, settings: Lora) -> dict[str, nn.Parameter]:
    """The matrices that the settings name; everything else is set not to need a gradient.

    Refuses a pattern that names no matrix, and a rank that is no less than a matrix's own.
    """
    matrices = {name: p for name, p in module.named_parameters() if p.ndim == 2}
    for pattern in settings.targets:
        if not any(fnmatchcase(name, pattern) for name in matrices):
            raise RecipeError("a pattern of optimizer.lora.targets names no matrix", got=pattern,
                              why="what was meant to be trained would stand still", fix=f"for example {next(iter(matrices), '')}")
    named = {name: p for name, p in matrices.items() if any(fnmatchcase(name, pattern) for pattern in settings.targets)}
    full = [name for name, p in named.items() if settings.rank >= min(p.shape)]
    if full or not named:
        raise RecipeError("optimizer.lora.rank must be below that of every matrix", got=f"{settings.rank}, {full[0]}" if full else
                          "no target", why="a difference of full rank is not a low one", fix="lower optimizer.lora.rank")
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in named)
    return named


def _factors(layer: Any) -> tuple[nn.Parameter, nn.Parameter]:
    return layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight


def _adapters(weights: Iterable[Tensor], settings: Lora) -> list[Any]:
    """PEFT's layers around copies of the weights, drawn by the settings' seed and by nothing else."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise RecipeError("optimizer.lora needs the package peft", got="it is not installed", why="its layers hold the factors",
                          fix="pip install rollbook[lora]") from error
    shell = nn.Module()
    for place, weight in enumerate(weights):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight = nn.Parameter(weight.clone(), requires_grad=False)
        shell.add_module(f"m{place}", layer)
    names = [name for name, _ in shell.named_children()]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        inject_adapter_in_model(LoraConfig(r=settings.rank, lora_alpha=settings.alpha, lora_dropout=0.0, bias="none",
                                           target_modules=names), shell, adapter_name=ADAPTER)
    return [shell.get_submodule(name) for name in names]
