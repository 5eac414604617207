"""An objective with a bonus for entropy beside it, of one size or controlled. Suffix: T action tokens."""

from __future__ import annotations

from dataclasses import dataclass

from rollbook.objectives.aggregate import Aggregate, check_aggregate
from rollbook.objectives.around import Around
from rollbook.objectives.checks import check_not_negative, check_positive, check_record
from rollbook.objectives.core import ActionTokens, ExtraTerm, Objective, TokenLoss
from rollbook.objectives.errors import ObjectiveError
from rollbook.objectives.terms import AdaptiveEntropy, EntropyBonus


@dataclass(frozen=True, slots=True, kw_only=True)
class WithEntropy(Around):
    """`objective`, with the term coefficient * -H beside its own; H is the entropy (nats) of the whole next-token distribution.

    The policy loss and its gradient with respect to logp are the objective's; the bonus acts on the distribution itself, with
    gradient coefficient * weight * p (log p + H) on each logit. A correction (`Corrected`) goes inside: it weighs no bonus.
    """

    coefficient: float
    entropy_aggregate: Aggregate

    def __post_init__(self) -> None:
        check_record("WithEntropy", "objective", self.objective, Objective)
        check_positive("WithEntropy", coefficient=self.coefficient)
        check_aggregate("WithEntropy", "entropy_aggregate", self.entropy_aggregate)
        _check_alone(self)

    @property
    def extra_terms(self) -> tuple[ExtraTerm, ...]:
        bonus = EntropyBonus(coefficient=self.coefficient, aggregate=self.entropy_aggregate)
        return (*self.objective.extra_terms, bonus)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        return self.objective(tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlledEntropy(Around):
    """`objective` with a bonus for entropy that moves by `step` per optimizer step (Skywork-OR1, 2505.22312 section 3).

    alpha begins at `start` and follows `AdaptiveEntropy(target, step, maximum)`; the coefficient of an optimizer step is alpha
    where the mean entropy of its tokens, in nats and before the step, is at most `target`, else 0. As it stands it is 0: `at`
    gives the objective of one optimizer step. `start` is printed nowhere.
    """

    start: float
    step: float
    maximum: float | None
    entropy_aggregate: Aggregate
    target: float = 0.2

    def __post_init__(self) -> None:
        check_record("ControlledEntropy", "objective", self.objective, Objective)
        check_not_negative("ControlledEntropy", start=self.start)
        check_aggregate("ControlledEntropy", "entropy_aggregate", self.entropy_aggregate)
        _ = self.rule
        if self.maximum is not None and self.start > self.maximum:
            raise ObjectiveError(
                "ControlledEntropy begins within its bounds",
                got=f"start {self.start!r}, maximum {self.maximum!r}",
                why="the first coefficient would be one that the controller never gives",
                fix="lower start, or raise maximum",
            )
        _check_alone(self)

    @property
    def rule(self) -> AdaptiveEntropy:
        """How alpha moves, and when the bonus is off."""
        return AdaptiveEntropy(target=self.target, step=self.step, maximum=self.maximum)

    @property
    def extra_terms(self) -> tuple[ExtraTerm, ...]:
        return (*self.objective.extra_terms, EntropyBonus(coefficient=0.0, aggregate=self.entropy_aggregate))

    def at(self, coefficient: float) -> EntropyAt:
        """The objective of an optimizer step whose bonus has this coefficient; 0 is a bonus that is off."""
        return EntropyAt(objective=self.objective, coefficient=coefficient, entropy_aggregate=self.entropy_aggregate)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        return self.objective(tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyAt(Around):
    """One optimizer step of `ControlledEntropy`: a bonus of this coefficient, which may be 0. No recipe names it."""

    coefficient: float
    entropy_aggregate: Aggregate

    def __post_init__(self) -> None:
        check_not_negative("EntropyAt", coefficient=self.coefficient)

    @property
    def extra_terms(self) -> tuple[ExtraTerm, ...]:
        return (*self.objective.extra_terms, EntropyBonus(coefficient=self.coefficient, aggregate=self.entropy_aggregate))

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        return self.objective(tokens)


def _check_alone(outer: WithEntropy | ControlledEntropy) -> None:
    if isinstance(outer.objective, (WithEntropy, ControlledEntropy)):
        raise ObjectiveError(
            f"{type(outer).__name__} takes an objective without an entropy bonus",
            got=type(outer.objective).__name__,
            why="two bonuses of one quantity have one coefficient",
            fix="add the coefficients",
        )
