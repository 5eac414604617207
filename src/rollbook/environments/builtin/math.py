"""Mathematics in a single turn: a problem, a worked response with its answer in a box, no tools."""

from __future__ import annotations

import importlib
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import cast

from rollbook.environments.builtin.common import Draft, ToolEpisode, code_digest, same_answer
from rollbook.environments.describing import image_of
from rollbook.records import (
    Action,
    EnvironmentFault,
    EnvironmentImage,
    FinalState,
    Grade,
    Services,
    Solutions,
    Task,
    TaskSet,
    Ungraded,
    digest,
)

BOX = re.compile(r"\\boxed\s*\{")
SYSTEM = "Work through the problem, then give the final answer in \\boxed{}."
Equal = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mathematics:
    """Problems from `problems`, a JSON-lines file of {"problem", "answer"}, or generated ones where it is empty.

    `equal` is the import path `module:function` of (answer, reference) -> bool; where it is empty, numbers are compared as exact
    fractions and anything else as text. A run composes its reward with a verifier of its own; this grade is the environment's.
    """

    problems: str = ""
    equal: str = ""

    def image(self) -> EnvironmentImage:
        extra = {"code": code_digest("common.py", "math.py")}
        if self.problems:
            extra["problems"] = digest(Path(self.problems).read_bytes())
        return image_of(self, extra=extra)

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        """Problems; the split unit of a generated one is its kind and numbers, of a given one its text."""
        drafts = given(Path(self.problems), count) if self.problems else list(generated(count, seed))
        pairs = [draft.records() for draft in drafts]
        return TaskSet(raw=tuple(raw for raw, _ in pairs), tasks=tuple(task for _, task in pairs))

    def build(self, *, services: Services, seed: int) -> ToolEpisode:
        return ToolEpisode()

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        if not task.reference.strip():
            return Ungraded(code="no_reference", detail="the task has no reference")
        found = boxed(state.facts["answer"])
        right = found is not None and self._equal()(found, task.reference)
        return Grade(accuracy=float(right), parts={"boxed": float(found is not None)},
                     detail=f"{(found or 'no box')[:80]} for {task.reference[:80]}")

    def solutions(self, task: Task) -> Solutions:
        return Solutions(gold=((Action(text=f"It is \\boxed{{{task.reference}}}."),),),
                         wrong=((Action(text="\\boxed{none of these}"),), (Action(text=task.reference),), (Action(text=""),),
                                (Action(text=f"\\boxed{{{task.reference}}} or \\boxed{{0.123}}"),)))

    def _equal(self) -> Equal:
        if not self.equal:
            return lambda found, reference: same_answer(found, [reference])
        module, _, name = self.equal.partition(":")
        try:
            return cast(Equal, getattr(importlib.import_module(module), name))
        except (ImportError, AttributeError, ValueError) as error:
            raise EnvironmentFault("the comparison of answers cannot be loaded", code="no_verifier", got=self.equal,
                                   fix="write package.module:function") from error


def boxed(text: str | None) -> str | None:
    """The content of the only box of a response, nested braces kept; None without one, or with two that differ."""
    if text is None:
        return None
    found: list[str] = []
    for match in BOX.finditer(text):
        depth, end = 1, match.end()
        while end < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if depth == 0:
            found.append(text[match.end():end - 1].strip())
    return found[-1] if found and len(set(found)) == 1 else None


def given(file: Path, count: int) -> list[Draft]:
    """The first `count` problems of a file."""
    if not file.is_file():
        raise EnvironmentFault("a file of problems is not there", code="build", got=str(file))
    found: list[Draft] = []
    for place, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip() or len(found) == count:
            continue
        try:
            document = json.loads(line)
            problem, answer = document["problem"], document["answer"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise EnvironmentFault("a line is no problem", code="build", got=f"{file}:{place}: {error}",
                                   fix='a line is {"problem": "..", "answer": ".."}') from error
        if not isinstance(problem, str) or not isinstance(answer, str | int | float):
            raise EnvironmentFault("a line is no problem with an answer", code="build", got=f"{file}:{place}")
        found.append(Draft(family="math", text=problem, reference=str(answer), unit=f"problem:{digest(problem.encode())[:16]}",
                           start="prompt", source=file.name, predicate="math.box", lineage={"line": str(place)}, system=SYSTEM,
                           licence="as given", domain="mathematics"))
    return found


def generated(count: int, seed: int) -> Iterator[Draft]:
    """Different problems of several kinds in turn."""
    drawn, number = random.Random(f"math/{seed}"), 0
    seen: set[str] = set()
    while len(seen) < count:
        number += 1
        kind = KINDS[number % len(KINDS)]
        text, answer, unit = kind(drawn)
        if text in seen:
            continue
        seen.add(text)
        yield Draft(family="math", text=text, reference=answer, unit=f"math:{unit}", start="prompt", source="rollbook math",
                    predicate="math.box", lineage={"kind": kind.__name__.strip("_"), "seed": str(seed), "number": str(number)},
                    system=SYSTEM, domain="mathematics")


def _linear(drawn: random.Random) -> tuple[str, str, str]:
    a, x, b = drawn.randint(2, 99), drawn.randint(-200, 200), drawn.randint(1, 999)
    return f"Solve {a}x + {b} = {a * x + b} for x.", str(x), f"linear:{a}:{b}:{x}"


def _remainder(drawn: random.Random) -> tuple[str, str, str]:
    base, power, modulus = drawn.randint(2, 99), drawn.randint(10, 999), drawn.randint(7, 997)
    return (f"What is the remainder when {base}^{power} is divided by {modulus}?", str(pow(base, power, modulus)),
            f"remainder:{base}:{power}:{modulus}")


def _divisors(drawn: random.Random) -> tuple[str, str, str]:
    n = drawn.randint(100, 20_000)
    return f"How many positive divisors does {n} have?", str(sum(n % d == 0 for d in range(1, n + 1))), f"divisors:{n}"


def _fraction(drawn: random.Random) -> tuple[str, str, str]:
    a, b, c, d = (drawn.randint(1, 60), drawn.randint(2, 60), drawn.randint(1, 60), drawn.randint(2, 60))
    total = Fraction(a, b) + Fraction(c, d)
    return f"Write {a}/{b} + {c}/{d} as a fraction in lowest terms.", str(total), f"fraction:{a}/{b}:{c}/{d}"


KINDS = (_linear, _remainder, _divisors, _fraction)
