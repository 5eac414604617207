"""Reasoning traces written by programs in Magistral's format, in varied styles so that a cold start keeps entropy."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rollbook.records import Task
from rollbook.records.modes import NO_THINK, control_of, without_control
from rollbook.tasks.errors import TaskError
from rollbook.tasks.expressions import parse
from rollbook.tasks.fim import filled_in
from rollbook.tasks.splits import apportion
from rollbook.tasks.styles import PRODUCT_STYLES, SUM_STYLES

SILENT = "silent"       # an empty block of thought: the answer to a question that asks for none, and to no other
STYLES = ("direct", "steps", "tens_ones", "columns", "check", "round", SILENT)
VERSION = "1"
SEPARATORS = ("\n", ", ", "; ")


class Written(NamedTuple):
    """A demonstration as text, still without token ids.

    Example: Written(task=Task(...), text="<think>\\n23+38=61\\n</think>\\n\\\\boxed{61}", author="program:direct/1")
    """

    task: Task
    text: str
    author: str


def applicable(task: Task) -> tuple[str, ...]:
    """The styles that have something to show for this task, in the order of STYLES."""
    return tuple(style for style in STYLES if _lines(task, style, random.Random(0)) is not None)


def write_trace(task: Task, style: str, rng: random.Random) -> str:
    """The whole response: reasoning between the tags, the reference boxed after them. `rng` varies order and separators."""
    lines = _lines(task, style, rng)
    if lines is None:
        raise TaskError(f"style {style} has nothing to show for this task", got=task.prompt[-1].content,
                        fix=f"one of {', '.join(applicable(task))}")
    return f"<think>\n{rng.choice(SEPARATORS).join(lines)}\n</think>\n\\boxed{{{task.reference}}}"


def demonstrations(tasks: Sequence[Task], *, count: int, seed: int, mixture: Mapping[str, float]) -> tuple[Written, ...]:
    """`count` traces over the tasks in turn, styles in the proportions of `mixture` among those that apply.

    A task is used again only after every other one was. Deterministic in the arguments.
    """
    _check(tasks, count, mixture)
    rng = random.Random(f"demonstrations/{seed}")
    order: list[Task] = []
    while len(order) < count:
        order += rng.sample(list(tasks), min(len(tasks), count - len(order)))
    planned = apportion(count, {style: weight for style, weight in mixture.items() if weight > 0})
    left = dict(planned)
    written = []
    for task in order:
        style = _draw(task, left, mixture, rng)
        left[style] = left.get(style, 0) - 1
        written.append(Written(task, write_trace(task, style, rng), f"program:{style}/{VERSION}"))
    return tuple(written)


def solution(task: Task, style: str, seed: int) -> str:
    """A right answer to the task in a style, or in the first one that applies where that has nothing to show."""
    fits = applicable(task)
    return write_trace(task, style if style in fits else fits[0], random.Random(f"solution/{seed}/{task.id}"))


def document(written: Written, *, fim: float, seed: int) -> str:
    """A problem and how it is solved as plain running text, for continued pre-training; a share `fim` has its middle last."""
    text = f"{written.task.prompt[-1].content}\n{written.text}"
    rng = random.Random(f"fim/{seed}/{written.task.id}/{written.text}")
    return filled_in(text, rng) if rng.random() < fim else text


def _draw(task: Task, left: Mapping[str, int], mixture: Mapping[str, float], rng: random.Random) -> str:
    """A style by what is still planned; by its plain weight once the planned ones that apply are used up."""
    fits = applicable(task)
    weights = {style: float(left.get(style, 0)) for style in fits if left.get(style, 0) > 0}
    weights = weights or {style: mixture[style] for style in fits if mixture.get(style, 0.0) > 0}
    if not weights:
        raise TaskError("no style of the mixture applies to this task", got=task.prompt[-1].content,
                        why=f"the mixture has {', '.join(mixture)}", fix=f"add one of {', '.join(fits)}")
    return rng.choices(list(weights), weights=list(weights.values()))[0]


def _lines(task: Task, style: str, rng: random.Random) -> list[str] | None:
    if style not in STYLES:
        raise TaskError("unknown style of demonstration", got=repr(style), fix=f"one of {', '.join(STYLES)}")
    asked = task.prompt[-1].content
    if (style == SILENT) != (control_of(asked) == NO_THINK):
        return None
    if style == SILENT:
        return []
    problem = parse(without_control(asked))
    if problem.terms is not None and len(problem.terms) > 1:
        return SUM_STYLES[style](problem.terms, rng)
    if problem.factors is not None and style in PRODUCT_STYLES:
        return PRODUCT_STYLES[style](problem.factors, rng)
    if problem.factors is not None:
        return None
    raise TaskError("demonstrations are written for sums, differences and products only", got=problem.text,
                    fix="use families of chain_sum and products for the cold start")


def _check(tasks: Sequence[Task], count: int, mixture: Mapping[str, float]) -> None:
    if count < 0 or (count and not tasks):
        raise TaskError(f"{count} demonstrations cannot be written over {len(tasks)} tasks")
    unknown = sorted(set(mixture) - set(STYLES))
    if unknown:
        raise TaskError("unknown style in the demonstration mixture", got=", ".join(unknown), fix=f"of {', '.join(STYLES)}")
    if not any(weight > 0 for weight in mixture.values()) or any(weight < 0 for weight in mixture.values()):
        raise TaskError("a demonstration mixture needs weights of 0 or more, one of them above 0", got=repr(dict(mixture)))
