"""The judge of runs in an environment: the final state of every episode is graded by the environment's own verifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from rollbook.records import (
    Component,
    Composition,
    EnvironmentDefinition,
    EnvironmentImage,
    Grade,
    RewardVector,
    RollbookError,
    Scored,
    Services,
    Task,
    TaskId,
    Trace,
    Ungraded,
    Unscored,
    Verdict,
    VerifierStamp,
)
from rollbook.records.recipe import EnvironmentReward
from rollbook.records.reward import FailureCode
from rollbook.rewards.stamps import stamp

COMPOSITION = "environment/1"
THREADS = 8
SHOWN = 200


class EnvironmentJudge:
    """Grades final states: `correct_reward` times the accuracy, and `format_reward` where every call could be made.

    A state that cannot be graded, or a verifier that raises, is unscored and never a zero. Safe off the main thread. A context
    manager.
    """

    def __init__(self, settings: EnvironmentReward, definition: EnvironmentDefinition, image: EnvironmentImage,
                 services: Services):
        self.definition, self.services = definition, services
        name, _, version = COMPOSITION.partition("/")
        own = {"image": image.digest, "format_reward": settings.format_reward, "correct_reward": settings.correct_reward}
        self.stamp: VerifierStamp = stamp(name, version, ("environment.py",), own)
        self.digest: str = self.stamp.digest
        self.composition = Composition(name=COMPOSITION, digest=self.digest, gate=None,
                                       parts={"format": 1.0, "correctness": 1.0})
        self.format_reward, self.correct_reward = settings.format_reward, settings.correct_reward

    def judge(self, traces: Sequence[Trace], tasks: Mapping[TaskId, Task]) -> list[Verdict]:
        """One verdict per trace, in order."""
        with ThreadPoolExecutor(max_workers=THREADS) as pool:
            return list(pool.map(lambda trace: self.verdict(trace, tasks.get(trace.task)), traces))

    def verdict(self, trace: Trace, task: Task | None) -> Verdict:
        """The verdict of one episode."""
        episode = trace.episode
        if episode is None:
            return self._unscored(trace, "malformed", "the attempt has no episode")
        if trace.stop_reason in ("cancelled", "failed", "environment_failed") or episode.state is None:
            return self._unscored(trace, "not_finished", episode.fault or f"the attempt ended as {trace.stop_reason}")
        if task is None:
            return self._unscored(trace, "no_reference", "no such task")
        try:
            grade = self.definition.verify(task, episode.state, services=self.services)
        except RollbookError as error:
            return self._unscored(trace, "unavailable", error.what)
        except Exception as error:
            return self._unscored(trace, "crash", f"{type(error).__name__}: {error}")
        if isinstance(grade, Ungraded):
            return self._unscored(trace, grade.code, grade.detail)
        return Scored(trace=trace.id, vector=self._vector(grade, misfits=episode.misfits))

    def _vector(self, grade: Grade, *, misfits: int) -> RewardVector:
        told = "".join(f"; {name} {value:g}" for name, value in sorted(grade.parts.items()))
        accuracy = float(grade.accuracy)
        parts = (Component(name="format", value=0.0 if misfits else self.format_reward, verifier=self.stamp,
                           detail=f"{misfits} malformed calls"),
                 Component(name="correctness", value=accuracy * self.correct_reward, verifier=self.stamp,
                           detail=f"{grade.detail}{told}"[:SHOWN]))
        return RewardVector(components=parts, absent=(), composition=COMPOSITION, composition_digest=self.digest,
                            total=self.composition.total({part.name: part.value for part in parts}), accuracy=accuracy,
                            hidden_test_access=grade.hidden_test_access)

    def _unscored(self, trace: Trace, code: FailureCode, detail: str) -> Unscored:
        return Unscored(trace=trace.id, verifier=self.stamp, code=code, detail=detail[:SHOWN])

    def close(self) -> None:
        """Nothing is held beyond the services, which their owner closes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
