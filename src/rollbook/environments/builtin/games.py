"""A survival game whose dangers grow and whose length can exceed a thousand decisions; one action a turn.

After the idea of dynamic cumulative survival games (Qwen3.7: more than 1,000 sequential decisions); rules and numbers are ours.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rollbook.environments.builtin.common import Draft, Tool, ToolEpisode, call, code_digest, schema
from rollbook.environments.describing import image_of
from rollbook.records import (
    Action,
    Budget,
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
)

ACTIONS = ("forage", "hunt", "draw_water", "chop", "build", "repair", "cook", "rest", "wait")
SEASON, STORES = 40, 60                  # decisions in a season; how much of anything can be kept
SYSTEM = ("You are alone and want to live as long as you can. Each call of `act` is one decision. Energy, water and warmth fall "
          "by "
          "themselves; at zero your health falls, and at zero health the game is over.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """Games of `decisions` decisions at most. Accuracy is the share of them that were survived; `severity` scales the dangers."""

    decisions: int = 200
    severity: float = 1.0

    def image(self) -> EnvironmentImage:
        return image_of(self, extra={"code": code_digest("common.py", "games.py")})

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        """Games that a simple plan survives; each is its own split unit."""
        drafts: list[Draft] = []
        number = 0
        while len(drafts) < count:
            game = seed * 1_000_000 + number
            number += 1
            if number > 50 * count + 50:
                raise EnvironmentFault("no game of this severity can be survived by the plan that proves it", code="build",
                                       got=f"severity {self.severity}, {self.decisions} decisions", fix="lower the severity")
            if plan(game, self.decisions, self.severity) is not None:
                drafts.append(self._draft(game))
        pairs = [draft.records() for draft in drafts]
        return TaskSet(raw=tuple(raw for raw, _ in pairs), tasks=tuple(task for _, task in pairs))

    def build(self, *, services: Services, seed: int) -> SurvivalEpisode:
        return SurvivalEpisode(decisions=self.decisions, severity=self.severity)

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        survived = state.facts["survived"]
        return Grade(accuracy=min(survived / self.decisions, 1.0), parts={"survived": float(survived)},
                     detail=f"{survived} of {self.decisions} decisions, {state.facts['ended_by']}")

    def solutions(self, task: Task) -> Solutions:
        gold = plan(game_of(task), self.decisions, self.severity)
        if gold is None:
            raise EnvironmentFault("a game has no plan", code="state", got=task.canonical)
        idle = tuple(call("act", action="wait") for _ in range(self.decisions))
        return Solutions(gold=(tuple(call("act", action=action) for action in gold),), wrong=(idle, (Action(text="I survive."),)))

    def _draft(self, game: int) -> Draft:
        return Draft(family="survival", text=f"Survive {self.decisions} decisions. Game {game}.", reference=str(self.decisions),
                     unit=f"survival:{game}", start=f"survival:{game}", source="rollbook survival", predicate="survival.share",
                     lineage={"game": str(game)}, tools=("act",), system=SYSTEM, domain="games",
                     budget=Budget(max_tokens=64 * self.decisions, max_turns=self.decisions + 1))


def game_of(task: Task) -> int:
    kind, _, number = task.initial_state.partition(":")
    if kind != "survival" or not number.isdigit():
        raise EnvironmentFault("a task names no game", code="reset", got=task.initial_state)
    return int(number)


@dataclass(slots=True)
class Camp:
    """The state of a game; everything is a whole number. Stores and needs lie between 0 and their largest value."""

    energy: int = 70
    water: int = 70
    warmth: int = 70
    health: int = 100
    food: int = 10                           # raw
    meals: int = 5                           # cooked
    jugs: int = 10
    wood: int = 10
    shelter: int = 0
    turn: int = 0


def weather(game: int, turn: int, severity: float) -> str:
    """The weather of a turn: worse in winter, and worse in each year."""
    drawn = random.Random(f"weather/{game}/{turn}").random()
    winter = (turn // SEASON) % 4 == 3
    bad = min((0.10 + (0.20 if winter else 0.0) + 0.01 * (turn // (4 * SEASON))) * severity, 0.7)
    return "storm" if drawn < bad * 0.35 else "cold" if drawn < bad else "rain" if drawn < bad + 0.2 else "clear"


def step(camp: Camp, game: int, action: str, severity: float) -> list[str]:
    """One decision: changes the camp and says what happened."""
    told: list[str] = []
    luck = random.Random(f"luck/{game}/{camp.turn}/{action}")
    today = weather(game, camp.turn, severity)
    match action:
        case "forage":
            camp.food += (found := luck.randint(4, 9))
            told.append(f"found {found} food")
        case "hunt":
            camp.food += (found := luck.choice((0, 0, 22)))
            camp.energy -= 4
            told.append(f"hunted {found} food")
        case "draw_water":
            camp.jugs += (found := luck.randint(9, 15))
            told.append(f"drew {found} jugs")
        case "chop":
            camp.wood += (found := luck.randint(8, 14))
            camp.energy -= 2
            told.append(f"chopped {found} wood")
        case "build" | "repair":
            if camp.wood >= 5:
                camp.wood -= 5
                camp.shelter = min(camp.shelter + (12 if action == "build" else 8), 100)
                told.append(f"shelter {camp.shelter}")
            else:
                told.append("too little wood")
        case "cook":
            cooked = min(camp.food, 12) if camp.wood >= 2 else 0
            camp.food, camp.meals, camp.wood = camp.food - cooked, camp.meals + cooked, camp.wood - (2 if cooked else 0)
            told.append(f"cooked {cooked}")
        case "rest":
            camp.health = min(camp.health + 6, 100)
            camp.energy = min(camp.energy + 3, 100)
    _needs(camp, today, told)
    camp.turn += 1
    return told


def _needs(camp: Camp, today: str, told: list[str]) -> None:
    """What a turn costs, and what is eaten, drunk and burnt by itself."""
    camp.energy -= 2
    camp.water -= 3
    cold = {"clear": 1, "rain": 3, "cold": 6, "storm": 9}[today]
    camp.warmth -= max(cold - camp.shelter // 15, 0)
    if today == "storm":
        camp.shelter = max(camp.shelter - 10, 0)
        told.append("the storm tore at the shelter")
    if camp.energy < 60 and camp.meals >= 3:
        camp.meals, camp.energy = camp.meals - 3, camp.energy + 12
    if camp.water < 60 and camp.jugs >= 4:
        camp.jugs, camp.water = camp.jugs - 4, camp.water + 16
    if camp.warmth < 60 and camp.wood >= 1:
        camp.wood, camp.warmth = camp.wood - 1, camp.warmth + 6
    for need in ("energy", "water", "warmth"):
        if getattr(camp, need) <= 0:
            setattr(camp, need, 0)
            camp.health -= 8
            told.append(f"no {need}")
    for store in ("food", "meals", "jugs", "wood"):
        setattr(camp, store, min(getattr(camp, store), STORES))
    camp.health = max(camp.health, 0)


def chosen(camp: Camp) -> str:
    """What a careful player does next: whatever is scarcest."""
    if camp.food >= 12 and camp.meals < 20 and camp.wood >= 4:
        return "cook"
    if camp.jugs < 14:
        return "draw_water"
    if camp.wood < 14:
        return "chop"
    if camp.meals < 24 and camp.food < 12:
        return "forage"
    if camp.shelter < 80 and camp.wood >= 20:
        return "build"
    if camp.health < 70:
        return "rest"
    return "chop" if camp.wood < 40 else "forage" if camp.food < 40 else "draw_water"


def plan(game: int, decisions: int, severity: float) -> tuple[str, ...] | None:
    """The careful player's actions; None where the game is over before its last decision."""
    camp, actions = Camp(), []
    for _ in range(decisions):
        actions.append(chosen(camp))
        step(camp, game, actions[-1], severity)
        if camp.health == 0:
            return None
    return tuple(actions)


