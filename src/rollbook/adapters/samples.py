"""What a host gives of one attempt, as records: tokens become segments by owner, rewards become a verdict with its parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rollbook.records import (
    AbsentComponent,
    AttemptId,
    Component,
    Composition,
    NotExposed,
    RecordError,
    RewardVector,
    Scored,
    Segment,
    TaskId,
    Trace,
    TraceId,
    Unscored,
    Verdict,
    VerifierStamp,
    canonical,
    digest,
)
from rollbook.records.rollout import StopReason

LOST_LOGPS = "logps/not_finite"      # observed of a trace: how many of its log-probs were NaN or infinite


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A completion as the host sampled it. `logps` (nats, float32) is None where the host does not show them.

    `own` says which of the tokens the policy sampled, None for all; the others are a tool's. `version` counts the optimizer
    steps behind the weights that sampled it.

    Example: Sampled(attempt="rl/000001/0/HostTask:1f/2", prompt_ids=(5, 6), token_ids=(17, 2), text="7",
        stop_reason="end_of_turn", version=0, logps=(-0.5, -0.01))
    """

    attempt: AttemptId
    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    text: str
    stop_reason: StopReason
    version: int
    logps: Sequence[float] | None = None
    own: Sequence[bool] | None = None

    def trace(self, task: TaskId, group: str, envelope: str | None) -> Trace:
        """The trajectory; log-probs that are not finite are counted and stand as not exposed."""
        for name, beside in (("logps", self.logps), ("own", self.own)):
            if beside is not None and len(beside) != len(self.token_ids):
                raise RecordError(f"attempt {self.attempt} has another number of {name} than of tokens",
                                  got=f"{len(beside)} for {len(self.token_ids)}", fix=f"give one of `{name}` per token, or None")
        lost = 0 if self.logps is None else sum(not math.isfinite(value) for value in self.logps)
        segments = [Segment(owner="user", token_ids=tuple(map(int, self.prompt_ids))), *self._segments(shown=not lost)]
        return Trace(attempt=self.attempt, task=task, group=group, envelope=envelope, segments=tuple(segments),
                     stop_reason=self.stop_reason, text=self.text, observed={LOST_LOGPS: float(lost)} if lost else {})

    def _segments(self, *, shown: bool) -> list[Segment]:
        ids = tuple(map(int, self.token_ids))
        if not ids:
            return [Segment(owner="policy", token_ids=(), logps=(), version=self.version)]
        own = [True] * len(ids) if self.own is None else list(map(bool, self.own))
        segments = []
        for mine, run in groupby(range(len(ids)), key=own.__getitem__):
            places = list(run)
            here = slice(places[0], places[-1] + 1)
            if not mine:
                segments.append(Segment(owner="tool", token_ids=ids[here]))
                continue
            known = tuple(map(float, self.logps[here])) if self.logps is not None and shown else NotExposed()
            segments.append(Segment(owner="policy", token_ids=ids[here], logps=known, version=self.version))
        return segments


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardParts:
    """The parts of a host's reward: weight and verifier of each, by name; the scalar is their weighted sum.

    Example: RewardParts(name="my_reward/1", weights={"correct": 1.0}, verifiers={"correct": VerifierStamp(...)})
    """

    name: str
    weights: Mapping[str, float]
    verifiers: Mapping[str, VerifierStamp]

    def __post_init__(self) -> None:
        if not self.weights or set(self.weights) != set(self.verifiers):
            raise RecordError("every part of a reward has a weight and a verifier",
                              got=f"weights of {sorted(self.weights)}, verifiers of {sorted(self.verifiers)}")

    @property
    def composition(self) -> Composition:
        parts = {name: float(weight) for name, weight in self.weights.items()}
        own = digest(canonical({"name": self.name, "gate": None, "parts": parts}))
        return Composition(name=self.name, digest=own, gate=None, parts=parts)

    def verdict(self, trace: TraceId, given: float | Mapping[str, float | None]) -> Verdict:
        """The verdict on what the host gave: a scalar is the only part; None and NaN are absent with the reason, never 0.0."""
        values = given if isinstance(given, Mapping) else self._single(given)
        unknown = sorted(set(values) - set(self.weights))
        if unknown:
            raise RecordError("the host gave a reward that is no part of its composition", got=", ".join(unknown),
                              fix=f"parts: {', '.join(self.weights)}")
        ran = {name: float(value) for name in self.weights if (value := values.get(name)) is not None and math.isfinite(value)}
        absent = tuple(AbsentComponent(name=name, reason="the host gave none" if values.get(name) is None
                                       else f"the host gave {values[name]}") for name in self.weights if name not in ran)
        if not ran:
            reasons = "; ".join(f"{one.name}: {one.reason}" for one in absent)
            return Unscored(trace=trace, verifier=next(iter(self.verifiers.values())), code="unavailable", detail=reasons)
        composition = self.composition
        parts = tuple(Component(name=name, value=value, verifier=self.verifiers[name]) for name, value in ran.items())
        return Scored(trace=trace, vector=RewardVector(
            components=parts, absent=absent, composition=composition.name, composition_digest=composition.digest,
            total=float(composition.total(ran)), accuracy=None))

    def _single(self, value: float) -> Mapping[str, float]:
        if len(self.weights) != 1:
            raise RecordError("one number is given for a reward of several parts", got=", ".join(self.weights),
                              why="a scalar hides which part it came from", fix="give a mapping of part to value")
        return {next(iter(self.weights)): value}


def finite(numbers: Mapping[str, float | None]) -> tuple[dict[str, float], tuple[str, ...]]:
    """The finite numbers, and the names of those that were NaN or infinite; None is neither."""
    given = {name: float(value) for name, value in numbers.items() if value is not None}
    kept = {name: value for name, value in given.items() if math.isfinite(value)}
    return kept, tuple(sorted(set(given) - set(kept)))
