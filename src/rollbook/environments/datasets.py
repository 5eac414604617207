"""Data sets as TRL's and verl's users have them, with the reward functions they have: JSON, JSON lines or Parquet."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rollbook.environments.describing import image_of
from rollbook.environments.texts import Posed, TextEpisode, texts
from rollbook.records import (
    Action,
    EnvironmentFault,
    EnvironmentImage,
    FinalState,
    Grade,
    Message,
    Services,
    Solutions,
    Task,
    TaskSet,
    Ungraded,
    canonical,
    digest,
)

ANSWERS = ("answer", "solution", "ground_truth", "target")
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Rows of a file. `trl`: a `prompt` (a text or messages) and the answer in a column of its own; `verl`: `prompt` as messages,
    the answer in `reward_model.ground_truth`.

    `reward` is `exact` (the stated answer is the row's), or the import path of a function: for `trl` called as TRL calls it,
    `f(prompts=[...], completions=[...], **columns) -> [float]`; for `verl` as verl does,
    `f(data_source, solution_str, ground_truth, extra_info) -> float | {"score": float}`. A reward of `full` counts as solved, of
    `none` as not; one outside is no grade.
    """

    path: str
    shape: Literal["trl", "verl"]
    reward: str = "exact"
    none: float = 0.0
    full: float = 1.0
    answer: str = ""
    licence: str = "unstated"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def image(self) -> EnvironmentImage:
        return image_of(self, extra={"rows": digest(Path(self.path).expanduser().read_bytes()), "reward": _source(self.reward)})

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        """The first `count` rows with different prompts; the split unit is the prompt."""
        posed: dict[str, Posed] = {}
        for place, row in enumerate(_rows(self.path)):
            messages = self._messages(row, place)
            unit = digest(canonical([[message.role, message.content] for message in messages]))[:24]
            posed.setdefault(unit, Posed(
                family=texts(row.get("data_source")) or Path(self.path).stem, messages=messages, reference=self._answer(row),
                unit=f"prompt:{unit}", start=str(place), source=Path(self.path).name, licence=self.licence,
                lineage={"row": str(place)}))
            if len(posed) == count:
                break
        pairs = [one.records() for one in posed.values()]
        return TaskSet(raw=tuple(raw for raw, _ in pairs), tasks=tuple(task for _, task in pairs))

    def build(self, *, services: Services, seed: int) -> TextEpisode:
        return TextEpisode()

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        said = state.facts["said"]
        if said is None:
            return Grade(accuracy=0.0, detail="nothing was answered")
        if self.reward == "exact":
            if not task.reference:
                return Ungraded(code="no_reference", detail="the row has no answer")
            right = state.facts["answer"] == task.reference.strip()
            return Grade(accuracy=float(right), detail=f"{task.reference} is wanted"[:200])
        try:
            value = self._called(_rows(self.path)[int(task.initial_state)], task, said)
        except Exception as error:
            return Ungraded(code="crash", detail=f"{self.reward}: {type(error).__name__}: {error}"[:200])
        if value is None:
            return Ungraded(code="unavailable", detail=f"{self.reward} gave no reward for this row")
        share = (value - self.none) / (self.full - self.none)
        if not 0.0 <= share <= 1.0:
            return Ungraded(code="malformed", detail=f"{self.reward} gave {value:g}, outside {self.none:g} to {self.full:g}")
        return Grade(accuracy=share, parts={"reward": value}, detail=f"reward {value:g}")

    def solutions(self, task: Task) -> Solutions:
        """The row's answer, which a reward function may want in another form, and none."""
        return Solutions(gold=((Action(text=task.reference),),), wrong=((Action(text="?"),),))

    def _called(self, row: Mapping[str, Any], task: Task, said: str) -> float | None:
        function = _function(self.reward)
        if self.shape == "verl":
            found = function(row.get("data_source"), said, task.reference, row.get("extra_info"), **self.settings)
            found = found["score"] if isinstance(found, Mapping) else found
        else:
            talks = not isinstance(row["prompt"], str)
            completion: Any = [{"role": "assistant", "content": said}] if talks else said
            columns = {name: [value] for name, value in row.items() if name != "prompt"}
            found = function(prompts=[row["prompt"]], completions=[completion], **columns, **self.settings)[0]
        return None if found is None else float(found)

    def _messages(self, row: Mapping[str, Any], place: int) -> tuple[Message, ...]:
        prompt = row.get("prompt")
        if isinstance(prompt, str):
            return (Message(role="user", content=prompt, origin="raw"),)
        if not isinstance(prompt, list) or not prompt or not all(
                isinstance(one, Mapping) and one.get("role") in ROLES and isinstance(one.get("content"), str) for one in prompt):
            raise EnvironmentFault(f"row {place} of {self.path} has no prompt that can be shown", code="build",
                                   got=repr(prompt)[:80],
                                   why="a prompt is a text, or messages of system, user and assistant with a text")
        return tuple(Message(role=one["role"], content=one["content"], origin="raw") for one in prompt)

    def _answer(self, row: Mapping[str, Any]) -> str:
        if self.shape == "verl":
            return texts((row.get("reward_model") or {}).get("ground_truth"))
        names = (self.answer,) if self.answer else ANSWERS
        return next((texts(row[name]) for name in names if row.get(name) is not None), "")


@functools.lru_cache(maxsize=8)
def _rows(path: str) -> list[dict[str, Any]]:
    """All rows of a file. Raises EnvironmentFault where it is none of the known kinds."""
    file = Path(path).expanduser()
    try:
        if file.suffix == ".parquet":
            import pyarrow.parquet as pq
            rows = pq.read_table(file).to_pylist()
        elif file.suffix == ".jsonl":
            rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        elif file.suffix == ".json":
            rows = json.loads(file.read_text(encoding="utf-8"))
        else:
            raise EnvironmentFault("a data set is a .json, .jsonl or .parquet file", code="build", got=file.name)
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"the data set {path} cannot be read", code="build", got=str(error)[:200]) from error
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise EnvironmentFault(f"the data set {path} is no list of rows", code="build", got=type(rows).__name__)
    return rows


def _function(path: str) -> Callable[..., Any]:
    module, colon, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name) if colon else None
    except (ImportError, AttributeError) as error:
        raise EnvironmentFault("the reward function cannot be imported", code="no_verifier", got=f"{path}: {error}") from error
    if not callable(found):
        raise EnvironmentFault("a reward is `exact` or module:function", code="no_verifier", got=repr(path))
    return found  # type: ignore[no-any-return]


def _source(reward: str) -> str:
    """The digest of the module that a reward function stands in."""
    if reward == "exact":
        return reward
    file = getattr(importlib.import_module(_function(reward).__module__), "__file__", None)
    return digest(Path(file).read_bytes()) if file else ""
