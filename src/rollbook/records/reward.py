"""Stage 8: a verdict is a vector of components or a reason why there is none; never a zero for a crash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rollbook.records.codec import content_id
from rollbook.records.rollout import TraceId

FailureCode = Literal["timeout", "crash", "out_of_memory", "no_reference", "unparsable_reference", "unavailable",
                      "not_finished", "undecided", "malformed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierStamp:
    """Which code judged: a digest over its source and settings.

    Example: VerifierStamp(name="math", version="1", digest="77fe..")
    """

    name: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A part of the reward that was computed. `confidence` is 1.0 for deterministic rules.

    Example: Component(name="correctness", value=0.9, verifier=VerifierStamp(...), detail="7 = 7")
    """

    name: str
    value: float
    verifier: VerifierStamp
    confidence: float = 1.0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentComponent:
    """A part of the composition that did not run, and why. It is not 0.0."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """How a scalar is made of the parts, as data: a failed gate gives 0.0, else the weighted parts are summed.

    `digest` is what a `RewardVector` names, `parts` maps every part of the composition to its weight, `gate` names the part that
    must be above zero. A part may be absent only for a recorded reason.

    Example: Composition(name="magistral/1", digest="c0..", gate="format", parts={"format": 1.0, "correctness": 1.0, ...})
    """

    SCHEMA: ClassVar[int] = 1
    name: str
    digest: str
    gate: str | None
    parts: Mapping[str, float]

    def total(self, values: Mapping[str, float]) -> float:
        """The scalar for the parts that ran."""
        if self.gate is not None and not values.get(self.gate, 0.0) > 0.0:
            return 0.0
        return sum(self.parts[name] * value for name, value in values.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardVector:
    """The parts, the composition that was applied to them, and the scalar it gave.

    Example: RewardVector(components=(...), absent=(AbsentComponent(name="language_consistency", reason="not configured"),),
        composition="magistral/1", composition_digest="c0..", total=1.0, accuracy=1.0)
    """

    components: tuple[Component, ...]
    absent: tuple[AbsentComponent, ...]
    composition: str
    composition_digest: str
    total: float
    accuracy: float | None
    hidden_test_access: bool = False

    def value(self, name: str) -> float | None:
        """The component's value, None where it did not run."""
        return next((part.value for part in self.components if part.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A verdict with a reward vector."""

    SCHEMA: ClassVar[int] = 1
    trace: TraceId
    vector: RewardVector
    observed: Mapping[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return content_id(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unscored:
    """A verdict that could not be reached: the attempt leaves the group statistics and stays in the census."""

    SCHEMA: ClassVar[int] = 1
    trace: TraceId
    verifier: VerifierStamp
    code: FailureCode
    detail: str
    observed: Mapping[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return content_id(self)


Verdict = Scored | Unscored
