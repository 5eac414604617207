"""The contexts of one attempt: token ids that grow, each with its owner; what was sampled stays as it was sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rollbook.records import Completion, Part, PartKind, Request, Segment
from rollbook.records.rollout import StopReason
from rollbook.rollouts.meeting import Meeting, OpenTurns, TurnSampler
from rollbook.rollouts.solve import segments as sampled_segments


@dataclass(slots=True, kw_only=True)
class Context:
    """One growing sequence of ids. `head` is how many of its segments are the task's prompt and what `reset` showed."""

    turns: OpenTurns
    segments: list[Segment]
    parent: int | None
    number: int
    kind: PartKind = "context"
    head: int = 1
    sampled: list[str] = field(default_factory=list)
    stop_reason: StopReason = "end_of_turn"
    spoke: bool = False

    @property
    def length(self) -> int:
        return len(self.turns.token_ids)

    @property
    def last(self) -> int | None:
        """The last token, where the policy sampled it; None behind anything else."""
        return self.segments[-1].token_ids[-1] if self.segments[-1].owner == "policy" else None

    def part(self, parent: int | None) -> Part:
        return Part(kind=self.kind, parent=parent, segments=tuple(self.segments), stop_reason=self.stop_reason,
                    sampled=tuple(self.sampled))


class Contexts:
    """All contexts of an attempt in the order they were opened; the policy speaks in the last one that is not a subagent's.

    All of them draw from one stream of uniforms, the attempt's, so that no two draw the same.
    """

    def __init__(self, engine: TurnSampler, meeting: Meeting, request: Request):
        self.engine, self.meeting, self.opened = engine, meeting, request
        self.held: list[Context] = []
        self.drawn = 0
        self.spent = 0

    @property
    def now(self) -> Context:
        return self.held[-1]

    def open(self, segments: Sequence[Segment], *, parent: int | None = None, head: int | None = None) -> Context:
        """A new context that begins with these segments; nothing of it has been sampled here."""
        ids = tuple(token for segment in segments for token in segment.token_ids)
        turns = self.engine.open(replace(self.opened, prompt_ids=ids))
        turns.drawn = self.drawn
        if self.held:
            self.now.turns.close()
        self.held.append(Context(turns=turns, segments=list(segments), parent=parent, number=len(self.held),
                                 head=len(segments) if head is None else head))
        return self.now

    def append(self, segments: Sequence[Segment]) -> None:
        """Adds what the policy did not say."""
        self.now.segments += segments
        self.now.turns.append([token for segment in segments for token in segment.token_ids])

    async def sample(self, max_tokens: int) -> Completion:
        """One turn of at most so many tokens in the present context."""
        context = self.now
        context.turns.opened = replace(context.turns.opened, max_tokens=max_tokens)
        completion = await self.meeting.sample(context.turns)
        context.segments += sampled_segments(completion)
        if completion.sampled is not None:
            context.sampled.append(completion.sampled)
        context.spoke = context.spoke or bool(completion.token_ids)
        context.stop_reason = completion.stop_reason
        self.drawn = context.turns.drawn
        self.spent += len(completion.token_ids)
        return completion

    def close(self) -> None:
        """Gives the engine's memory back."""
        for context in self.held:
            context.turns.close()
