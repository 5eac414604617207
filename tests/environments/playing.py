"""Whole episodes for tests: actions in, observations, final state and grade out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.records import Action, EnvironmentDefinition, FinalState, Grade, Observation, Services, Task, ToolSchema, Ungraded


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What an episode showed and came to."""

    observations: tuple[Observation, ...]
    state: FinalState
    grade: Grade | Ungraded
    tools: tuple[ToolSchema, ...]

    @property
    def accuracy(self) -> float:
        assert isinstance(self.grade, Grade), self.grade
        return self.grade.accuracy

    def texts(self) -> list[str]:
        return [reply.content for observation in self.observations for reply in observation.replies]


def play(definition: EnvironmentDefinition, task: Task, actions: Sequence[Action], services: Services) -> Played:
    """One episode with these actions, up to its end."""
    async def run() -> Played:
        episode = definition.build(services=services, seed=0)
        observations = []
        try:
            observations.append(await episode.reset(task))
            tools = episode.tools
            for action in actions:
                if observations[-1].ended is not None:
                    break
                observations.append(await episode.act(action))
            state = episode.state()
        finally:
            await episode.close()
        return Played(observations=tuple(observations), state=state, tools=tools,
                      grade=definition.verify(task, state, services=services))

    return asyncio.run(run())
