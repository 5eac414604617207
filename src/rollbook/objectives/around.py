"""What an objective around another one passes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollbook.objectives.aggregate import Aggregate
from rollbook.objectives.core import ExtraTerm, Objective, Unstated
from rollbook.objectives.credit.rules import Credit


@dataclass(frozen=True, slots=True, kw_only=True)
class Around(Objective):
    """An objective around another: reads, scope, credit, aggregate and terms are the inner one's unless a subclass says more."""

    objective: Objective

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]
        return self.objective.reads

    @property
    def scope(self) -> Literal["token", "sequence"]:  # type: ignore[override]
        return self.objective.scope

    @property
    def credit(self) -> Credit | Unstated:
        return self.objective.credit

    @property
    def aggregate(self) -> Aggregate | Unstated:
        return self.objective.aggregate

    @property
    def extra_terms(self) -> tuple[ExtraTerm, ...]:
        return self.objective.extra_terms
