"""A stored step's loss and gradient by the plain reference, and what its recipe says that it should have been.

Legend: K terms, T action tokens of the step, S sequences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollbook.audit.reference import RecomputeError, Reference, Step, extra_terms, policy_loss, term_loss, weights
from rollbook.objectives import ObjectiveError
from rollbook.objectives.settings import from_settings, to_settings
from rollbook.records import TermSpec
from rollbook.records.recipe import OptimizerSettings

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Stored = Mapping[str, NDArray[np.generic]]

ROUNDING = 4e-6         # nats: what single precision makes of a difference of two log-probs
ELSEWHERE = ("ptx",)    # terms over data that a policy batch does not hold


@dataclass(frozen=True, slots=True)
class Expected:
    """A term as the objective implies it; `settings` is the document of its formula."""

    spec: TermSpec
    settings: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Loss per term, the size of what it sums (for a tolerance), the gradient of the step's loss, the policy term's clips."""

    loss: Mapping[str, float]
    size: Mapping[str, float]
    gradient_T: Floats
    clipped_T: Flags


def inner(objective: Mapping[str, object]) -> Mapping[str, object]:
    """The objective itself, or the one inside a correction or beside a bonus: where credit and aggregate stand."""
    nested = objective.get("objective")
    return inner(nested) if isinstance(nested, Mapping) else objective


def whole(objective: Mapping[str, object]) -> Mapping[str, object]:
    """A recipe's objective with the settings it leaves to their printed values."""
    try:
        return to_settings(from_settings(dict(objective)))
    except (ObjectiveError, TypeError):
        return objective


def differences(one: Mapping[str, object], other: Mapping[str, object], path: str = "") -> list[str]:
    """`field: a, b` for every setting that two documents do not share."""
    found: list[str] = []
    for key in sorted({*one, *other}):
        mine, theirs = one.get(key), other.get(key)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            found += differences(mine, theirs, f"{path}{key}.")
        elif mine != theirs or (key in one) != (key in other):
            found.append(f"{path}{key} {mine!r} for {theirs!r}")
    return found


def expected_terms(objective: Mapping[str, object]) -> list[Expected]:
    """The policy term, then the extra terms, as the objective's settings imply them."""
    own = inner(objective)
    found = [Expected(TermSpec(name="policy", coefficient=1.0, aggregate=str(own.get("aggregate")), population="actions"),
                      objective)]
    for name, settings in extra_terms(objective):
        population = {"positive_nll": "correct", "ptx": "pretraining"}.get(name, "actions")
        spec = TermSpec(name=name, coefficient=float(str(settings["coefficient"])), aggregate=str(settings.get("aggregate")),
                        population=population)
        found.append(Expected(spec, settings))
    return found


def expected_weights(spec: TermSpec, step: Step, max_length: int | None, dropped_S: Flags | None) -> Floats:
    """weight_T as the term's aggregate gives it; what an overlong filter drops has no weight and does not count."""
    sizes = (spec.aggregate, step.length_S, step.group_S, max_length)
    kept_S = None if dropped_S is None else ~dropped_S
    if spec.population == "correct" and step.correct_S is not None:
        kept_S = step.correct_S if kept_S is None else step.correct_S & kept_S
    weight_S = weights(*sizes) if kept_S is None else weights(*sizes, keep_S=kept_S, count_dropped=False)
    return weight_S[step.seq_T]


def recompute(terms: Sequence[Expected], step: Step, weight_KT: Sequence[Floats]) -> Recomputed:
    """Loss and gradient of the whole step."""
    loss: dict[str, float] = {}
    size: dict[str, float] = {}
    gradient_T, clipped_T = np.zeros(step.seq_T.shape), np.zeros(step.seq_T.shape, dtype=bool)
    for term, weight_T in zip(terms, weight_KT, strict=True):
        name = term.spec.name
        if name in ELSEWHERE:
            continue
        found: Reference = (policy_loss(term.settings, step, weight_T) if name == "policy" else
                            term_loss(name, term.settings, step, weight_T))
        if name == "policy":
            clipped_T = found.clipped_T
        loss[name], size[name] = found.loss, abs(term.spec.coefficient) * float(np.abs(weight_T * found.loss_T).sum())
        gradient_T = gradient_T + found.gradient_T
    return Recomputed(loss, size, gradient_T, clipped_T)


def within_rounding(terms: Sequence[Expected], step: Step, weight_KT: Sequence[Floats]) -> list[Recomputed]:
    """The same with the log-probs moved by their rounding, either way: a token at the edge of a bound falls on either side."""
    return [recompute(terms, replace(step, logp_T=step.logp_T + move), weight_KT) for move in (-ROUNDING, ROUNDING)]


def stored_step(given: Stored, found: Stored) -> Step:
    """The stored tensors as the reference reads them."""
    def floats(source: Stored, name: str) -> Floats | None:
        return source[name].astype(np.float64) if name in source else None
    logp_T, behavior_T = floats(found, "logp"), floats(given, "behavior")
    if logp_T is None or behavior_T is None:
        raise RecomputeError("a step needs logp and behavior", got="not stored", why="every ratio is made of them")
    return Step(logp_T=logp_T, behavior_T=behavior_T, anchor_T=floats(given, "anchor"), reference_T=floats(given, "reference"),
                teacher_T=floats(given, "teacher"), advantage_T=floats(given, "advantage"), seq_T=given["seq"].astype(np.int64),
                length_S=given["length"].astype(np.int64), group_S=given["group"].astype(np.int64),
                correct_S=given["correct"] == 1, entropy_T=floats(found, "entropy"))


def rate(settings: OptimizerSettings, step: int, total: int) -> float:
    """Learning rate of optimizer step `step`, the first being 1: linear warm-up, then constant, or a half cosine down to 0."""
    peak, warm = settings.learning_rate, settings.warmup_steps
    if step < warm:
        return peak * step / warm
    if settings.schedule == "constant":
        return peak
    share = min(1.0, (step - warm) / max(1, total - warm))
    return peak * (1 + math.cos(math.pi * share)) / 2
