"""Every task of reasoning-gym: its own questions, its own scorer."""

from __future__ import annotations

import functools
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    digest,
)
from rollbook.records.codec import nearest

WRONG = "no answer is given"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGym:
    """The generator `dataset` with its `config`. `least` is the score from which an answer counts as solved wholly.

    Scorers that give part of a point for a near miss keep it as the accuracy below `least`.
    """

    dataset: str
    config: Mapping[str, Any] = field(default_factory=dict)
    least: float = 0.99

    def image(self) -> EnvironmentImage:
        return image_of(self, packages=("reasoning-gym",))

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        """Distinct questions in the order of the generator; the split unit is the question's text, whatever its seed."""
        posed: dict[str, Posed] = {}
        made = _made(self.dataset, json.dumps(dict(self.config), sort_keys=True), seed, 4 * count + 8)
        for index in range(4 * count + 8):
            entry = made[index]
            question = entry["question"]
            if question not in posed:
                posed[question] = Posed(
                    family=f"reasoning_gym.{self.dataset}", messages=(Message(role="user", content=question, origin="raw"),),
                    reference=texts(entry["answer"]), unit=f"{self.dataset}:{digest(question.encode())[:24]}",
                    start=json.dumps({"seed": seed, "index": index, "size": 4 * count + 8}),
                    source=f"reasoning-gym {importlib.metadata.version('reasoning-gym')} {self.dataset}", licence="Apache-2.0",
                    lineage={"dataset": self.dataset, "seed": str(seed), "index": str(index)})
            if len(posed) == count:
                break
        pairs = [one.records() for one in posed.values()]
        return TaskSet(raw=tuple(raw for raw, _ in pairs), tasks=tuple(task for _, task in pairs))

    def build(self, *, services: Services, seed: int) -> TextEpisode:
        return TextEpisode()

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        """The generator's own score of the stated answer."""
        answer = state.facts["answer"]
        if not answer:
            return Grade(accuracy=0.0, detail="nothing was answered")
        made, entry = self._entry(task)
        try:
            score = float(made.score_answer(answer, entry=entry))
        except Exception as error:      # scorers parse whatever was said, and raise what their parsers raise
            return Ungraded(code="crash", detail=f"{self.dataset}: {type(error).__name__}: {error}"[:200])
        accuracy = 1.0 if score >= self.least else min(max(score, 0.0), 1.0)
        return Grade(accuracy=accuracy, parts={"score": score}, detail=f"score {score:g}")

    def solutions(self, task: Task) -> Solutions:
        gold = texts(self._entry(task)[1]["answer"])
        return Solutions(gold=((Action(text=f"<answer>{gold}</answer>"),),), wrong=((Action(text=WRONG),),))

    def _entry(self, task: Task) -> tuple[Any, Mapping[str, Any]]:
        """The generator and its entry of a task, made again from the task's seed and place."""
        start = json.loads(task.initial_state)
        made = _made(self.dataset, json.dumps(dict(self.config), sort_keys=True), start["seed"], start["size"])
        return made, made[start["index"]]


def datasets() -> tuple[str, ...]:
    """The names of all generators of the installed version."""
    import reasoning_gym
    return tuple(sorted(reasoning_gym.factory.DATASETS))


@functools.lru_cache(maxsize=64)
def _made(dataset: str, config: str, seed: int, size: int) -> Any:
    import reasoning_gym

    if dataset not in reasoning_gym.factory.DATASETS:
        raise EnvironmentFault("reasoning-gym has no such dataset", code="build", got=repr(dataset),
                               fix=f"nearest names: {nearest(dataset, list(datasets()))}")
    try:
        return reasoning_gym.create_dataset(dataset, seed=seed, size=size, **json.loads(config))
    except Exception as error:          # generators refuse with bare assertions
        raise EnvironmentFault(f"reasoning-gym's {dataset} refuses its configuration", code="build", got=config,
                               why=f"{type(error).__name__}: {error}") from error