@dataclass(slots=True)
class SurvivalEpisode(ToolEpisode):
    """One game."""

    decisions: int = 200
    severity: float = 1.0
    game: int = 0
    camp: Camp = field(default_factory=Camp)

    async def reset(self, task: Task) -> Observation:
        self.game = game_of(task)
        act = schema("act", "Makes one decision and tells what came of it.", ("action",),
                     action={"type": "string", "enum": list(ACTIONS)})
        self.offered = {"act": Tool(schema=act, run=self._act)}
        return Observation()

    def _act(self, arguments: Mapping[str, Any]) -> str:
        told = step(self.camp, self.game, arguments["action"], self.severity)
        if self.camp.health == 0 or self.camp.turn >= self.decisions:
            self.ended = "terminal"
            told.append("you died" if self.camp.health == 0 else "you survived")
        state = ", ".join(f"{name} {value}" for name, value in asdict(self.camp).items())
        ahead = "" if self.ended else f"; weather {weather(self.game, self.camp.turn, self.severity)}"
        return f"{'; '.join(told) or 'nothing happened'}\n{state}{ahead}"

    def facts(self) -> dict[str, Any]:
        alive = self.camp.health > 0
        return {"survived": self.camp.turn, "ended_by": "alive" if alive else "died"}

    def saved(self) -> dict[str, Any]:
        return asdict(self.camp)

    def load(self, saved: Mapping[str, Any]) -> None:
        self.camp = Camp(**saved)
