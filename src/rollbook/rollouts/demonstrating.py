"""An episode of known actions as it would have been sampled: the environment answers, the dialect writes the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.environments.replaying import play
from rollbook.records import Action, EnvironmentDefinition, Message, Segment, Services, Span, Task
from rollbook.records.tasks import Owner
from rollbook.rollouts.rendering import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Tokens with their owners, and the messages that they are a rendering of."""

    messages: tuple[Message, ...]
    token_ids: tuple[int, ...]
    owners: tuple[Span, ...]


def show(definition: EnvironmentDefinition, task: Task, actions: Sequence[Action], *, services: Services,
         renderer: Renderer) -> Shown:
    """Plays the actions; the policy's turns are written in the dialect and end with the end of turn.

    What the last of them leads to is not shown, whether or not it ended the episode: nothing was said after it.
    """
    played = asyncio.run(play(definition, task, actions, services=services, seed=0))
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
