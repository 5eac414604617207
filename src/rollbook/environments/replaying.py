"""Playing recorded actions again: the same definition, seed, task and actions give the same observations and the same state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.records import Action, EnvironmentDefinition, Episode, FinalState, Observation, Services, Task, ToolSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What an environment showed: at reset, after each action, and in the end.

    Example: Played(tools=(ToolSchema(...),), opening=Observation(), observations=(Observation(ended="answered"),),
        state=FinalState(facts={"answer": "4"}))
    """

    tools: tuple[ToolSchema, ...]
    opening: Observation
    observations: tuple[Observation, ...]
    state: FinalState


async def play(definition: EnvironmentDefinition, task: Task, actions: Sequence[Action], *, services: Services,
               seed: int) -> Played:
    """Plays the actions in a fresh environment until it ends; errors of the environment are raised as they come."""
    environment = definition.build(services=services, seed=seed)
    try:
        opening = await environment.reset(task)
        tools, seen, ended = tuple(environment.tools), [], opening.ended
        for action in actions:
            if ended is not None:
                break
            seen.append(await environment.act(action))
            ended = seen[-1].ended
        return Played(tools=tools, opening=opening, observations=tuple(seen), state=environment.state())
    finally:
        await environment.close()


def replayable(episode: Episode) -> tuple[tuple[Action, Observation], ...]:
    """The actions that the environment was given, each with what it answered, without what others answered in its place."""
    pairs = []
    for turn in episode.turns:
        action = turn.passed_on
        if action is not None:
            elsewhere = {*turn.delegated, *(one.id for one in turn.misfits)}
            own = tuple(reply for reply in turn.observation.replies if reply.call not in elsewhere)
            pairs.append((action, Observation(replies=own, ended=turn.observation.ended)))
    return tuple(pairs)


async def replay(definition: EnvironmentDefinition, task: Task, episode: Episode, *, services: Services) -> str | None:
    """In what the environment differs from the recorded episode when its actions are played again; None where it does not.

    Replies that a budget shortened, and those of tools that crashed or hung, are compared by their error alone.
    """
    pairs = replayable(episode)
    again = await play(definition, task, [action for action, _ in pairs], services=services, seed=episode.seed)
    if (found := _difference(again.opening, episode.opening)) is not None:
        return f"reset: {found}"
    for number, ((_, wanted), seen) in enumerate(zip(pairs, again.observations, strict=False), start=1):
        if (found := _difference(seen, wanted)) is not None:
            return f"action {number}: {found}"
    if len(again.observations) < len(pairs):
        return f"it ended after {len(again.observations)} of {len(pairs)} actions"
    if episode.state is not None and again.state.id != episode.state.id:
        return "the final state is another"
    return None


def _difference(seen: Observation, wanted: Observation) -> str | None:
    if seen.ended != wanted.ended:
        return f"it ended as {seen.ended}, the record says {wanted.ended}"
    altered = ("crash", "timeout", "flood", "not_text")
    if any(reply.error in altered for reply in wanted.replies):
        return None
    if len(seen.replies) != len(wanted.replies):
        return f"{len(seen.replies)} replies, the record has {len(wanted.replies)}"
    pairs = zip(_sorted(seen), _sorted(wanted), strict=True)
    wrong = next(((a, b) for a, b in pairs if a != b), None)
    return None if wrong is None else f"{wrong[0].content[:80]!r}, the record says {wrong[1].content[:80]!r}"


def _sorted(seen: Observation):  # type: ignore[no-untyped-def]
    return sorted(seen.replies, key=lambda reply: (reply.call or "", reply.content))
