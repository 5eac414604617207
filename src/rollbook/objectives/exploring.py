"""An objective with a bonus for entropy beside it. Suffix: T action tokens."""

from __future__ import annotations

from dataclasses import dataclass

from rollbook.objectives.aggregate import Aggregate, check_aggregate
from rollbook.objectives.around import Around
from rollbook.objectives.checks import check_positive, check_record
from rollbook.objectives.core import ActionTokens, ExtraTerm, Objective, TokenLoss
from rollbook.objectives.errors import ObjectiveError
from rollbook.objectives.terms import EntropyBonus


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
        if isinstance(self.objective, WithEntropy):
            raise ObjectiveError(
                "WithEntropy takes an objective without an entropy bonus",
                got="WithEntropy",
                why="two bonuses of one quantity have one coefficient",
                fix="add the coefficients",
            )

    @property
    def extra_terms(self) -> tuple[ExtraTerm, ...]:
        bonus = EntropyBonus(coefficient=self.coefficient, aggregate=self.entropy_aggregate)
        return (*self.objective.extra_terms, bonus)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        return self.objective(tokens)
