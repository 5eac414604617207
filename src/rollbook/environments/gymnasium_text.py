"""Any Gymnasium environment with discrete actions, through text: observations are written, actions are read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollbook.environments.describing import image_of
from rollbook.environments.texts import Posed
from rollbook.records import (
    Action,
    EnvironmentFault,
    EnvironmentImage,
    FinalState,
    Grade,
    Message,
    Observation,
    Reply,
    Services,
    Solutions,
    Task,
    TaskSet,
    ToolSchema,
    Ungraded,
)

LAST_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class GymnasiumText:
    """The environment `name` made with `settings`. A turn is a number, or a name of `actions`; the last one said counts.

    Solved is a return of at least `solved`, tried at most `steps` steps. `gold` are actions, for validation, that solve the seeds
    `gold_seeds`, or all where these are empty.
    """

    name: str
    actions: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 100
    solved: float = 1.0
    instruction: str = "Each turn, answer with your action."
    gold: tuple[int, ...] = ()
    gold_seeds: tuple[int, ...] = ()

    def image(self) -> EnvironmentImage:
        return image_of(self, packages=("gymnasium", "numpy"))

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        """`count` seeds of the environment, each its own split unit."""
        listed = ", ".join(f"{number} {name}" for number, name in enumerate(self.actions))
        text = f"{self.name}. {self.instruction}" + (f" Actions: {listed}." if listed else "")
        asked = (Message(role="user", content=text, origin="raw"),)
        posed = [Posed(family=f"gymnasium.{self.name}", messages=asked, reference="",
                       unit=f"{self.name}:{number}", start=json.dumps({"seed": number}), source=f"gymnasium {self.name}",
                       licence="MIT", lineage={"seed": str(number)}).records() for number in range(seed, seed + count)]
        return TaskSet(raw=tuple(raw for raw, _ in posed), tasks=tuple(task for _, task in posed))

    def build(self, *, services: Services, seed: int) -> GymnasiumEpisode:
        return GymnasiumEpisode(definition=self, made=self.make())

    def make(self) -> Any:
        """The Gymnasium environment; EnvironmentFault where it is not installed, unknown, or has no discrete actions."""
        try:
            import gymnasium
        except ModuleNotFoundError as error:
            raise EnvironmentFault("gymnasium is not installed", code="missing_tool",
                                   fix="pip install 'rollbook[gymnasium]'") from error
        try:
            made = gymnasium.make(self.name, **self.settings)
        except Exception as error:
            raise EnvironmentFault(f"gymnasium cannot make {self.name}", code="build",
                                   got=f"{type(error).__name__}: {error}"[:300]) from error
        if not isinstance(made.action_space, gymnasium.spaces.Discrete):
            raise EnvironmentFault(f"{self.name} has no discrete actions", code="build", got=str(made.action_space),
                                   why="a text names one of finitely many actions")
        if self.actions and len(self.actions) != made.action_space.n:
            raise EnvironmentFault(f"{self.name} has {made.action_space.n} actions", code="build",
                                   got=f"{len(self.actions)} names")
        return made

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        total = float(state.facts["return"])
        return Grade(accuracy=float(total >= self.solved), parts={"return": total, "steps": float(state.facts["steps"])},
                     detail=f"return {total:g} in {state.facts['steps']} steps")

    def solutions(self, task: Task) -> Solutions:
        known = self.gold and (not self.gold_seeds or int(json.loads(task.initial_state)["seed"]) in self.gold_seeds)
        return Solutions(gold=(tuple(Action(text=str(number)) for number in self.gold),) if known else (),
                         wrong=((Action(text="nothing"),),))


@dataclass(slots=True, kw_only=True)
class GymnasiumEpisode:
    """One episode; a turn that names no action is answered and costs a step."""

    definition: GymnasiumText
    made: Any
    steps: int = 0
    total: float = 0.0

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return ()

    async def reset(self, task: Task) -> Observation:
        seen, _ = self.made.reset(seed=int(json.loads(task.initial_state)["seed"]))
        return Observation(replies=(self._reply(seen),))

    async def act(self, action: Action) -> Observation:
        self.steps += 1
        number = self._number(action.text)
        if number is None:
            ended = self.steps >= self.definition.steps
            told = Reply(owner="environment", content="That names no action.", error="bad_arguments")
            return Observation(replies=(told,), ended="terminal" if ended else None)
        seen, reward, terminated, truncated, _ = self.made.step(int(self.made.action_space.start) + number)
        self.total += float(reward)
        over = bool(terminated or truncated) or self.steps >= self.definition.steps
        return Observation(replies=(self._reply(seen, float(reward)),), ended="terminal" if over else None)

    def _number(self, text: str) -> int | None:
        names = [name.lower() for name in self.definition.actions]
        said = [word for word in re.findall(r"[\w-]+", text.lower()) if word in names]
        if said:
            return names.index(said[-1])
        numbers = LAST_NUMBER.findall(text)
        number = int(numbers[-1]) if numbers and len(numbers[-1]) < 10 else -1
        return number if 0 <= number < int(self.made.action_space.n) else None

    def _reply(self, seen: Any, reward: float | None = None) -> Reply:
        shown = self.made.render() if self.made.render_mode == "ansi" else seen
        values = shown.tolist() if hasattr(shown, "tolist") else shown
        text = f"observation: {values}" + ("" if reward is None else f"\nreward: {reward:g}")
        return Reply(owner="environment", content=text)

    def state(self) -> FinalState:
        return FinalState(facts={"return": self.total, "steps": self.steps})

    async def close(self) -> None:
        self.made.close()
