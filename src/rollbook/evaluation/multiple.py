"""Several comparisons at once: p-values adjusted so that one threshold holds for all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from scipy import stats

from rollbook.records import RecordError


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values; among those at or below a, any false one appears with probability at most a (Holm 1979).

    Example: holm({"a": 0.01, "b": 0.04}) -> {"a": 0.02, "b": 0.04}
    """
    _check(p_values)
    adjusted: dict[str, float] = {}
    worst = 0.0
    for place, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        worst = max(worst, min(1.0, (len(p_values) - place) * p))
        adjusted[name] = worst
    return {name: adjusted[name] for name in p_values}


def benjamini_hochberg(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values; of those at or below a, a share of at most a is false on average (Benjamini and Hochberg 1995)."""
    _check(p_values)
    if not p_values:
        return {}
    made = stats.false_discovery_control(list(p_values.values()), method="bh")
    return {name: float(p) for name, p in zip(p_values, made, strict=True)}


def _check(p_values: Mapping[str, float]) -> None:
    wrong = {name: p for name, p in p_values.items() if not (math.isfinite(p) and 0.0 <= p <= 1.0)}
    if wrong:
        raise RecordError("a p-value lies between 0 and 1", got=", ".join(f"{name} = {p}" for name, p in wrong.items()),
                          why="a comparison that was not made has none", fix="leave it out")
