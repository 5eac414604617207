"""An episode of known actions as it would have been sampled: the environment answers, the dialect writes the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.environments.replaying import Played, play
from rollbook.records import Action, EnvironmentDefinition, Message, Segment, Services, Span, Task
from rollbook.records.tasks import Owner
from rollbook.rollouts.rendering import Renderer

TOGETHER = 64       # episodes that are played at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Tokens with their owners, and the messages that they are a rendering of."""

    messages: tuple[Message, ...]
    token_ids: tuple[int, ...]
    owners: tuple[Span, ...]


def show(definition: EnvironmentDefinition, episodes: Sequence[tuple[Task, Sequence[Action]]], *, services: Services,
         renderer: Renderer) -> list[Shown]:
    """Plays each task's actions, `TOGETHER` at a time since environments may take their time; in the order given."""
    async def all_of_them() -> list[Played]:
        room = asyncio.Semaphore(TOGETHER)

        async def one(task: Task, actions: Sequence[Action]) -> Played:
            async with room:
                return await play(definition, task, actions, services=services, seed=0)
        return await asyncio.gather(*(one(task, actions) for task, actions in episodes))
    return [_shown(task, actions, played, renderer)
            for (task, actions), played in zip(episodes, asyncio.run(all_of_them()), strict=True)]


def _shown(task: Task, actions: Sequence[Action], played: Played, renderer: Renderer) -> Shown:
    """The policy's turns, written in the dialect, end with the end of turn.

    What the last of them leads to is not shown, whether or not it ended the episode: nothing was said after it.
    """
    tokenizer = renderer.tokenizer
    stop = min(tokenizer.stop_ids)
    messages = list(renderer.messages(task, played.tools)) + [renderer.message(reply) for reply in played.opening.replies]
    segments = list(renderer.opening(task, played.tools, played.opening.replies))
    for number, (action, seen) in enumerate(zip(actions, played.observations, strict=False), start=1):
        text = renderer.dialect.write(action, played.tools)
        segments.append(_spoken((*tokenizer.encode(text), stop)))
        messages.append(Message(role="assistant", content=text, origin="program"))
        if seen.ended is None and number < len(actions):
            segments += renderer.follow(seen.replies, last=stop)
            messages += [renderer.message(reply) for reply in seen.replies]
    ids = tuple(token for segment in segments for token in segment.token_ids)
    return Shown(messages=tuple(messages), token_ids=ids, owners=_spans(segments))


def _spoken(ids: tuple[int, ...]) -> Segment:
    """The policy's words before there is a policy: no log-probs, so they stand as `history` until they are demonstrated."""
    return Segment(owner="history", token_ids=ids)


def _spans(segments: Sequence[Segment]) -> tuple[Span, ...]:
    def owner(segment: Segment) -> Owner:
        return "policy" if segment.owner == "history" else segment.owner
    return tuple(Span(owner=owner(segment), length=len(segment.token_ids)) for segment in segments)
