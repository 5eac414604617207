"""Refusals of settings and columns that are no numbers, no counts, no labels. Suffix: S responses."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rollbook.rewards.errors import RewardError


def check_numbers(who: str, **values: object) -> None:
    """Refuse text, flags, nothing, NaN and infinity where a number is computed with."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
            raise RewardError(f"{who}.{name} must be a finite number", got=f"{value!r:.60}", why="rewards are computed with it",
                              fix=f"pass {name} as a number")


def check_counts(who: str, **values: object) -> None:
    """Refuse what is no whole number >= 0."""
    for name, value in values.items():
        if type(value) is not int or value < 0:
            raise RewardError(f"{who}.{name} must be a whole number >= 0", got=f"{value!r:.60}", why="it counts",
                              fix=f"pass {name} as an int")


def check_labels(who: str, **columns: Sequence[object]) -> None:
    """Refuse labels other than True and False: a response that was not verified is neither."""
    for name, column in columns.items():
        for place, value in enumerate(column):
            if not isinstance(value, bool):
                raise RewardError(f"{who}: {name} must be True or False for every response", got=f"{value!r:.60} at {place}",
                                  why="NaN and None would count as one of the two", fix="leave unverified responses out")


def check_scores(who: str, **columns: Sequence[object]) -> None:
    """Refuse columns with an entry that is no finite number."""
    for name, column in columns.items():
        for place, value in enumerate(column):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise RewardError(f"{who}: {name} needs a finite number for every response", got=f"{value!r:.60} at {place}",
                                  why="one that was not scored would reach the others", fix="leave unscored responses out")
