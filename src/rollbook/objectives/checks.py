"""Refusals shared by the settings records."""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.objectives.errors import ObjectiveError


def check_bounds(who: str, **bounds: float) -> None:
    """Refuse a negative bound: the interval is 1-low .. 1+high."""
    for name, value in bounds.items():
        if not value >= 0:
            raise ObjectiveError(
                f"{who}.{name} must be >= 0",
                got=repr(value),
                why="bounds are distances from 1: the ratio interval is 1-low .. 1+high",
                fix=f"pass the distance, e.g. {name}=0.2 for a bound 0.2 away from 1",
            )


def check_positive(who: str, **values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ObjectiveError(f"{who}.{name} must be > 0", got=repr(value), why="it scales or divides", fix=f"set {name} > 0")


def check_choice(who: str, name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ObjectiveError(
            f"{who}.{name} must be one of {', '.join(allowed)}",
            got=repr(value),
            why="the sources are silent or disagree, so the choice is yours and has a name",
            fix=f"set {name} to one of these",
        )


def check_at_least(who: str, least: float, **values: float) -> None:
    for name, value in values.items():
        if not value >= least:
            raise ObjectiveError(
                f"{who}.{name} must be >= {least:g}",
                got=repr(value),
                why="its interval would be empty",
                fix=f"set {name} >= {least:g}",
            )
