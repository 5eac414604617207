"""The judge of a composed reward: gates first, then the parts, then shaping; one verdict per trace, in order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from rollbook.records import (
    AbsentComponent,
    Component,
    Composition,
    RewardVector,
    Scored,
    Task,
    TaskId,
    Trace,
    Unscored,
    Verdict,
    VerifierStamp,
    encode,
)
from rollbook.records.composition import SCORERS, ComposedReward, Decoupled, misfits
from rollbook.records.ready_made import NamedReward, expanded, named_misfits
from rollbook.rewards.composed.measures import Measure, Sources, Value, measure_of
from rollbook.rewards.composed.shapes import Facts, column, decoupled
from rollbook.rewards.errors import RewardError
from rollbook.rewards.pool import Failure
from rollbook.rewards.stamps import stamp

VERSION = "1"
SOURCES = ("composed/judge.py", "composed/shapes.py", "composed/measures.py", "transforms.py", "magistral.py")
STEP = re.compile(r"[^/]+/(\d{6})/")


@dataclass(slots=True)
class Response:
    """One trace on its way to its verdict: what was measured, which gate failed it, why it has no verdict."""

    trace: Trace
    values: dict[str, Value] = field(default_factory=dict)
    gated: str | None = None
    failure: tuple[str, Failure] | None = None


class ComposedJudge:
    """Judges by a composed reward. A part that fails leaves its response unscored; nothing is graded behind a failed gate.

    Whitening and normalisation are over the responses of one call: that call is the batch. A context manager.

    Example: with ComposedJudge(settings) as judge: verdicts = judge.judge(traces, tasks)
    """

    def __init__(self, settings: ComposedReward | NamedReward, sources: Sources | None = None):
        self.settings = settings
        self.reward = checked(settings)
        self.sources = sources if sources is not None else Sources()
        self._measures = {name: measure_of(name, part, self.sources, seconds=self.reward.verify_seconds,
                                           workers=self.reward.verify_workers) for name, part in self.reward.parts.items()}
        described = {key: value for key, value in encode(self.reward).items() if key != "verify_workers"}
        self.stamp: VerifierStamp = stamp(self.reward.name, VERSION, SOURCES, {
            "reward": described, "parts": {name: one.stamp.digest for name, one in self._measures.items()}})
        self.digest: str = self.stamp.digest
        self.composition = Composition(name=f"{self.reward.name}/{VERSION}", digest=self.digest, gate=self.reward.gate,
                                       parts=self.reward.weights())
        self._shapes = {name: stamp(type(shape).__name__, VERSION, SOURCES[1:], encode(shape))
                        for name, shape in self.reward.shaping.items()}

    @property
    def unprovable(self) -> str | None:
        """Why no fresh process can judge the same: it was handed models, judges or a sandbox."""
        handed = [part.measure for part in self.reward.parts.values() if part.measure.partition(":")[0] in SCORERS
                  or part.measure.startswith("code")]
        return f"measured by {', '.join(handed)}, which this process was handed" if handed else None

    def judge(self, traces: Sequence[Trace], tasks: Mapping[TaskId, Task]) -> list[Verdict]:
        """One verdict per trace, in order. A truncated trace is judged by the rules; an unfinished one is unscored."""
        responses = [Response(trace=trace, failure=_unjudgeable(trace, tasks)) for trace in traces]
        for gate in self.reward.gates:
            self._measured(gate, responses, tasks)
            for one in responses:
                if one.failure is None and one.gated is None and not one.values[gate].right:
                    one.gated = gate
        for name in self.reward.parts:
            if name not in self.reward.gates:
                self._measured(name, responses, tasks)
        scored = [one for one in responses if one.failure is None]
        shaped = self._shaped(scored, tasks)
        vectors = {one.trace.id: self._vector(one, {name: value for name, found in shaped.items()
                                                    if (value := found[place]) is not None}) for place, one in enumerate(scored)}
        return [Scored(trace=one.trace.id, vector=vectors[one.trace.id]) if one.failure is None
                else self._unscored(one.trace, *one.failure) for one in responses]

    def close(self) -> None:
        """Ends the worker processes."""
        for one in self._measures.values():
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _measured(self, name: str, responses: Sequence[Response], tasks: Mapping[TaskId, Task]) -> None:
        """Fills one part of every response that is still graded."""
        graded = [one for one in responses if one.failure is None and one.gated is None]
        found = self._measures[name].values([one.trace for one in graded], tasks) if graded else []
        for one, value in zip(graded, found, strict=True):
            if isinstance(value, Failure):
                one.failure = name, value
            else:
                one.values[name] = value

    def _shaped(self, scored: Sequence[Response], tasks: Mapping[TaskId, Task]) -> dict[str, list[float | None]]:
        """Shaping by name, one entry per scored response; None where a gate stopped the grading."""
        graded = [place for place, one in enumerate(scored) if one.gated is None]
        facts = _facts([scored[place] for place in graded], self.reward, tasks)
        values = {name: tuple(scored[place].values[name].value for place in graded)
                  for name in self.reward.parts} if graded else {}
        found: dict[str, list[float | None]] = {}
        for name, shape in self.reward.shaping.items():
            found[name] = [None] * len(scored)
            if isinstance(shape, Decoupled) or not graded:
                continue
            for place, value in zip(graded, column(shape, values, facts), strict=True):
                found[name][place] = value
        for name, shape in self.reward.shaping.items():
            if isinstance(shape, Decoupled):
                weights = self.reward.raw_weights()
                raw = {part: tuple(_raw(one, found, part, place) for place, one in enumerate(scored)) for part in weights}
                found[name] = list(decoupled(shape, raw, weights, [one.trace.group for one in scored]))
        return found

    def _vector(self, one: Response, shaped: Mapping[str, float]) -> RewardVector:
        values = {name: value.value for name, value in one.values.items()} | dict(shaped)
        parts = [Component(name=name, value=value.value, verifier=self._measures[name].stamp, confidence=value.confidence,
                           detail=value.detail) for name, value in one.values.items()]
        parts += [Component(name=name, value=value, verifier=self._shapes[name]) for name, value in shaped.items()]
        reason = f"{one.gated} gate failed: {one.values[one.gated].detail}" if one.gated is not None else "nothing computed it"
        absent = tuple(AbsentComponent(name=name, reason=reason) for name in self.composition.parts if name not in values)
        return RewardVector(components=tuple(parts), absent=absent, composition=self.composition.name,
                            composition_digest=self.digest, total=self.composition.total(values), accuracy=self._accuracy(one))

    def _accuracy(self, one: Response) -> float | None:
        if self.reward.accuracy is None:
            return None
        found = one.values.get(self.reward.accuracy)
        return 1.0 if found is not None and found.right else 0.0

    def _unscored(self, trace: Trace, name: str, failure: Failure) -> Unscored:
        who = self._measures[name].stamp if name in self._measures else self.stamp
        detail = f"{name}: {failure.detail}" if name else failure.detail
        return Unscored(trace=trace.id, verifier=who, code=failure.code, detail=detail)


def checked(settings: ComposedReward | NamedReward) -> ComposedReward:
    """The composition with all names resolved; RewardError with the first thing that is wrong with it."""
    if isinstance(settings, NamedReward):
        for misfit in named_misfits(settings):
            raise RewardError(f"reward.{misfit.path} {misfit.what}", got=misfit.got, fix=misfit.fix)
        settings = expanded(settings)
    for misfit in misfits(settings):
        raise RewardError(f"reward.{misfit.path} {misfit.what}", got=misfit.got, fix=misfit.fix)
    return settings


def step_of(attempt: str) -> int | None:
    """The training step (from 0) in an attempt's name; None outside a policy stage.

    Example: step_of("rl/000003/0/2/Task:1f/1") == 2
    """
    found = STEP.match(attempt)
    return int(found[1]) - 1 if found else None


def _raw(one: Response, found: Mapping[str, Sequence[float | None]], part: str, place: int) -> float:
    """A component's value for normalisation: what a gate kept from being computed counts 0, as the gate makes it."""
    if part in found:
        return found[part][place] or 0.0
    return one.values[part].value if part in one.values else 0.0


def _unjudgeable(trace: Trace, tasks: Mapping[TaskId, Task]) -> tuple[str, Failure] | None:
    if trace.stop_reason in ("cancelled", "failed"):
        return "", Failure(code="not_finished", detail=f"the attempt ended as {trace.stop_reason}")
    return None if trace.task in tasks else ("", Failure(code="no_reference", detail="no such task"))


def _facts(graded: Sequence[Response], reward: ComposedReward, tasks: Mapping[TaskId, Task]) -> Facts:
    right = tuple(one.values[reward.accuracy].right if reward.accuracy is not None else None for one in graded)
    return Facts(length_S=tuple(one.trace.action_count for one in graded), group_S=tuple(one.trace.group for one in graded),
                 family_S=tuple(tasks[one.trace.task].family for one in graded), right_S=right,
                 step_S=tuple(step_of(one.trace.attempt) for one in graded))


__all__ = ["ComposedJudge", "Measure", "Sources", "checked", "step_of"]
