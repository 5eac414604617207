"""Acquisition: arithmetic problems from reasoning-gym become raw tasks and task contracts, every rejection counted."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, get_args

from rollbook.records import Budget, Message, RawTask, RollbookError, Task, content_id
from rollbook.records.codec import nearest
from rollbook.records.modes import CONTROLS
from rollbook.records.recipe import Family, TaskSettings
from rollbook.tasks.errors import TaskError
from rollbook.tasks.expressions import Expression, numbers, parse

if TYPE_CHECKING:
    from rollbook.tasks.curated import Stored

Generator = Literal["chain_sum", "products", "basic_arithmetic"]
RejectReason = Literal["operand_out_of_range", "result_out_of_range", "duplicate_question", "reference_disagrees",
                       "unreadable_expression"]
GENERATORS: tuple[str, ...] = get_args(Generator)
CONTROL = "control"   # a parameter of every family: the control word that its questions begin with
BOUNDS = ("min_operand", "max_operand", "min_result", "max_result")
FORMATTER = "expression/1"
LICENCE = "Apache-2.0"
SEED_STRIDE = 1_000_003  # reasoning-gym draws item i from seed + i: families must not walk over the same seeds
DRAWS_PER_PROBLEM = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired:
    """What was drawn: `raw` and `tasks` in the same order, `rejected` counts by `family/reason`, `draws` by family.

    `formatter` names how the question was shortened into the prompt; `curated` is the set that the tasks were read from.
    """

    raw: tuple[RawTask, ...]
    tasks: tuple[Task, ...]
    rejected: Mapping[str, int]
    draws: Mapping[str, int]
    formatter: str = FORMATTER
    curated: Stored | None = None


def shares(settings: TaskSettings) -> dict[str, float]:
    """Each family's share of the mixture, by name: a recorded recipe has no other order. The shares sum to one."""
    families = dict(sorted(settings.families.items()))
    for name, family in families.items():
        if not 0 < family.weight < float("inf"):
            raise TaskError(f"tasks.families.{name}.weight must be a finite number above 0", got=str(family.weight),
                            fix="leave the family out instead of giving it no weight")
    total = sum(family.weight for family in families.values())
    if not total:
        raise TaskError("tasks.families must name at least one family", got="none")
    return {name: family.weight / total for name, family in families.items()}


def acquire(settings: TaskSettings, *, acquired_at: str) -> Acquired:
    """Distinct questions of every family until it has canonical problems enough for its share or its draws are used up.

    `acquired_at` is a date given by the caller, so that equal settings give equal records. A family that is too small
    for its share is not an error here: `split` counts what exists and refuses.
    """
    for side in ("train", "heldout"):
        if getattr(settings, side) < 0:
            raise TaskError(f"tasks.{side} must be 0 or more", got=str(getattr(settings, side)))
    raw: list[RawTask] = []
    tasks: list[Task] = []
    rejected: Counter[str] = Counter()
    draws: dict[str, int] = {}
    questions: set[str] = set()
    for index, (name, share) in enumerate(shares(settings).items()):
        wanted = int(share * settings.train) + settings.heldout + 2  # other families may hold out the same problems
        canonical: set[str] = set()
        draws[name] = 0
        for item in _items(name, settings.families[name], settings.seed + index * SEED_STRIDE, wanted * DRAWS_PER_PROBLEM):
            draws[name] += 1
            outcome = _contract(name, item, settings, acquired_at, questions)
            if isinstance(outcome, str):
                rejected[f"{name}/{outcome}"] += 1
            else:
                raw.append(outcome[0])
                tasks.append(outcome[1])
                questions.add(outcome[1].prompt[-1].content)
                canonical.add(outcome[1].canonical)
            if len(canonical) >= wanted:
                break
    return Acquired(raw=tuple(raw), tasks=tuple(tasks), rejected=dict(rejected), draws=draws)


def format_prompt(expression: Expression, system_prompt: str, control: str | None = None) -> tuple[Message, ...]:
    """The shortest prompt that keeps every number: `23 + 38 =` after the system prompt and the control word, where there are."""
    user = Message(role="user", content=f"{_led(control)}{expression.text} =", origin="raw")
    return (Message(role="system", content=system_prompt, origin="recipe"), user) if system_prompt else (user,)


