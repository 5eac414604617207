"""What kind of record each setting of an objective holds."""

from __future__ import annotations

from rollbook.objectives.aggregate import check_aggregate
from rollbook.objectives.core import Objective, Unstated
from rollbook.objectives.credit.rules import RULES
from rollbook.objectives.errors import ObjectiveError


def check_kinds(objective: Objective) -> None:
    """Refuse a `credit` that is no credit rule and an `aggregate` that names no denominator."""
    who = type(objective).__name__
    check_aggregate(who, "aggregate", objective.aggregate)
    unstated = isinstance(objective.credit, Unstated) and objective.credit.what == "credit"
    if not unstated and not isinstance(objective.credit, tuple(RULES.values())):
        raise ObjectiveError(
            f"{who}.credit must be a credit rule",
            got=repr(objective.credit),
            why="it makes the advantages",
            fix=f"use one of {', '.join(RULES)}",
        )
