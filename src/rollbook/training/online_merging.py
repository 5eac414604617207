"""The Online Merging Optimizer (2405.17931 Eq. 3-7; used by Qwen2.5's DPO, 2412.15115): a merge at every optimizer step.

    theta <- theta + (1 - alpha) F(Delta) + alpha F(tau_r),     tau_r = theta_SFT - theta_base

Delta is what the inner optimizer did to a parameter, its *update*, not the gradient: Adam's moments see the raw gradient only.
F sparsifies each parameter tensor. OnDARE keeps each entry with probability `keep`, without dividing by it. OnTIES keeps the
`keep` share of largest magnitude and then drops, entry by entry, what disagrees with the elected sign.

alpha = 0 with keep = 1 is the inner optimizer, bit for bit (OnTIES: under `consensus="weighted"`); Delta = 0 with keep = 1 drifts
by alpha tau_r. Random masks depend on (seed, step, parameter, which of the two) and the entry's place in the whole parameter, so
that every rank and every resumed run draws the same, and a shard draws its slice.

Limit: holds one more copy of the weights during a step. OnTIES ranks magnitudes over a whole parameter: give it whole ones. With
alpha of 1e-7 the drift vanishes in anything narrower than fp32 weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import numpy as np
import torch
from torch import Tensor, nn

from rollbook.records import RecipeError

Role = Literal["update", "reference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDare:
    """Independent keeps with probability `keep`. The paper sweeps alpha over 1e-7 .. 1e-4; Qwen2.5 prints neither number."""

    alpha: float
    keep: float
    seed: int

    def __post_init__(self) -> None:
        _check("OnDare", self.alpha, self.keep)
        if type(self.seed) is not int:
            raise RecipeError("OnDare.seed must be a whole number", got=repr(self.seed), why="it keys every mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTies:
    """The `keep` share by magnitude, rounded to the nearest count, at least one, ties to the lower place [I].

    `consensus` [U]: the elected sign is that of (1-alpha) F(Delta) + alpha F(tau_r), or of their unweighted sum; 0 elects none.
    """

    alpha: float
    keep: float
    consensus: Literal["weighted", "unweighted"]

    def __post_init__(self) -> None:
        _check("OnTies", self.alpha, self.keep)
        if self.consensus not in ("weighted", "unweighted"):
            raise RecipeError("OnTies.consensus must be weighted or unweighted", got=repr(self.consensus),
                              why="with a small alpha the two elect opposite winners")


MergeRule = OnDare | OnTies


def reference_delta(sft: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """tau_r = theta_SFT - theta_base per parameter, at least fp32."""
    if set(sft) != set(base):
        raise RecipeError("tau_r needs the same parameters in both models", got=_difference(set(sft), set(base)))
    return {name: _wide(sft[name].detach()) - _wide(base[name].detach()) for name in sft}


def keep_mask(rule: OnDare, *, step: int, name: str, role: Role, places: range) -> Tensor:
    """OnDARE's keeps for the entries `places` (flat, consecutive) of parameter `name` at optimizer step `step` (first is 1)."""
    if places.step != 1:
        raise RecipeError("keep_mask needs consecutive places", got=str(places))
    key = "\0".join((str(rule.seed), str(step), role, name)).encode()
    bits = np.random.Philox(key=np.frombuffer(hashlib.sha256(key).digest()[:16], dtype="<u8"))
    block, skipped = divmod(places.start, 4)  # Philox makes four numbers per counter value
    uniform = np.random.Generator(bits.advance(block)).random(skipped + len(places))[skipped:]
    return torch.from_numpy(uniform < rule.keep)


def largest(x: Tensor, keep: float) -> Tensor:
    """Which entries belong to the `keep` share of largest magnitude."""
    flat = x.abs().flatten()
    count = min(flat.numel(), max(1, round(keep * flat.numel())))
    kept = torch.zeros_like(flat, dtype=torch.bool)
    kept[flat.sort(descending=True, stable=True).indices[:count]] = True
    return kept.view(x.shape)


