"""Whether a recorded vector can come from a composed reward: pure checks on its values, without judging a text again."""

from __future__ import annotations

from rollbook.records import RewardVector
from rollbook.records.composition import SCORERS, ComposedReward, Shift, Sigmoid, SoftLength, ThinkingTime
from rollbook.records.ready_made import NamedReward
from rollbook.rewards.composed.judge import VERSION, checked
from rollbook.rewards.transforms import sigmoid

SAME = 1e-12


def composed_name(reward: ComposedReward | NamedReward) -> str:
    """The name that the vectors of a composed reward carry."""
    return f"{reward.composition if isinstance(reward, NamedReward) else reward.name}/{VERSION}"


def misfit(vector: RewardVector, settings: ComposedReward | NamedReward) -> str:
    """A value that this reward cannot give, or an accuracy that contradicts its part; empty when there is none."""
    reward = checked(settings)
    for name, part in reward.parts.items():
        value = vector.value(name)
        if value is None or part.measure.partition(":")[0] in SCORERS:
            continue
        if part.fraction and not 0.0 <= value <= 1.0:
            return f"{name} is {value:g}, a share lies in 0 to 1"
        if not part.fraction and value not in (part.passed, part.failed):
            return f"{name} is {value:g}, the recipe gives {part.failed:g} or {part.passed:g}"
    for name in reward.shaping:
        problem = _misshaped(vector, name, reward)
        if problem:
            return problem
    if reward.accuracy is None:
        return "" if vector.accuracy is None else f"accuracy is {vector.accuracy:g}, no part of the reward says what is right"
    part, value = reward.parts[reward.accuracy], vector.value(reward.accuracy)
    if value is None:
        return f"accuracy is {vector.accuracy:g} where {reward.accuracy} did not run" if vector.accuracy else ""
    if part.measure.partition(":")[0] in SCORERS or part.fraction or part.passed == part.failed:
        return ""
    if vector.accuracy != float(value == part.passed):
        return f"accuracy is {vector.accuracy}, {reward.accuracy} {value:g}"
    return ""


def _misshaped(vector: RewardVector, name: str, reward: ComposedReward) -> str:
    """A shaped value that does not follow from the vector, or lies outside its range."""
    shape, value = reward.shaping[name], vector.value(name)
    if value is None:
        return ""
    match shape:
        case SoftLength(scale=least) | ThinkingTime(coefficient=least):
            return "" if -least <= value <= 0.0 else f"{name} is {value:g}, the recipe gives -{least:g} to 0"
        case Sigmoid() | Shift():
            raw = vector.value(shape.of)
            wanted = None if raw is None else sigmoid(shape.slope * raw) if isinstance(shape, Sigmoid) else raw + shape.by
            right = wanted is not None and abs(wanted - value) <= SAME
            return "" if right else f"{name} is {value!r}, {shape.of} makes it {wanted!r}"
        case _:
            return ""
