"""What shaping makes of measured values: pure functions over the responses that were judged together.

Suffix: S responses. A column holds one number per response; groups are the responses of one prompt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from rollbook.records.composition import (
    Decoupled,
    GroupLength,
    Llama2Whitened,
    Shape,
    Shift,
    Sigmoid,
    SoftLength,
    ThinkingTime,
)
from rollbook.rewards.errors import RewardError
from rollbook.rewards.magistral import length_penalty
from rollbook.rewards.transforms import KimiK15Length, Llama2Reward, moments, sigmoid


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of each response beside its values: length in tokens, prompt, family, rightness, training step (None: not in
    training)."""

    length_S: tuple[int, ...]
    group_S: tuple[str, ...]
    family_S: tuple[str, ...]
    right_S: tuple[bool | None, ...]
    step_S: tuple[int | None, ...]


Column = tuple[float, ...]
SAME = 1e-9         # a spread below this is rounding, and must not be blown up to one


def column(shape: Shape, values: Mapping[str, Column], facts: Facts) -> Column:
    """The shaping's value of every response."""
    match shape:
        case SoftLength():
            return tuple(length_penalty(length, length_max=shape.length_max, length_cache=shape.length_cache, scale=shape.scale)
                         for length in facts.length_S)
        case GroupLength():
            return _group_length(shape, facts)
        case ThinkingTime():
            return tuple(_thinking(shape, length, right) for length, right in zip(facts.length_S, facts.right_S, strict=True))
        case Sigmoid():
            return tuple(sigmoid(shape.slope * value) for value in values[shape.of])
        case Shift():
            return tuple(value + shape.by for value in values[shape.of])
        case Llama2Whitened():
            rule = Llama2Reward(threshold=shape.threshold, clamp=shape.clamp, ddof=shape.ddof)
            tagged = [family in shape.safety_families for family in facts.family_S]
            return rule(values[shape.safe], values[shape.helpful], tagged)
        case Decoupled():
            raise RewardError("decoupled normalisation reads the other components", fix="call `decoupled`")
        case _:
            assert_never(shape)


def decoupled(shape: Decoupled, values: Mapping[str, Column], weights: Mapping[str, float], group_S: Sequence[str]) -> Column:
    """sum_k w_k (r_k - mean) / (std + eps), mean and std over the responses of each prompt."""
    total = [0.0] * len(group_S)
    places: dict[str, list[int]] = defaultdict(list)
    for place, group in enumerate(group_S):
        places[group].append(place)
    for name, value_S in values.items():
        if not weights[name]:
            continue
        for members in places.values():
            held = [value_S[place] for place in members]
            own = moments(held)
            if max(held) - min(held) <= SAME or own.count <= shape.ddof:
                continue
            spread = own.std(shape.ddof) + shape.eps
            for place in members:
                total[place] += weights[name] * (value_S[place] - own.mean) / spread
    return tuple(total)


def _group_length(shape: GroupLength, facts: Facts) -> Column:
    rule = KimiK15Length(weight=shape.weight, start_step=0)
    paid = rule(facts.length_S, [bool(right) for right in facts.right_S], facts.group_S, step=0)
    return tuple(value if step is not None and step >= shape.start_step else 0.0
                 for value, step in zip(paid, facts.step_S, strict=True))


def _thinking(shape: ThinkingTime, length: int, right: bool | None) -> float:
    if shape.only_right and not right:
        return 0.0
    spent = (length - shape.free_tokens) / (shape.full_tokens - shape.free_tokens)
    return -shape.coefficient * min(max(spent, 0.0), 1.0)