class OnlineMerging:
    """An inner optimizer whose every step is merged with tau_r; `steps` counts them and keys the masks."""

    def __init__(self, inner: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], reference: Mapping[str, Tensor],
                 rule: MergeRule):
        _check_parameters(inner, parameters, reference)
        self.inner, self.parameters, self.rule = inner, dict(parameters), rule
        self.reference = {name: reference[name].detach().to(own.device, own.dtype) for name, own in self.parameters.items()}
        self.steps = 0

    @torch.no_grad()
    def step(self) -> None:
        """One inner step, then the merge of what it did."""
        before = {name: own.detach().clone() for name, own in self.parameters.items()}
        self.inner.step()
        self.steps += 1
        for name, own in self.parameters.items():
            own.copy_(self._merged(name, before[name], own.detach()))

    def _merged(self, name: str, before: Tensor, after: Tensor) -> Tensor:
        """before + F(Delta) + alpha (F(tau_r) - F(Delta)): the equation, arranged so that alpha = 0 adds exactly nothing."""
        delta, tau = after - before, self.reference[name]
        kept_delta, kept_tau = self._kept(name, delta, tau)
        moved = torch.where(kept_delta, after, before)
        return moved + self.rule.alpha * (torch.where(kept_tau, tau, 0) - torch.where(kept_delta, delta, 0))

    def _kept(self, name: str, delta: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
        """Which entries of Delta and of tau_r remain."""
        rule = self.rule
        match rule:
            case OnDare():
                return self._random(rule, name, "update", delta), self._random(rule, name, "reference", tau)
            case OnTies():
                kept_delta, kept_tau = largest(delta, rule.keep), largest(tau, rule.keep)
                delta, tau = torch.where(kept_delta, delta, 0), torch.where(kept_tau, tau, 0)
                share = (1 - rule.alpha, rule.alpha) if rule.consensus == "weighted" else (1.0, 1.0)
                elected = (share[0] * delta + share[1] * tau).sign()
                return kept_delta & (delta.sign() == elected), kept_tau & (tau.sign() == elected)
            case _:
                assert_never(rule)

    def _random(self, rule: OnDare, name: str, role: Role, like: Tensor) -> Tensor:
        mask = keep_mask(rule, step=self.steps, name=name, role=role, places=range(like.numel()))
        return mask.to(like.device).view(like.shape)

    def zero_grad(self) -> None:
        self.inner.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """The step count, which keys the masks, and the inner optimizer's state."""
        return {"steps": self.steps, "inner": self.inner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave."""
        self.steps = int(state["steps"])
        self.inner.load_state_dict(state["inner"])


def _check(who: str, alpha: float, keep: float) -> None:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (alpha, keep))
    if not numbers or not 0 <= alpha <= 1 or not 0 < keep <= 1:
        raise RecipeError(f"{who} needs 0 <= alpha <= 1 and 0 < keep <= 1", got=f"alpha {alpha!r}, keep {keep!r}",
                          why="alpha weighs tau_r against the update, keep is the share of entries that stays")


def _check_parameters(inner: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter],
                      reference: Mapping[str, Tensor]) -> None:
    stepped = {id(own) for group in inner.param_groups for own in group["params"]}
    if stepped != {id(own) for own in parameters.values()}:
        raise RecipeError("the merged parameters must be exactly those of the inner optimizer",
                          got=f"{len(parameters)} named, {len(stepped)} in the optimizer",
                          why="a parameter stepped but not merged follows another algorithm")
    if set(reference) != set(parameters):
        raise RecipeError("tau_r needs an entry for each parameter and no other",
                          got=_difference(set(parameters), set(reference)))
    for name, own in parameters.items():
        if reference[name].shape != own.shape:
            raise RecipeError(f"tau_r of {name} needs the parameter's shape",
                              got=f"{tuple(reference[name].shape)} for {tuple(own.shape)}",
                              why="masks count places in the whole parameter")
        if not bool(reference[name].isfinite().all()):
            raise RecipeError(f"tau_r of {name} is not finite", got="NaN or infinity", why="it is added at every step")


def _difference(left: set[str], right: set[str]) -> str:
    return f"only in one: {', '.join(sorted(left ^ right)[:5])}"


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
