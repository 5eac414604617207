"""What kind of record each setting of an objective holds."""

from __future__ import annotations

from typing import get_args

from rollbook.objectives.aggregate import Aggregate
from rollbook.objectives.checks import check_choice
from rollbook.objectives.core import Objective, Unstated
from rollbook.objectives.credit.rules import RULES
from rollbook.objectives.errors import ObjectiveError


def check_kinds(objective: Objective) -> None:
    """Refuse a `credit` that is no credit rule and an `aggregate` that names no denominator."""
    who = type(objective).__name__
    if not isinstance(objective.aggregate, Unstated):
        check_choice(who, "aggregate", objective.aggregate, get_args(Aggregate))
    if not isinstance(objective.credit, (Unstated, *RULES.values())):
        raise ObjectiveError(
            f"{who}.credit must be a credit rule",
            got=repr(objective.credit),
            why="it makes the advantages",
            fix=f"use one of {', '.join(RULES)}",
        )
