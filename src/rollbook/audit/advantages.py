"""Advantages computed a second time from rewards, groups and the rule; numpy, shares no code with the objectives.

Legend: S sequences of one whole optimization step, all its minibatches together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

ULPS = 4            # units of rounding by which equal rewards may differ
EPS = float(np.finfo(np.float64).eps)
SQUARED = float(np.finfo(np.float64).tiny)**0.5     # less than this squares to 0

# rule -> (baseline, what the divisor is taken over), as a Credit record must say it
AXES: Final[dict[str, tuple[str, str]]] = {
    "GroupCentered": ("group mean", "nothing"),
    "GroupNormalized": ("group mean", "group"),
    "LeaveOneOut": ("mean of the others in the group", "nothing"),
    "MinibatchStandardized": ("group mean", "minibatch"),
}


def advantages(rule: Mapping[str, object], reward_S: Floats, group_S: Ids, part_S: Ids) -> Floats | None:
    """One advantage per sequence; None for a rule that needs more than rewards, groups and minibatches.

    Example: advantages({"kind": "GroupCentered"}, array([1., 0.]), array([0, 0]), array([0, 0])) -> [0.5, -0.5]
    """
    kind = rule.get("kind")
    if kind not in AXES or rule.get("kl_beta") is not None:
        return None
    size_S, mean_S, largest_S, differs_S = _of_group(reward_S, group_S)
    centered_S = np.where(differs_S, reward_S - mean_S, 0.0)
    if kind == "GroupCentered":
        return centered_S
    if kind == "LeaveOneOut":
        return centered_S * size_S / np.maximum(size_S - 1, 1)
    eps, ddof = float(str(rule["eps"])), int(str(rule["ddof"]))
    if kind == "GroupNormalized":
        squares_S = _summed(centered_S**2, group_S)
        return centered_S / (np.sqrt(squares_S / np.maximum(size_S - ddof, 1)) + eps)
    found_S = np.zeros(reward_S.shape)
    for part in np.unique(part_S):
        here_S = (part_S == part) & differs_S
        value = centered_S[here_S]
        noise = (EPS * (size_S + ULPS) * largest_S + SQUARED)[here_S].max(initial=0.0)   # what taking off a mean of n leaves
        if value.size and value.max() - value.min() > noise:
            std = np.sqrt(((value - value.mean())**2).sum() / max(value.size - ddof, 1))
            found_S[here_S] = value / (std + eps)
    return found_S


def _of_group(reward_S: Floats, group_S: Ids) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
    """Size, mean and largest |reward| of each sequence's group, and whether its rewards differ by more than rounding."""
    size_S = _summed(np.ones(reward_S.shape), group_S)
    top, bottom = np.full(group_S.max(initial=-1) + 1, -np.inf), np.full(group_S.max(initial=-1) + 1, np.inf)
    np.maximum.at(top, group_S, reward_S)
    np.minimum.at(bottom, group_S, reward_S)
    largest = np.maximum(np.abs(top), np.abs(bottom))
    with np.errstate(invalid="ignore"):                                          # a number that no sequence has as its group
        differs = top - bottom > ULPS * EPS * largest + SQUARED
    return size_S, _summed(reward_S, group_S) / size_S, largest[group_S], differs[group_S]


def _summed(value_S: Floats, group_S: Ids) -> Floats:
    return np.bincount(group_S, weights=value_S).astype(np.float64)[group_S]
