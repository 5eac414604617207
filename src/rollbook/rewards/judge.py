"""The judge of a Magistral run: finished traces in, one verdict each out, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Self

from rollbook.records import Scored, Task, TaskId, Trace, Unscored, Verdict, VerifierStamp
from rollbook.records.recipe import RewardSettings
from rollbook.records.reward import FailureCode
from rollbook.rewards.errors import RewardError
from rollbook.rewards.magistral import COMPOSITION, FormatResult, Stamps, composition, format_gate, gated_vector, graded_vector
from rollbook.rewards.magistral import length_penalty as check_length
from rollbook.rewards.numbers import compare
from rollbook.rewards.pool import MEMORY_BYTES, Failure, VerifierPool
from rollbook.rewards.stamps import MATH_SOURCES, package_versions, stamp

SHOWN = 60


class MagistralJudge:
    """Judges by Magistral's composition; symbolic comparison runs in a pool of processes that can be killed.

    Plain numbers are compared in this process and need no pool. Safe off the main thread. A context manager.
    """

    def __init__(self, settings: RewardSettings):
        _check(settings)
        self.settings = settings
        limits = {"verify_seconds": settings.verify_seconds, "memory_bytes": MEMORY_BYTES}
        lengths = {"length_max": settings.length_max, "length_cache": settings.length_cache, "scale": settings.length_penalty}
        self.stamps = Stamps(
            format=stamp("magistral_format", "1", ("boxes.py", "magistral.py"), {"value": settings.format_reward}),
            correctness=stamp("math", "1", MATH_SOURCES,
                              {"value": settings.correct_reward, "packages": package_versions(), **limits}),
            length=stamp("soft_length", "1", ("magistral.py",), lengths))
        parts = {field.name: getattr(self.stamps, field.name).digest for field in dataclasses.fields(self.stamps)}
        name, _, version = COMPOSITION.partition("/")
        self.stamp: VerifierStamp = stamp(name, version, ("magistral.py", "judge.py"), {"parts": parts})
        self.digest: str = self.stamp.digest
        self.composition = composition(self.digest)
        self._pool = VerifierPool(workers=settings.verify_workers, seconds=settings.verify_seconds)

    def judge(self, traces: Sequence[Trace], tasks: Mapping[TaskId, Task]) -> list[Verdict]:
        """One verdict per trace, in order. A truncated trace is judged by the rules; an unfinished one is unscored."""
        verdicts: dict[int, Verdict] = {}
        symbolic: dict[int, tuple[str, str]] = {}
        for index, trace in enumerate(traces):
            early = self._before_grading(trace, tasks.get(trace.task))
            if not isinstance(early, FormatResult):
                verdicts[index] = early
                continue
            pair = (str(early.answer), tasks[trace.task].reference)
            equal = compare(*pair)
            if equal is None:
                symbolic[index] = pair
            else:
                verdicts[index] = self._graded(trace, pair, equal)
        outcomes = self._pool.verify(list(symbolic.values()))
        for (index, pair), outcome in zip(symbolic.items(), outcomes, strict=True):
            if isinstance(outcome, Failure):
                verdicts[index] = self._unscored(traces[index], outcome.code, outcome.detail)
            else:
                verdicts[index] = self._graded(traces[index], pair, outcome)
        return [verdicts[index] for index in range(len(traces))]

    def close(self) -> None:
        """Ends the worker processes; a closed judge still answers what needs none."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _before_grading(self, trace: Trace, task: Task | None) -> Verdict | FormatResult:
        """The verdict that needs no grading, or the passed gate."""
        if trace.stop_reason in ("cancelled", "failed"):
            return self._unscored(trace, "not_finished", f"the attempt ended as {trace.stop_reason}")
        if task is None or not task.reference.strip():
            return self._unscored(trace, "no_reference", "no such task" if task is None else "the reference is empty")
        gate = format_gate(trace.text)
        return gate if gate.passed else Scored(trace=trace.id, vector=gated_vector(gate, self.stamps, self.digest))

    def _graded(self, trace: Trace, pair: tuple[str, str], correct: bool) -> Scored:
        answer, reference = (text if len(text) <= SHOWN else text[:SHOWN] + "…" for text in pair)
        vector = graded_vector(correct=correct, length=trace.action_count, settings=self.settings, stamps=self.stamps,
                               detail=f"{answer} {'=' if correct else '≠'} {reference}", composition_digest=self.digest)
        return Scored(trace=trace.id, vector=vector)

    def _unscored(self, trace: Trace, code: FailureCode, detail: str) -> Unscored:
        return Unscored(trace=trace.id, verifier=self.stamps.correctness, code=code, detail=detail)


def _check(settings: RewardSettings) -> None:
    if settings.language_reward is not None:
        raise RewardError("reward.language_reward cannot be paid yet", got=str(settings.language_reward),
                          why="no language classifier is built in; a silent 0 would be recorded as a verdict",
                          fix="leave it empty: the component is then recorded as absent")
    if not settings.verify_seconds > 0 or settings.verify_workers < 1:
        raise RewardError("verification needs verify_seconds above 0 and at least one worker",
                          got=f"verify_seconds {settings.verify_seconds}, verify_workers {settings.verify_workers}")
    if settings.format_reward < 0 or settings.correct_reward < 0:
        raise RewardError("format_reward and correct_reward must be 0 or more",
                          got=f"{settings.format_reward} and {settings.correct_reward}")
    check_length(0, length_max=settings.length_max, length_cache=settings.length_cache, scale=settings.length_penalty)
