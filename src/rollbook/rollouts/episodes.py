"""The turn loop: one attempt at one task in its environment, from the prompt to the final state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import (
    FAULT_NOTE,
    Action,
    Completion,
    Environment,
    EnvironmentFault,
    Episode,
    EpisodeBudget,
    FinalState,
    Message,
    Observation,
    Part,
    Reply,
    Request,
    Segment,
    Task,
    ToolCall,
    ToolSchema,
    Trace,
    Turn,
)
from rollbook.records.rollout import AttemptId, StopReason
from rollbook.rollouts.answering import Read, answer, first_observation, guarded, passed_on, read_turn
from rollbook.rollouts.contexts import Contexts
from rollbook.rollouts.dialects import Dialect, dialect
from rollbook.rollouts.instance import built, closed, ended_as, final_state, permitted
from rollbook.rollouts.meeting import Meeting, TurnSampler
from rollbook.rollouts.rendering import Renderer
from rollbook.rollouts.rules import DELEGATE, SUMMARY, EpisodeRules
from rollbook.rollouts.tokens import without_beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """What all episodes of a call share. `environment` is the spec's id, `context` the model's in tokens, `tools` the permitted
    ones (empty: all that the environment offers; None: none)."""

    environment: str
    build: Callable[[int], Environment]
    tools: tuple[str, ...] | None
    budget: EpisodeBudget
    rules: EpisodeRules
    renderer: Renderer
    context: int
    envelope: str

    @property
    def dialect(self) -> Dialect:
        return dialect(self.rules.dialect)

    @property
    def tokenizer(self) -> ChatTokenizer:
        return self.renderer.tokenizer


@dataclass(slots=True, kw_only=True)
class Playing:
    """One attempt while it goes on."""

    harness: Harness
    task: Task
    group: str
    seed: int
    request: Request
    engine: TurnSampler
    meeting: Meeting
    contexts: Contexts = field(init=False)
    turns: list[Turn] = field(default_factory=list)
    where: list[int] = field(default_factory=list)
    opening: Observation = field(default_factory=Observation)
    tools: tuple[ToolSchema, ...] = ()
    subagents: list[Part] = field(default_factory=list)
    text: str = ""
    calls: int = 0
    began: float = field(default_factory=time.monotonic)
    latency: float = 0.0
    delegated: int = 0
    failed: Completion | None = None
    broken: StopReason | None = None        # a subagent could not speak: neither can the one that called it
    ending: bool = False            # it is over and gives back what it holds: too late to cancel it

    async def play(self) -> Trace:
        """The attempt as it happened; what the environment cannot do ends it as `environment_failed`."""
        self.meeting.join()
        state, fault = None, None
        self.contexts = Contexts(self.engine, self.meeting, self.request)
        environment: Environment | None = None
        try:
            environment = built(self.harness.build, self.seed)
            stop = await self._play(environment)
            state = final_state(environment)
        except EnvironmentFault as error:
            stop, fault = "environment_failed", str(error)
        except asyncio.CancelledError:
            stop, state = "cancelled", FinalState()         # nothing is asked of an environment that was not waited for
        finally:
            self.ending = True
            self.contexts.close()
            self.meeting.leave()
            fault = await closed(environment, self.harness.budget.call_seconds, fault)
        if fault is not None:
            stop, state = "environment_failed", None
        return self._trace(stop, state, fault)

    async def _play(self, environment: Environment) -> StopReason:
        h = self.harness
        seen = await guarded("reset", h.budget.call_seconds, lambda: environment.reset(self.task))
        self.opening = first_observation(seen, h.budget)
        self.tools = (*permitted(environment, h.tools), *((DELEGATE,) if h.rules.subagents else ()))
        self.contexts.open(h.renderer.opening(self.task, self.tools, self.opening.replies))
        if self.opening.ended is not None:
            return ended_as(self.opening.ended)
        while True:
            room, reason = self._room()
            if reason is not None:
                return reason
            completion = await self.contexts.sample(room)
            self.latency += completion.latency_s
            self.text = h.tokenizer.decode(completion.token_ids)
            if completion.stop_reason not in ("end_of_turn", "stop_string"):
                self.failed = completion if completion.fault is not None else None
                self._note(Read(action=Action(text=self.text), misfits=(), order=()), Observation(), completion)
                return self._cut(completion.stop_reason)
            ended = await self._turn(environment, completion)
            if ended is not None:
                return ended

    def _cut(self, reason: StopReason) -> StopReason:
        """A turn that its own allowance cut: the context's end or the budget's."""
        full = self.contexts.now.length >= self.harness.context
        return ("context_full" if full else "length") if reason in ("length", "context_full") else reason

    async def _turn(self, environment: Environment, completion: Completion) -> StopReason | None:
        """What a turn leads to; why there is no next one, else None with the next one's prompt in place."""
        h = self.harness
        spoken = h.dialect.parse(self.text, self.tools)
        read = read_turn(spoken, self.tools, turn=len(self.turns), ids=completion.token_ids, decode=h.tokenizer.decode)
        self.calls += len(read.action.calls)
        if h.budget.max_calls is not None and self.calls > h.budget.max_calls:
            self._note(read, Observation(), completion)
            return "call_limit"
        others = await self._delegated(read)
        if self.broken is not None:
            self._note(read, Observation(replies=tuple(others.values())), completion, delegated=tuple(others))
            return self.broken
        seen = await answer(environment, read, h.budget, others)
        self._note(read, seen, completion, acted=passed_on(read, others) is not None, delegated=tuple(others))
        if seen.ended is not None:
            return ended_as(seen.ended)
        self._reopen(spoken.reasoning_end, completion)
        return await self._go_on(seen, completion)

    async def _go_on(self, seen: Observation, completion: Completion) -> StopReason | None:
        """Puts the observation into the context; compacts it first where it would grow too long."""
        h, compaction = self.harness, self.harness.rules.compaction
        last = completion.token_ids[-1]
        follow = h.renderer.follow(seen.replies, last=last)
        grown = self.contexts.now.length + sum(len(one.token_ids) for one in follow)
        if compaction is None or grown + 1 <= compaction.at_tokens:
            self.contexts.append(follow)
            return None
        if compaction.kind == "discard":
            self.contexts.append(follow)
            self._discard(compaction.keep_turns)
            return None
        asked = Reply(owner="user", content=compaction.instruction)
        self.contexts.append(h.renderer.follow((*seen.replies, asked), last=last))
        room = min(compaction.summary_tokens, h.budget.max_tokens - self.contexts.spent,
                   h.context - self.contexts.now.length)
        if room < 1:
            return "context_full"
        summary = await self.contexts.sample(room)
        self.latency += summary.latency_s
        if summary.stop_reason in ("failed", "cancelled"):
            self.failed = summary
            return summary.stop_reason
        self.contexts.now.kind = "compacted"
        said = h.dialect.parse(h.tokenizer.decode(summary.token_ids), ()).text
        told = Reply(owner="environment", content=SUMMARY.format(said))
        self.contexts.open(h.renderer.opening(self.task, self.tools, (*self.opening.replies, told)),
                           parent=self.contexts.now.number)
        return None

    def _discard(self, keep: int) -> None:
        """Opens a context without the turns before the last `keep`."""
        now = self.contexts.now
        starts = [place for place, segment in enumerate(now.segments) if segment.owner in ("policy", "history")
                  and (place == 0 or now.segments[place - 1].owner not in ("policy", "history"))]
        first = starts[-keep] if keep and len(starts) >= keep else len(now.segments)
        if not starts or first <= starts[0]:
            return
        now.kind = "compacted"
        kept = [_history(segment) for segment in now.segments[first:]]
        self.contexts.open((*now.segments[:now.head], *kept), parent=now.number, head=now.head)

    def _reopen(self, reasoning_end: int, completion: Completion) -> None:
        """Where reasoning is not kept: a context without that of the turn that was just sampled."""
        if self.harness.rules.reasoning == "keep" or not reasoning_end:
            return
        now, tokenizer = self.contexts.now, self.harness.tokenizer
        start = next(place for place in range(len(now.segments), 0, -1) if now.segments[place - 1].owner != "policy")
        rest = without_beginning(tokenizer.decode, tokenizer.encode_plain, completion.token_ids, reasoning_end)
        turn = [Segment(owner="history", token_ids=rest)] if rest else []
        self.contexts.open((*map(_history, now.segments[:start]), *turn), parent=now.number, head=now.head)

    async def _delegated(self, read: Read) -> dict[str, Reply]:
        """Replies of subagents to the turn's calls of `delegate`, which run side by side."""
        rules = self.harness.rules
        calls = [call for call in read.action.calls if call.name == DELEGATE.name and rules.subagents]
        left = rules.subagents - len(self.subagents)
        replies = {call.id: _undelegated(call, "no more assistants") for call in calls[left:]}
        calls = calls[:left]
        own = min(rules.subagent_tokens, (self.harness.budget.max_tokens - self.contexts.spent) // max(len(calls), 1))
        opened = [] if own < 1 else [(call, at) for call in calls if (at := self._alone(call, own)) is not None]
        able = {call.id for call, _ in opened}
        why = "no tokens are left" if own < 1 else "the text does not fit"
        replies |= {call.id: _undelegated(call, why) for call in calls if call.id not in able}
        if opened:
            self.meeting.become(len(opened))                    # they sample together, while this attempt samples nothing
            try:
                done = await asyncio.gather(*(at.sample(min(own, self.harness.context - at.now.length)) for _, at in opened))
            finally:
                self.meeting.become(1, instead_of=len(opened))
            for (call, at), completion in zip(opened, done, strict=True):
                replies[call.id] = self._reported(call, at, completion)
        return replies

    def _alone(self, call: ToolCall, tokens: int) -> Contexts | None:
        """A context that holds nothing but what a subagent is asked; None where it leaves no room for an answer."""
        own = Contexts(self.engine, self.meeting, self.request)
        asked = Message(role="user", content=call.arguments["task"], origin="policy")
        segments = self.harness.renderer.opening(replace(self.task, prompt=(asked,)), ())
        if sum(len(segment.token_ids) for segment in segments) >= self.harness.context:
            return None
        own.opened = replace(self.request, key=f"{self.request.key}/subagent/{self.delegated}", max_tokens=tokens)
        self.delegated += 1
        own.open(segments).kind = "subagent"
        return own

    def _reported(self, call: ToolCall, own: Contexts, done: Completion) -> Reply:
        """What a subagent said, as an observation; its tokens are the attempt's, and a fault of the engine is too."""
        own.close()
        self.contexts.spent += own.spent
        self.subagents.append(own.now.part(self.contexts.now.number))
        if done.stop_reason in ("failed", "cancelled"):
            self.failed, self.broken = done, done.stop_reason
        text = self.harness.dialect.parse(self.harness.tokenizer.decode(done.token_ids), ()).text
        return Reply(owner="subagent", content=text, call=call.id)

    def _room(self) -> tuple[int, StopReason | None]:
        """Tokens that the next turn may have, or why there is none."""
        budget, h = self.harness.budget, self.harness
        left = h.context - self.contexts.now.length
        tokens = min(budget.max_tokens - self.contexts.spent, budget.turn_tokens or budget.max_tokens)
        if tokens < 1:
            return 0, "length"
        if len(self.turns) >= budget.max_turns:
            return 0, "turn_limit"
        if budget.max_seconds is not None and time.monotonic() - self.began > budget.max_seconds:
            return 0, "time_limit"
        return min(tokens, left), "context_full" if left < 1 else None

    def _note(self, read: Read, seen: Observation, completion: Completion, *, acted: bool = False,
              delegated: tuple[str, ...] = ()) -> None:
        self.where.append(self.contexts.now.number)
        self.turns.append(Turn(action=read.action, misfits=read.misfits, observation=seen, part=0, acted=acted,
                               delegated=delegated, tokens=len(completion.token_ids)))

    def _trace(self, stop: StopReason, state: FinalState | None, fault: str | None) -> Trace:
        h, held = self.harness, self.contexts.held
        last = len(held) - 1
        place = {number: 0 if number == last else number + 1 for number in range(len(held))}
        parts = [context.part(None if context.parent is None else place[context.parent]) for context in held[:-1]]
        parts += [replace(part, parent=place[part.parent or 0]) for part in self.subagents]
        turns = tuple(replace(turn, part=place[number]) for turn, number in zip(self.turns, self.where, strict=True))
        episode = Episode(environment=h.environment, seed=self.seed, dialect=h.rules.dialect, reasoning=h.rules.reasoning,
                          opening=self.opening, turns=turns, state=state, fault=fault)
        segments = tuple(held[-1].segments) if held else (Segment(owner="user", token_ids=self.request.prompt_ids),)
        notes = {"latency_s": self.latency, "episode_s": time.monotonic() - self.began}
        if self.failed is not None and self.failed.fault is not None:
            notes[f"{FAULT_NOTE}{self.failed.fault.code}"] = 1.0
        return Trace(attempt=AttemptId(self.request.key), task=self.task.id, group=self.group, envelope=h.envelope,
                     segments=segments, stop_reason=stop, text=self.text, episode=episode, parts=tuple(parts),
                     sampled=tuple(held[-1].sampled) if held else (), observed=notes)


def _undelegated(call: ToolCall, why: str) -> Reply:
    """The answer to a call of a subagent that there is none for."""
    return Reply(owner="subagent", call=call.id, content=f"error: {why}", error="call_limit")


def _history(segment: Segment) -> Segment:
    """The policy's words as they are shown again."""
    return Segment(owner="history", token_ids=segment.token_ids) if segment.owner == "policy" else segment
