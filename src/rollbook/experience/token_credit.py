"""What a credit rule asks for: rewards alone, or numbers of models for every token; and the axes that a record states."""

from __future__ import annotations

from typing import Final

from rollbook.objectives import Unstated
from rollbook.objectives.credit import rules

OF_GROUP: Final = (rules.GroupCentered, rules.GroupNormalized, rules.MinibatchStandardized, rules.LeaveOneOut)
BASELINE: Final = {rules.LeaveOneOut: "mean of the others in the group", rules.Gae: "critic", rules.LengthAdaptiveGae: "critic",
                   rules.GroupCentered: "group mean", rules.GroupNormalized: "group mean",
                   rules.MinibatchStandardized: "group mean", rules.StepGroups: "group mean and mean of the state"}
NORMALIZED: Final = {rules.GroupNormalized: "group", rules.MinibatchStandardized: "minibatch", rules.BatchNormalized: "batch"}


def uses_kl(rule: object) -> bool:
    """Whether a KL to the reference is part of the reward."""
    return getattr(rule, "kl_beta", None) is not None


def uses_values(rule: object) -> bool:
    """Whether a critic gives the baseline."""
    return isinstance(rule, (rules.Gae, rules.LengthAdaptiveGae))


def per_token(rule: object) -> bool:
    """Whether advantages are given token by token, once models have scored the tokens."""
    return not isinstance(rule, (*OF_GROUP, Unstated)) or uses_kl(rule)


def of_group(rule: object) -> bool:
    """Whether the baseline is made of the other attempts at the same task."""
    if isinstance(rule, rules.BatchNormalized):
        return rule.baseline == "group_mean"
    return isinstance(rule, (*OF_GROUP, rules.StepGroups))


def axes(rule: object) -> tuple[str, str]:
    """The baseline and what is normalised over, in words."""
    baseline = BASELINE.get(type(rule), "none")
    if isinstance(rule, rules.BatchNormalized) and rule.baseline == "group_mean":
        baseline = "group mean"
    if isinstance(rule, rules.StepGroups):
        return baseline, "group, and state" if rule.normalizer == "std" else "nothing"
    return baseline, NORMALIZED.get(type(rule), "nothing")
