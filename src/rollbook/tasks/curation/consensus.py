"""Code tasks: solutions and tests judge one another (Magistral, 2506.10910 section 4).

Every solution runs on every test. A test on which few solutions agree is dropped; one that all solutions contradict in the
same way is corrected to what they say; a missing expected output, and tests that are made from given ones, are filled in the
same way.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollbook.records import digest
from rollbook.records.sandbox import Answer, Language, SandboxError, Solution, SolutionRunner
from rollbook.tasks.curation.filters import Filtered, Helpers
from rollbook.tasks.curation.rows import Candidate

INTEGER = re.compile(r"-?\d{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeConsensus:
    """Validates the tests of code rows by their solutions. `agreement` is the share of solutions that must give the most frequent
    output, `solutions` how many a row needs to be changed by them; `make_up_to` tests are made from given inputs where there are
    fewer. Solutions that contradict most tests are no witnesses: they are left out once. Rows in another language than those of
    `languages` are rejected where they would have to be run."""

    agreement: float = 0.8
    solutions: int = 3
    make_up_to: int = 0
    languages: tuple[Language, ...] = ("python",)

    def apply(self, rows: Sequence[Candidate], helpers: Helpers) -> Filtered:
        runner: SolutionRunner = helpers.need("runner", "CodeConsensus")    # type: ignore[assignment]
        done = Filtered(kept=[])
        for row in rows:
            if row.kind != "code":
                done.kept.append(row)
                continue
            found = self._judged(row, runner, done.changed)
            if isinstance(found, str):
                done.rejected[row.number] = found
            else:
                done.kept.append(found)
        return done

    def _judged(self, row: Candidate, runner: SolutionRunner, changed: Counter[str]) -> Candidate | str:
        given = row.more.get("tests") or ()
        wanted = list if row.more.get("function") else str
        tests = [dict(test) for test in given if isinstance(test, Mapping) and isinstance(test.get("input"), wanted)]
        if len(tests) < len(given):
            changed["dropped: no input that a program can be given"] += len(given) - len(tests)
        offered = row.more.get("solutions") or ()
        solutions = [one for one in offered if isinstance(one, str)]
        if len(solutions) < len(offered):
            changed["left out: a solution that is no text"] += len(offered) - len(solutions)
        if len(solutions) < self.solutions:
            return row if tests and all("output" in test for test in tests) else "too few solutions to make tests"
        if (row.more.get("language") or "python") not in self.languages:
            return "in a language that is not run here"
        tests += [{"input": given} for given in made_inputs(tests, self.make_up_to, row.problem)]
        if not tests:
            return "no test input"
        try:
            outputs = self._outputs(row, solutions, [test["input"] for test in tests], runner)
        except SandboxError as error:
            return f"sandbox: {error.what}"[:80]
        kept = []
        for test, said in zip(tests, _witnesses(outputs, tests), strict=True):
            fate, test = self._fate(test, said)
            if fate != "kept":
                changed[fate] += 1
            if fate not in ("dropped: low agreement", "dropped: no output"):
                kept.append(test)
        if not kept:
            return "no test left"
        if kept != list(given) and row.grades:
            changed["grades by other tests left out"] += 1
        return replace(row, grades=row.grades if kept == list(given) else {}, more={**row.more, "tests": kept})

    def _fate(self, test: dict[str, Any], said: Sequence[str | None]) -> tuple[str, dict[str, Any]]:
        """What becomes of a test by what the solutions gave on it."""
        given = [one for one in said if one is not None]
        if not given:
            return "dropped: no output", test
        top, count = Counter(given).most_common(1)[0]
        if count < self.agreement * len(said):
            return "dropped: low agreement", test
        if "output" not in test:
            return "output filled", {**test, "output": json.loads(top)}
        if key(test["output"]) == top:
            return "kept", test
        if count == len(said):
            return "corrected", {**test, "output": json.loads(top)}
        return "dropped: low agreement", test

    def _outputs(self, row: Candidate, solutions: Sequence[str], inputs: Sequence[Any],
                 runner: SolutionRunner) -> list[list[str | None]]:
        """Per solution what it gives on every input, None where it gives nothing."""
        function, language = row.more.get("function"), row.more.get("language") or "python"
        given = [one.encode() if isinstance(one, str) else one for one in inputs]
        found = []
        for source in solutions:
            attempted = runner.attempt(Solution(language=language, source=source, function=function), given)
            found.append([key(one.answer.value) if isinstance(one.answer, Answer) else None for one in attempted])
        return found


def _witnesses(outputs: Sequence[Sequence[str | None]], tests: Sequence[Mapping[str, Any]]) -> list[list[str | None]]:
    """Per test what the believable solutions say: those that agree with the most frequent output on at least half of the
    tests."""
    tops = []
    for place in range(len(tests)):
        given = Counter(one[place] for one in outputs if one[place] is not None)
        tops.append(given.most_common(1)[0][0] if given else None)
    believed = [one for one in outputs if sum(said == top and top is not None for said, top in zip(one, tops, strict=True))
                >= len(tests) / 2]
    return [[one[place] for one in believed or outputs] for place in range(len(tests))]


def key(value: Any) -> str:
    """An output as it is compared: plain data as JSON, text without trailing white space."""
    if isinstance(value, str):
        value = "\n".join(line.rstrip() for line in value.rstrip().split("\n")) + "\n"
    return json.dumps(value, sort_keys=True)


def made_inputs(tests: Sequence[Mapping[str, Any]], up_to: int, problem: str) -> list[Any]:
    """New inputs from given ones, their integers moved a little, until there are `up_to`; the same for the same problem."""
    known = [json.dumps(test["input"], sort_keys=True) for test in tests]
    wanted = up_to - len(known)
    if wanted <= 0 or not known:
        return []
    rng = random.Random(int(digest(problem.encode())[:12], 16))
    made: dict[str, None] = {}
    for _ in range(20 * wanted):
        text = INTEGER.sub(lambda match: str(max(int(match[0]) + rng.choice((-2, -1, 0, 1, 2, 5)), 0)
                                             if int(match[0]) >= 0 else int(match[0]) + rng.choice((-1, 0, 1))),
                                             rng.choice(known))
        if text not in known:
            made.setdefault(text)
        if len(made) == wanted:
            break
    return [json.loads(text) for text in made]
