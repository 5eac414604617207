"""Reading evaluations back: what decided each of them, its outcomes by problem, and grids of several."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollbook.evaluation.comparison import Answered, Compared, Gain, Side, Training, adjusted, compared
from rollbook.evaluation.differences import ComparisonRefused, Difference, Setting, differences, the_one_difference
from rollbook.ledger import Ledger
from rollbook.records import EvaluationProtocol, EvaluationResult, LedgerError, Scored, Task, decode
from rollbook.rollouts.endpoint import UNSEEN

PACKAGES = ("torch", "transformers", "sympy", "math-verify")     # whose versions can change an answer or a verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A finished evaluation folder; `tasks` gives the task's id of each problem, `answers` the genesis hash of the evaluation in
    which its answers were sampled."""

    folder: Path
    setting: Setting
    side: Side
    tasks: Mapping[str, str]
    answers: str

    @property
    def name(self) -> str:
        return self.folder.name


def evaluation(folder: Path) -> Evaluation:
    """A finished evaluation; refuses what is none and one that is not finished."""
    ledger = Ledger.open(folder, write=False)
    protocol = next(iter(ledger.records(EvaluationProtocol)), None)
    if protocol is None:
        raise LedgerError("this folder is no evaluation", got=str(folder), why="no protocol is on its record",
                          fix="make one: `rollbook eval PROTOCOL --policy RUN --out FOLDER`")
    result = next(iter(ledger.records(EvaluationResult)), None)
    if result is None:
        raise LedgerError("this evaluation is not finished", got=str(folder), why="a part of the tasks is another evaluation",
                          fix="go on with the command that started it")
    tasks = {task.id: task for task in ledger.records(Task)}
    key = {name: task.raw for name, task in tasks.items()}
    if len(set(key.values())) != len(key):
        key = {name: name for name in key}
    around = _circumstances(ledger.manifest)
    setting = Setting(protocol=protocol, policy=result.policy, weights=result.weights, problems=tuple(key.values()),
                      circumstances=around, recipe=ledger.manifest.get("recipe_values"),
                      unseen=frozenset(name for name, value in around.items() if value == UNSEEN))
    return Evaluation(folder=folder, setting=setting, side=_side(ledger, result, tasks, key),
                      tasks={problem: str(name) for name, problem in key.items()},
                      answers=str(ledger.manifest.get("answers", ledger.genesis)))


def _side(ledger: Ledger, result: EvaluationResult, tasks: Mapping[Any, Task], key: Mapping[Any, str]) -> Side:
    attempts: dict[str, list[Answered]] = {}
    prompts: dict[str, int] = {}
    for trace, verdict, _ in ledger.read_traces():
        name = key[trace.task]
        value = verdict.vector.accuracy if isinstance(verdict, Scored) else None
        attempts.setdefault(name, []).append(Answered(accuracy=value, tokens=trace.sampled_count))
        prompts[name] = trace.prompt_count
    spent = ledger.manifest.get("training")
    return Side(result=result, values={key[task]: value for task, value in result.outcomes.items()}, attempts=attempts,
                families={key[name]: task.family for name, task in tasks.items()}, prompt_tokens=prompts,
                training=None if spent is None else decode(Training, spent, "training"))


def _circumstances(manifest: Mapping[str, Any]) -> dict[str, str]:
    """What besides protocol and policy can change an outcome."""
    packages = manifest.get("packages") or {}
    held = {"code": str((manifest.get("code") or {}).get("source")), "precision": str(manifest.get("dtype")),
            "engine": str(manifest.get("engine")), "tokenizer": str(manifest.get("tokenizer"))}
    held |= {"tool_calls": str(manifest["tool_calls"])} if "tool_calls" in manifest else {}
    return held | {f"package.{name}": str(packages.get(name)) for name in PACKAGES}


def compare(before: Path, after: Path, *, policy_as_one: bool) -> tuple[Compared, Evaluation, Evaluation]:
    """Two evaluations that differ in exactly one thing."""
    one, other = evaluation(before), evaluation(after)
    return comparison(one, other, policy_as_one=policy_as_one), one, other


def comparison(before: Evaluation, after: Evaluation, *, policy_as_one: bool) -> Compared:
    """Two evaluations that were read, where exactly one thing differs."""
    changed = the_one_difference(before.setting, after.setting, policy_as_one=policy_as_one)
    made = compared(before.side, after.side, changed)
    unseen = sorted(before.setting.unseen | after.setting.unseen)
    more = [f"an endpoint does not show its {', '.join(unseen)}: they are a part of what is called the policy"] if unseen else []
    more += ["both judge the very same answers"] if before.answers == after.answers else []
    return replace(made, notes=(*made.notes, *more))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Several evaluations: the factors that vary, each cell's values of them, and the gain of every step along one factor."""

    factors: tuple[str, ...]
    cells: tuple[tuple[Evaluation, Mapping[str, str]], ...]
    steps: tuple[tuple[Difference, Gain], ...]


def grid(folders: Sequence[Path], *, policy_as_one: bool) -> Grid:
    """An ablation grid: all pairs that differ in exactly one factor, their p-values corrected for how many they are."""
    held = [evaluation(folder) for folder in folders]
    values: list[dict[str, str]] = [{} for _ in held]
    steps: list[tuple[Difference, Gain]] = []
    for (i, one), (j, other) in itertools.combinations(enumerate(held), 2):
        found = differences(one.setting, other.setting, policy_as_one=policy_as_one)
        for difference in found:
            values[i][difference.name] = difference.before
            values[j][difference.name] = difference.after
        if len(found) == 1 and found[0].name != "tasks":
            steps.append((found[0], _named(compared(one.side, other.side, found[0]).whole, f"{one.name} to {other.name}")))
    factors = tuple(sorted({name for held in values for name in held}))
    if not steps:
        raise ComparisonRefused("no two of these evaluations differ in exactly one thing",
                                got=", ".join(factors) or "nothing differs", why="no gain can be attributed",
                                fix="add evaluations between which one thing changes")
    gains = adjusted([gain for _, gain in steps])
    return Grid(factors=factors, cells=tuple(zip(held, values, strict=True)),
                steps=tuple((difference, gain) for (difference, _), gain in zip(steps, gains, strict=True)))


def _named(gain: Gain, of: str) -> Gain:
    return Gain(of=of, before=gain.before, after=gain.after, gain=gain.gain, p_value=gain.p_value, claim=gain.claim)
