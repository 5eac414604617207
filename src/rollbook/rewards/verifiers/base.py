"""What a verifier is: a pure judging function, run where it can be killed, with a stamp over its code and its settings."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from rollbook.records import VerifierStamp
from rollbook.records.reward import FailureCode
from rollbook.rewards.errors import RewardError
from rollbook.rewards.pool import MEMORY_BYTES, Failure, VerifierPool, writable
from rollbook.rewards.stamps import stamp

POOL_SOURCES = ("pool.py", "worker.py", "verifiers/base.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A verdict of a verifier: whether the response passes, its score between 0 and 1, and what was found.

    Example: Judged(passed=False, score=0.5, detail="2 of 4 instructions: number_words, no_comma failed")
    """

    passed: bool
    score: float
    detail: str


Judgement = Judged | Failure


class CannotJudge(Exception):
    """The verifier has no verdict, for a reason that is not the response's fault."""

    code: FailureCode = "crash"


class NoReference(CannotJudge):
    """The task says nothing to compare with."""

    code: FailureCode = "no_reference"


class BadReference(CannotJudge):
    """The reference itself cannot be read: a pattern that is no pattern, a gold query that fails."""

    code: FailureCode = "unparsable_reference"


class Unavailable(CannotJudge):
    """What the verifier needs is not installed."""

    code: FailureCode = "unavailable"


class MalformedRow(CannotJudge):
    """What was handed over is no response and reference: a missing field, bytes that are no text."""

    code: FailureCode = "malformed"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSpec:
    """A verifier as data. `work` names a function (response, reference, settings) -> {"passed", "score", "detail"}.

    The digest of the stamp changes with the listed sources, the versions of the packages, the settings and the limits.

    Example: VerifierSpec(name="exact", version="1", work="rollbook.rewards.verifiers.text:exact", sources=("verifiers/text.py",))
    """

    name: str
    version: str
    work: str
    sources: tuple[str, ...]
    packages: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 2.0
    memory_bytes: int = MEMORY_BYTES

    def stamp(self) -> VerifierStamp:
        """Which code judges, with which settings."""
        versions = {name: _version(name) for name in self.packages}
        return stamp(self.name, self.version, (*POOL_SOURCES, *self.sources),
                     {"settings": dict(self.settings), "packages": versions, "work": self.work, "seconds": self.seconds,
                      "memory_bytes": self.memory_bytes})

    def with_settings(self, **settings: Any) -> VerifierSpec:
        """The same verifier with these settings; a setting it does not have is an error."""
        unknown = sorted(set(settings) - set(self.settings))
        if unknown:
            raise RewardError(f"the verifier {self.name} has no such setting", got=", ".join(unknown),
                              fix=f"it has: {', '.join(sorted(self.settings)) or 'none'}")
        return dataclasses.replace(self, settings={**self.settings, **settings})


class Verifier:
    """Judges responses in worker processes that are killed at the limit. A context manager; safe off the main thread.

    Example: with Verifier(EXACT) as verifier: verifier.judge([("\\\\boxed{7}", "7")]) == [Judged(passed=True, ...)]
    """

    def __init__(self, spec: VerifierSpec, *, workers: int = 1):
        self.spec, self.stamp = spec, spec.stamp()
        self._pool = VerifierPool(workers=workers, seconds=spec.seconds, memory_bytes=spec.memory_bytes, work=spec.work)

    def judge(self, items: Sequence[tuple[str, Any]]) -> list[Judgement]:
        """One judgement for each (response, reference), in order. What cannot be judged is a Failure with its reason."""
        verdicts: dict[int, Judgement] = {}
        calls: dict[int, tuple[Any, ...]] = {}
        for index, (response, reference) in enumerate(items):
            early = early_failure(response, reference)
            if early is None:
                calls[index] = (response, reference, dict(self.spec.settings))
            else:
                verdicts[index] = early
        for index, found in zip(calls, self._pool.run(list(calls.values())), strict=True):
            verdicts[index] = found if isinstance(found, Failure) else judged(found)
        return [verdicts[index] for index in range(len(items))]

    def close(self) -> None:
        """Ends the worker processes."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def judged(found: Any) -> Judgement:
    """What a judging function returned, checked: a bool, or a mapping with `passed` and perhaps `score` and `detail`."""
    if isinstance(found, bool):
        found = {"passed": found}
    if not isinstance(found, Mapping) or not isinstance(found.get("passed"), bool):
        return Failure(code="crash", detail=f"the verifier returned {found!r}"[:200])
    score = found.get("score", 1.0 if found["passed"] else 0.0)
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0.0 <= score <= 1.0:
        return Failure(code="crash", detail=f"the verifier returned the score {score!r}"[:200])
    return Judged(passed=found["passed"], score=float(score), detail=writable(str(found.get("detail", "")))[:200])


def verdict(passed: bool, detail: str, score: float | None = None) -> dict[str, Any]:
    """What a judging function returns."""
    return {"passed": passed, "score": (1.0 if passed else 0.0) if score is None else score, "detail": detail[:200]}


def early_failure(response: Any, reference: Any) -> Failure | None:
    """The failure of an item that no verifier needs to see."""
    if not isinstance(response, str):
        return Failure(code="malformed", detail=f"the response is {type(response).__name__}, not text")
    if any("\ud800" <= character <= "\udfff" for character in response):
        return Failure(code="malformed",
                       detail="the response holds half a surrogate pair: it was decoded with the wrong encoding")
    if reference is None or (isinstance(reference, str) and not reference.strip()):
        return Failure(code="no_reference", detail="the reference is empty")
    return None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
