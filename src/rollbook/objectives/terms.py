"""Per-token terms beside the policy loss, each with its own population and denominator. Suffix: T tokens.

Settings records (`KlTerm`, `PositiveNll`, `Ptx`) are callables over the functions of the same maths.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, Literal

from torch import Tensor

from rollbook.objectives import kl
from rollbook.objectives.aggregate import Aggregate, check_aggregate
from rollbook.objectives.checks import check_choice, check_float, check_limit, check_not_negative, check_number, check_record
from rollbook.objectives.core import ActionTokens, ExtraTerm, Population, Unstated, read
from rollbook.objectives.errors import ObjectiveError

Estimator = Literal["k2", "k3", "unbiased"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KlTerm(ExtraTerm):
    """coefficient * KL(pi || reference) as a loss. k1 is not offered: as a loss its expected gradient is zero."""

    name: ClassVar[str] = "kl"
    estimator: Estimator
    coefficient: float
    aggregate: Aggregate | Unstated

    def __post_init__(self) -> None:
        check_choice("KlTerm", "estimator", self.estimator, ("k2", "k3", "unbiased"))
        check_not_negative("KlTerm", coefficient=self.coefficient)
        check_aggregate("KlTerm", "aggregate", self.aggregate)

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]
        anchor = {"anchor_T"} if self.estimator == "unbiased" else set()
        return frozenset({"logp_T", "reference_T"} | anchor)

    def __call__(self, tokens: ActionTokens) -> Tensor:
        (reference_T,) = read(tokens, self, "reference_T")
        match self.estimator:
            case "k2":
                return kl.k2(tokens.logp_T, reference_T)
            case "k3":
                return kl.k3(tokens.logp_T, reference_T)
            case "unbiased":
                (anchor_T,) = read(tokens, self, "anchor_T")
                return kl.unbiased(tokens.logp_T, anchor_T, reference_T)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositiveNll(ExtraTerm):
    """VAPO's L_pos = -(sum over tokens of correct sequences of logp) / (their number).

    Its weight is sequence_weight("token_mean", ..., keep_S=correct_S, count_dropped=False): 0 when nothing is correct.
    """

    name: ClassVar[str] = "positive_nll"
    reads: ClassVar[frozenset[str]] = frozenset({"logp_T"})
    population: ClassVar[Population] = "correct"
    coefficient: float
    aggregate: Aggregate | Unstated = "token_mean"

    def __post_init__(self) -> None:
        check_not_negative("PositiveNll", coefficient=self.coefficient)
        check_aggregate("PositiveNll", "aggregate", self.aggregate)

    def __call__(self, tokens: ActionTokens) -> Tensor:
        check_record("PositiveNll", "tokens", tokens, ActionTokens)
        return positive_nll(tokens.logp_T)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ptx(ExtraTerm):
    """InstructGPT's pretraining mix: coefficient * mean over pretraining text of -logp. The averaging unit is not printed."""

    name: ClassVar[str] = "ptx"
    reads: ClassVar[frozenset[str]] = frozenset({"logp_T"})
    population: ClassVar[Population] = "pretraining"
    coefficient: float
    aggregate: Aggregate | Unstated

    def __post_init__(self) -> None:
        check_not_negative("Ptx", coefficient=self.coefficient)
        check_aggregate("Ptx", "aggregate", self.aggregate)

    def __call__(self, tokens: ActionTokens) -> Tensor:
        check_record("Ptx", "tokens", tokens, ActionTokens)
        return ptx(tokens.logp_T)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBonus(ExtraTerm):
    """coefficient * -H as a loss: a fixed reward for entropy. Skywork-OR1 adapts the coefficient instead (`AdaptiveEntropy`)."""

    name: ClassVar[str] = "entropy"
    reads: ClassVar[frozenset[str]] = frozenset({"entropy_T"})
    coefficient: float
    aggregate: Aggregate | Unstated

    def __post_init__(self) -> None:
        check_not_negative("EntropyBonus", coefficient=self.coefficient)
        check_aggregate("EntropyBonus", "aggregate", self.aggregate)

    def __call__(self, tokens: ActionTokens) -> Tensor:
        check_record("EntropyBonus", "tokens", tokens, ActionTokens)
        return entropy_bonus(tokens.one(self, "entropy_T"))


def positive_nll(logp_T: Tensor) -> Tensor:
    """-logp of tokens of correct sequences. Gradient -1."""
    check_float("positive_nll", logp_T=logp_T)
    return -logp_T


def ptx(logp_T: Tensor) -> Tensor:
    """-logp of pretraining text. Gradient -1."""
    check_float("ptx", logp_T=logp_T)
    return -logp_T


def entropy_bonus(entropy_T: Tensor) -> Tensor:
    """-H per token, H the entropy (nats) of the full next-token distribution; its coefficient comes from `AdaptiveEntropy`.

    Gradient of H wrt logits: -p (log p + H).
    """
    check_float("entropy_bonus", entropy_T=entropy_T)
    return -entropy_T


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveEntropy:
    """Skywork-OR1's entropy coefficient (2505.22312 section 3), stepped once per optimizer step, not per micro-batch.

        alpha <- alpha + step if H < target else alpha - step,  kept in [0, maximum];  bonus = -alpha 1[H <= target] H

    `target` 0.2 is printed. `step`: paper 0.005, released 7B script 1e-4; `maximum`: paper none, script 0.005. H is the mean
    token entropy of the whole optimizer step, over all ranks.
    """

    target: float = 0.2
    step: float
    maximum: float | None

    def __post_init__(self) -> None:
        check_not_negative("AdaptiveEntropy", target=self.target, step=self.step)
        if self.maximum is not None:
            check_limit("AdaptiveEntropy", maximum=self.maximum)

    def coefficient(self, alpha: float, entropy: float) -> float:
        """alpha where H <= target, exactly 0 above it."""
        _check_measured(alpha, entropy)
        return alpha if entropy <= self.target else 0.0

    def advance(self, alpha: float, entropy: float) -> float:
        """The next step's alpha."""
        _check_measured(alpha, entropy)
        moved = alpha + self.step if entropy < self.target else alpha - self.step
        return max(0.0, moved if self.maximum is None else min(moved, self.maximum))


def _check_measured(alpha: float, entropy: float) -> None:
    check_not_negative("AdaptiveEntropy", alpha=alpha)
    check_number("AdaptiveEntropy", "entropy", entropy)
    if not isfinite(entropy) or entropy < 0:
        raise ObjectiveError(
            "AdaptiveEntropy needs a measured entropy >= 0",
            got=repr(entropy),
            why="it is the entropy of no distribution, and alpha would move one way for good",
            fix="stop the run: the policy's distribution is broken",
        )