def _contract(name: str, item: Mapping[str, Any], settings: TaskSettings, acquired_at: str,
              questions: set[str]) -> tuple[RawTask, Task] | RejectReason:
    family = settings.families[name]
    metadata = item["metadata"]
    try:
        expression = parse(metadata["expression"])
    except TaskError:
        return "unreadable_expression"
    refused = _refused(expression, item["answer"], family.parameters)
    if refused:
        return refused
    control = _control(name, family)
    question = f"{_led(control)}{item['question']}"
    prompt = format_prompt(expression, settings.system_prompt, control)
    if prompt[-1].content in questions:
        return "duplicate_question"
    if numbers(prompt[-1].content) != numbers(question):
        raise TaskError(f"the formatter {FORMATTER} changed the numbers of a question",
                        got=f"{question!r} -> {prompt[-1].content!r}",
                        why="the policy would be asked another problem than the reference answers")
    raw = RawTask(source=f"reasoning-gym {_version()} {family.generator}", licence=LICENCE, acquired_at=acquired_at,
                  content=question, language="en", domain="arithmetic", sensitive=(),
                  lineage={"generator": family.generator, "seed": str(item["seed"]), "index": str(metadata["source_index"])})
    task = Task(raw=content_id(raw), family=name, prompt=prompt, reference=item["answer"], canonical=expression.canonical,
                predicate="math.equivalent", initial_state="prompt", tools=(), budget=Budget(max_tokens=settings.max_tokens),
                termination=("end_of_turn", "length"))
    return raw, task


def _led(control: str | None) -> str:
    return "" if control is None else f"{control} "


def _control(name: str, family: Family) -> str | None:
    """The family's control word, if it has one; TaskError where it is none that this program knows."""
    found = family.parameters.get(CONTROL)
    if found is not None and found not in CONTROLS:
        raise TaskError(f"tasks.families.{name}.parameters.{CONTROL} is no control word", got=repr(found),
                        fix=f"one of {', '.join(CONTROLS)}")
    return None if found is None else str(found)


def _refused(expression: Expression, answer: str, parameters: Mapping[str, Any]) -> RejectReason | None:
    low, high = parameters.get("min_operand"), parameters.get("max_operand")
    if any((low is not None and operand < low) or (high is not None and operand > high) for operand in expression.operands):
        return "operand_out_of_range"
    low, high = parameters.get("min_result"), parameters.get("max_result")
    if (low is not None and expression.value < low) or (high is not None and expression.value > high):
        return "result_out_of_range"
    try:
        agrees = Fraction(answer) == expression.value
    except (ValueError, ZeroDivisionError):
        agrees = False
    return None if agrees else "reference_disagrees"


def _items(name: str, family: Family, seed: int, size: int) -> Iterator[dict[str, Any]]:
    """Up to `size` items of a reasoning-gym generator, each with the seed of its dataset."""
    if family.generator not in GENERATORS:
        raise TaskError(f"tasks.families.{name}.generator has no known canonical problem", got=family.generator,
                        why="without one, train and held-out sides cannot be kept apart",
                        fix=f"one of {', '.join(GENERATORS)}")
    for bound in BOUNDS:
        value = family.parameters.get(bound)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TaskError(f"tasks.families.{name}.parameters.{bound} must be an integer", got=repr(value))
    dataset = _dataset(name, family, seed, size)
    for index in range(size):
        yield {**dataset[index], "seed": seed}


def _dataset(name: str, family: Family, seed: int, size: int) -> Any:
    import reasoning_gym  # a second of imports, needed only when tasks are made

    own = {key: value for key, value in family.parameters.items() if key not in (*BOUNDS, CONTROL)}
    _, config = reasoning_gym.factory.DATASETS[family.generator]
    known = [field.name for field in dataclasses.fields(config) if field.name not in ("seed", "size")]
    for key in own:
        if key not in known:
            raise TaskError(f"unknown key tasks.families.{name}.parameters.{key}", got=repr(key),
                            why=f"neither {family.generator} nor the bounds {', '.join(BOUNDS)} have it",
                            fix=f"nearest names: {nearest(key, [*known, *BOUNDS, CONTROL])}")
    try:
        return reasoning_gym.create_dataset(family.generator, seed=seed, size=size, **own)
    except RollbookError:
        raise
    except Exception as error:  # the generator refuses with bare assertions and whatever its arithmetic raises
        raise TaskError(f"tasks.families.{name}.parameters are refused by {family.generator}", got=repr(own),
                        why=str(error) or type(error).__name__) from error


@functools.cache
def _version() -> str:
    return importlib.metadata.version("reasoning-gym")
