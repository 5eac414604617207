"""Code answers: a solution is run on hidden tests in a sandbox that is handed over, and its outputs are compared out here.

All tests must pass. The share of passed tests is another verifier under another name (`code_fraction`): Magistral found it to
learn faster and to end lower (2506.10910 section 7).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollbook.records import VerifierStamp, digest
from rollbook.records.sandbox import Answer, Attempted, NoAnswer, SandboxError, Solution, SolutionRunner
from rollbook.rewards.errors import RewardError
from rollbook.rewards.pool import Failure
from rollbook.rewards.stamps import stamp
from rollbook.rewards.verifiers.base import Judged, Judgement, early_failure
from rollbook.rewards.verifiers.extraction import FENCE, THINKING

Comparison = Literal["lines", "tokens", "exact"]
MAX_SOURCE = 200_000                    # characters
MAX_TESTS = 10_000
NAMES = {"python": ("python", "py", "python3", ""), "cpp": ("cpp", "c++", "cc", "")}


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenTest:
    """One hidden test: what goes in (text, or arguments) and what must come out (text, or plain data)."""

    given: Any
    wanted: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """The reference of a code task, read: its language, the function that is called (None: standard input and output), tests."""

    language: Literal["python", "cpp"]
    function: str | None
    tests: tuple[HiddenTest, ...]


class CodeVerifier:
    """Judges by running the response's code block on at most `tests` of the reference's tests, the same for a whole group.

    The reference is {"tests": [{"input": .., "output": ..}, ..], "language": "python", "function": None}. `compare` is how
    printed text is compared: `lines` without trailing white space, `tokens` between white space, with `tolerance` for numbers
    among them, or `exact`. What the solution does wrong is a refusal; a sandbox that does not work is a Failure.
    """

    def __init__(self, runner: SolutionRunner, *, fraction: bool = False, tests: int = 20, compare: Comparison = "lines",
                 tolerance: float = 0.0, block: Literal["first", "last"] = "first"):
        if tests < 1 or compare not in ("lines", "tokens", "exact") or tolerance < 0 or block not in ("first", "last"):
            raise RewardError("the code verifier has a setting out of range",
                              why="tests >= 1; compare lines, tokens or exact; tolerance >= 0; block first or last",
                              got=f"{tests}, {compare!r}, {tolerance}, {block!r}")
        if tolerance and compare != "tokens":
            raise RewardError("a tolerance is for numbers among tokens", got=compare, fix='set compare = "tokens"')
        self.runner, self.fraction, self.tests = runner, fraction, tests
        self.compare, self.tolerance, self.block = compare, tolerance, block
        self.chunk = max(1, int(getattr(runner, "parallel", 1)))
        settings = {"fraction": fraction, "tests": tests, "compare": compare, "tolerance": tolerance, "block": block,
                    "runner": described(runner)}
        self.stamp: VerifierStamp = stamp("code_fraction" if fraction else "code", "1", ("verifiers/code.py",
                                          "verifiers/extraction.py"), settings)

    def judge(self, items: Sequence[tuple[str, Any]]) -> list[Judgement]:
        """One judgement for each (response, reference); the tests are chosen by the reference alone."""
        return self.judge_groups([(response, reference, "") for response, reference in items])

    def judge_groups(self, items: Sequence[tuple[str, Any, str]]) -> list[Judgement]:
        """One judgement for each (response, reference, group), in order; a group shares its tests."""
        return [self._judge(*item) for item in items]

    def close(self) -> None:
        """The runner belongs to whoever made it."""

    def _judge(self, response: str, reference: Any, group: str) -> Judgement:
        early = early_failure(response, reference)
        if early is not None:
            return early
        checks = checks_in(reference)
        if isinstance(checks, Failure):
            return checks
        source = code_in(response, checks.language, self.block)
        if source is None:
            return Judged(passed=False, score=0.0, detail=f"no {checks.language} block")
        if len(source) > MAX_SOURCE:
            return Judged(passed=False, score=0.0, detail=f"{len(source)} characters of code")
        chosen = chosen_tests(checks.tests, self.tests, group)
        solution = Solution(language=checks.language, source=source, function=checks.function)
        try:
            return self._run(solution, chosen)
        except SandboxError as error:
            return Failure(code="unavailable", detail=str(error.what)[:200])

    def _run(self, solution: Solution, chosen: Sequence[tuple[int, HiddenTest]]) -> Judged:
        """Runs the tests, a few at a time; without `fraction` the first failed one ends it."""
        passed, why = 0, ""
        size = len(chosen) if self.fraction or solution.language == "cpp" else max(self.chunk, 1) * 2
        for at in range(0, len(chosen), size):
            part = chosen[at:at + size]
            inputs = [_input(test.given) for _, test in part]
            for (number, test), done in zip(part, self.runner.attempt(solution, inputs), strict=True):
                reason = self._reason(done, test)
                passed += not reason
                why = why or (f"test {number}: {reason}" if reason else "")
            if why and not self.fraction:
                break
        return Judged(passed=not why, score=passed / len(chosen), detail=why or f"{passed} of {len(chosen)} tests")

    def _reason(self, done: Attempted, test: HiddenTest) -> str:
        """Why a test is not passed; empty where it is."""
        match done.answer:
            case NoAnswer(code=code, detail=detail):
                return f"{code}: {detail}"[:120]
            case Answer(value=value) if isinstance(test.given, str):
                return "" if self._same_text(str(value), str(test.wanted)) else "wrong answer"
            case Answer(value=value):
                return "" if same_data(value, test.wanted, self.tolerance) else "wrong answer"

    def _same_text(self, found: str, wanted: str) -> bool:
        match self.compare:
            case "exact":
                return found == wanted
            case "lines":
                return _lines(found) == _lines(wanted)
            case _:
                one, other = found.split(), wanted.split()
                return len(one) == len(other) and all(a == b or _near(a, b, self.tolerance)
                                                      for a, b in zip(one, other, strict=True))


def checks_in(reference: Any) -> Checks | Failure:
    """The reference as checks, or why it decides nothing."""
    if not isinstance(reference, Mapping) or set(reference) - {"tests", "language", "function"}:
        return Failure(code="unparsable_reference", detail='the reference is {"tests": [..], "language": .., "function": ..}')
    language, function, tests = reference.get("language", "python"), reference.get("function"), reference.get("tests")
    if language not in NAMES or not (function is None or isinstance(function, str)):
        return Failure(code="unparsable_reference", detail=f"no language or function here: {language!r}, {function!r}"[:200])
    if not isinstance(tests, list) or not tests:
        return Failure(code="no_reference", detail="no tests")
    wanted = list if function is not None else str
    for number, test in enumerate(tests[:MAX_TESTS], 1):
        if not isinstance(test, Mapping) or set(test) != {"input", "output"} or not isinstance(test["input"], wanted) or (
                function is None and not isinstance(test["output"], str)):
            return Failure(code="unparsable_reference", detail=f"test {number} is no input and output of {wanted.__name__}")
    try:
        Solution(language=language, source="", function=function)
    except Exception as error:
        return Failure(code="unparsable_reference", detail=str(error)[:200])
    return Checks(language=language, function=function,
                  tests=tuple(HiddenTest(given=test["input"], wanted=test["output"]) for test in tests[:MAX_TESTS]))


def chosen_tests(tests: Sequence[HiddenTest], count: int, group: str) -> list[tuple[int, HiddenTest]]:
    """At most `count` tests with their numbers from 1, in order; the choice depends on the group and on nothing else."""
    numbered = list(enumerate(tests, 1))
    if len(numbered) <= count:
        return numbered
    rng = random.Random(int(digest(group.encode())[:16], 16))
    return sorted(rng.sample(numbered, count), key=lambda pair: pair[0])


def code_in(response: str, language: str, block: str) -> str | None:
    """The first or last fenced block of the language, or of none, behind the thinking; None where there is none."""
    visible = THINKING.sub("", response, count=1)
    blocks = [match[3] for match in FENCE.finditer(visible) if match[2].lower() in NAMES[language]]
    return (blocks[0] if block == "first" else blocks[-1]) if blocks else None


def same_data(found: Any, wanted: Any, tolerance: float) -> bool:
    """Equality of plain data: true is not 1, 1 is 1.0, tuples are lists, numbers within a relative and absolute tolerance."""
    pairs = [(found, wanted)]
    while pairs:
        one, other = pairs.pop()
        if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
            if one is not other:
                return False
        elif isinstance(one, (int, float)) and isinstance(other, (int, float)):
            if one != other and not (tolerance and math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)):
                return False
        elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
            if len(one) != len(other):
                return False
            pairs += zip(one, other, strict=True)
        elif isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            pairs += ((one[key], other[key]) for key in one)
        elif type(one) is not type(other) or one != other:
            return False
    return True


def described(runner: SolutionRunner) -> dict[str, Any]:
    """What of a runner can change a verdict: its sandbox's stamp and its limits."""
    sandbox = getattr(runner, "sandbox", None)
    found: dict[str, Any] = {"runner": type(runner).__name__, "sandbox": getattr(getattr(sandbox, "stamp", None), "digest", "")}
    for name in ("test", "compilation"):
        limits = getattr(runner, name, None)
        found[name] = {field: getattr(limits, field) for field in getattr(limits, "__slots__", ())}
    return found


def _input(given: Any) -> Any:
    return given.encode("utf-8", "surrogatepass") if isinstance(given, str) else given


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _near(one: str, other: str, tolerance: float) -> bool:
    if not tolerance or len(one) > 400 or len(other) > 400:
        return False
    try:
        return math.isclose(float(one), float(other), rel_tol=tolerance, abs_tol=tolerance)
    except ValueError:
        return False
