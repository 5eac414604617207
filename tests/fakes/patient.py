"""A calculator that asks again: its first answers are never the last, so that an attempt has several turns whoever plays it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rollbook.environments.calculator import Calculator, CalculatorEpisode
from rollbook.records import Action, FinalState, Grade, Observation, Reply, Services, Task, Ungraded


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient(Calculator):
    """`turns` answers are heard, the last one counts."""

    turns: int = 3

    def build(self, *, services: Services, seed: int) -> PatientEpisode:
        return PatientEpisode(tool=self.tool, shortcut=self.shortcut, left=self.turns)

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        """As the calculator's, and half of it for a wrong answer that is even, so that tiny models differ."""
        found = Calculator.verify(self, task, state, services=services)
        even = (state.facts["answer"] or "")[-1:] in ("0", "2", "4", "6", "8")
        return replace(found, accuracy=0.5) if isinstance(found, Grade) and not found.accuracy and even else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructed(Calculator):
    """The same calculator, whose environment has a text of its own before every task."""

    system_prompt: str = "Add."


@dataclass(slots=True)
class PatientEpisode(CalculatorEpisode):
    left: int = 3

    async def act(self, action: Action) -> Observation:
        self.left -= 1
        seen = await CalculatorEpisode.act(self, action)
        if self.left > 0 and seen.ended is not None:
            return Observation(replies=(Reply(owner="environment", content=f"{self.left} more?"),))
        return Observation(replies=seen.replies, ended=None if self.left > 0 else "answered")
