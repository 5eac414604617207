"""Calls into the policy, stitched into contexts: a call that goes on from an earlier one continues its very tokens.

An agent sends texts. Where the texts it sends back are the ones it was given, the tokens behind them are the sampled ones,
whatever the tokenizer would make of the texts; where it rewrote them, a new context begins, and nothing in it counts as sampled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from rollbook.models.tokenizer import ChatTokenizer
from rollbook.records import Action, Completion, Part, Reply, Request, Segment, ToolSchema
from rollbook.records.recipe import SamplingSettings
from rollbook.records.rollout import StopReason
from rollbook.rollouts.dialects import Made, Spoken
from rollbook.rollouts.meeting import OpenTurns, TurnSampler
from rollbook.rollouts.rendering import Renderer
from rollbook.rollouts.solve import segments as sampled_segments
from rollbook.serve.asking import Asked, Refused, Turn, messages_of
from rollbook.serve.workplace import Workplace

DEFAULT = "default"     # the attempt of calls that name none: independent of each other, answered side by side
OWNERS = {"tool": "tool", "user": "user", "system": "system"}
GATHER_S = 0.005        # calls that come within this time are sampled together


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What calls may have: tokens of a conversation and of an answer. `fixed`: the server's sampling settings hold, whatever a
    request says, as training needs; `seed` is the server's. `keep` conversations are held for calls that go on from them, the one
    that was quiet longest is closed first; None holds every one until its attempt is finished, as the trace of an attempt needs.
    `attempt_tokens` and `attempt_calls` are all that one attempt may sample, and how often; None: no limit.

    Example: Allowed(context=2048, max_tokens=256, fixed=True)
    """

    context: int
    max_tokens: int
    seed: int = 0
    fixed: bool = False
    keep: int | None = None
    attempt_tokens: int | None = None
    attempt_calls: int | None = None


@dataclass(slots=True, kw_only=True)
class Thread:
    """One context of an attempt: the conversation as the agent knows it, and the tokens behind it. `used` counts calls of the
    gateway, so that the smallest was quiet longest; a `busy` one is being answered."""

    number: int
    turns: OpenTurns
    said: list[Turn]
    tools: tuple[ToolSchema, ...]
    segments: list[Segment]
    sampled: list[str] = field(default_factory=list)
    stop_reason: StopReason = "end_of_turn"
    used: int = 0
    busy: bool = False

    def part(self) -> Part:
        return Part(kind="context", parent=None, segments=tuple(self.segments), stop_reason=self.stop_reason,
                    sampled=tuple(self.sampled))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What a call was answered: the completion, the text as the agent gets it, its calls, and the prompt's length in tokens."""

    completion: Completion
    action: Action
    reasoning: str
    prompt_tokens: int
    continued: bool


@dataclass(slots=True, kw_only=True)
class Attempt:
    """All calls under one name. Those of a named one are answered in their order, those of the default one side by side.

    `stopped` is the budget that its last call met, `workplace` the environment whose tools its agent may call, `calling` how many
    calls are answered or wait for that.
    """

    name: str
    threads: list[Thread] = field(default_factory=list)
    opened: int = 0
    calls: int = 0
    calling: int = 0
    spent: int = 0
    stopped: StopReason | None = None
    workplace: Workplace | None = None
    closed: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def turn(self) -> contextlib.AbstractAsyncContextManager[None]:
        """What a call waits for before it is looked at."""
        return contextlib.nullcontext() if self.name == DEFAULT else self.lock


class Gateway:
    """The policy as calls see it.

    consumes: requests · produces: answers, and the contexts of each attempt · waits for: the engine, in a thread of its own
    """

    def __init__(self, engine: TurnSampler, renderer: Renderer, sampling: SamplingSettings, allowed: Allowed, *,
                 told: Callable[[dict[str, object]], None] | None = None):
        self.engine, self.renderer, self.sampling, self.told = engine, renderer, sampling, told
        self.context, self.max_tokens, self.seed, self.fixed = allowed.context, allowed.max_tokens, allowed.seed, allowed.fixed
        self.keep, self.closed_early, self._calls = allowed.keep, 0, 0
        self.allowed = allowed
        self.workplaces: asyncio.AbstractEventLoop | None = None        # the loop that environments live on, where there are any
        self.attempts: dict[str, Attempt] = {}
        self.expected: Collection[str] | None = None                    # the attempts there are; None: whatever is named
        self._guard = threading.Lock()
        self._quiet = threading.Condition(self._guard)                  # a call of some attempt is over
        self._waiting: list[tuple[OpenTurns, asyncio.Future[Completion]]] = []
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._running: asyncio.Task[None] | None = None

    @property
    def tokenizer(self) -> ChatTokenizer:
        return self.renderer.tokenizer

    def attempt(self, name: str) -> Attempt:
        """The attempt of this name, begun when first asked for; Refused once it is over, or where there is none."""
        with self._guard:
            return self._of(name)

    def _of(self, name: str) -> Attempt:
        if self.expected is not None and name not in self.expected:
            raise Refused("there is no such attempt", status=404, got=name[:80],
                          why="what is sampled outside an attempt would be on no record, and against no budget")
        found = self.attempts.setdefault(name, Attempt(name=name))
        if found.closed:
            raise _over(name)
        return found

    @contextlib.asynccontextmanager
    async def _entered(self, name: str) -> AsyncIterator[Attempt]:
        """The attempt, for one call: it is not taken before that is answered. Refused where it is over or has nothing left."""
        with self._guard:
            attempt = self._of(name)
            attempt.calling += 1
        try:
            async with attempt.turn:
                if attempt.closed:
                    raise _over(name)
                self._left(attempt)
                yield attempt
        finally:
            with self._quiet:
                attempt.calling -= 1
                self._quiet.notify_all()

    def finish(self, name: str) -> tuple[Part, ...]:
        """Ends an attempt; the contexts in which the policy spoke, in the order they were opened."""
        return tuple(thread.part() for thread in self.taken(name).threads)

    def taken(self, name: str) -> Attempt:
        """An attempt that is over: no call of this name is answered any more, and the one that was being answered is part of it.

        Not to be called from the loop that answers.
        """
        with self._quiet:
            found = self.attempts.get(name) or Attempt(name=name)
            self.attempts[name] = Attempt(name=name, closed=True)
            found.closed = True
            self._quiet.wait_for(lambda: not found.calling)
        for thread in found.threads:
            thread.turns.close()
        return found

    async def chat(self, name: str, asked: Asked) -> Answered:
        """The answer to a conversation."""
        async with self._entered(name) as attempt:
            thread = self._continued(attempt, asked)
            continued = thread is not None
            if thread is None:
                thread = self._opened(attempt, asked)
            before = len(thread.turns.token_ids)
            completion = await self._sample(attempt, thread, asked, before)
            text = self.tokenizer.decode(completion.token_ids)
            spoken = self.renderer.dialect.parse(text, asked.tools)
            action = _action(spoken, asked.tools, text, attempt.calls)
            thread.said.append(Turn(role="assistant", action=action))
            self._tell(attempt, thread, before, completion)
            return Answered(completion=completion, action=action, reasoning=text[:spoken.reasoning_end], prompt_tokens=before,
                            continued=continued)

    async def complete(self, name: str, prompt: str, asked: Asked) -> Answered:
        """The continuation of a text, special tokens in it as the tokenizer reads them."""
        async with self._entered(name) as attempt:
            thread = self._thread(attempt, (Segment(owner="user", token_ids=self.tokenizer.encode(prompt)),), asked)
            before = len(thread.turns.token_ids)
            completion = await self._sample(attempt, thread, asked, before)
            self._tell(attempt, thread, before, completion)
            return Answered(completion=completion, action=Action(text=self.tokenizer.decode(completion.token_ids)), reasoning="",
                            prompt_tokens=before, continued=False)

    def _continued(self, attempt: Attempt, asked: Asked) -> Thread | None:
        """The context whose conversation this one goes on from, with what is new in place; None where there is none."""
        for thread in reversed(attempt.threads):
            known, new = thread.said, asked.turns[len(thread.said):]
            goes_on = not thread.busy and thread.tools == asked.tools and thread.stop_reason in ("end_of_turn", "stop_string")
            if (goes_on and known and new and len(known) == len(asked.turns) - len(new) and _same(known, asked.turns[:len(known)])
                    and all(turn.role in OWNERS for turn in new) and thread.segments[-1].owner == "policy"):
                replies = [Reply(owner=OWNERS[turn.role], content=turn.content, call=turn.call)     # type: ignore[arg-type]
                           for turn in new]
                follow = self.renderer.follow(replies, last=thread.segments[-1].token_ids[-1])
                thread.segments += follow
                thread.turns.append([token for segment in follow for token in segment.token_ids])
                thread.said += new
                return thread
        return None

    def _opened(self, attempt: Attempt, asked: Asked) -> Thread:
        messages = messages_of(asked.turns, lambda action: self.renderer.dialect.write(action, asked.tools))
        ids = self.tokenizer.prompt(self.renderer.announced(messages, asked.tools))
        return self._thread(attempt, (Segment(owner="user", token_ids=ids),), asked)

    def _thread(self, attempt: Attempt, segments: Sequence[Segment], asked: Asked) -> Thread:
        ids = tuple(token for segment in segments for token in segment.token_ids)
        if len(ids) >= self.context:
            attempt.stopped = "context_full"
            raise Refused("the conversation does not fit the model's context", got=f"{len(ids)} tokens of {self.context}",
                          fix="send less of it")
        request = Request(key=f"{attempt.name}/{attempt.opened}", prompt_ids=ids, max_tokens=1, temperature=1.0, top_p=1.0,
                          top_k=0, min_p=0.0, seed=self.seed)
        thread = Thread(number=attempt.opened, turns=self.engine.open(request), said=list(asked.turns), tools=asked.tools,
                        segments=list(segments), used=self._calls)
        attempt.opened += 1
        attempt.threads.append(thread)
        self._let_go(thread)
        return thread

    def _let_go(self, newest: Thread) -> None:
        """Closes conversations beyond the limit, the one that was quiet longest first; what is being answered stays."""
        if self.keep is None:
            return
        with self._guard:
            held = sorted(((thread, attempt) for attempt in self.attempts.values() for thread in attempt.threads),
                          key=lambda pair: pair[0].used)
            over = len(held) - self.keep
            for thread, attempt in [pair for pair in held if not pair[0].busy and pair[0] is not newest][:max(0, over)]:
                thread.turns.close()
                attempt.threads.remove(thread)
                self.closed_early += 1
                if self.told is not None:
                    self.told({"attempt": attempt.name, "thread": thread.number,
                               "closed": f"more than {self.keep} conversations, and this one was quiet longest"})
                if not attempt.threads and not attempt.lock.locked():
                    del self.attempts[attempt.name]

    async def _sample(self, attempt: Attempt, thread: Thread, asked: Asked, before: int) -> Completion:
        room = min(asked.max_tokens or self.max_tokens, self.max_tokens, self.context - before)
        if room < 1:
            attempt.stopped = "context_full"
            raise Refused("the conversation fills the model's context", got=f"{before} tokens of {self.context}")
        room = min(room, self._left(attempt))
        s, free = self.sampling, not self.fixed
        thread.turns.opened = replace(
            thread.turns.opened, max_tokens=room, top_k=s.top_k, min_p=s.min_p, stop=asked.stop,
            seed=self.seed if asked.seed is None or self.fixed else asked.seed,
            temperature=asked.temperature if free and asked.temperature is not None else s.temperature,
            top_p=asked.top_p if free and asked.top_p is not None else s.top_p,
            stop_ids=tuple(sorted(self.renderer.stop_ids - self.tokenizer.stop_ids)))
        self._calls += 1
        thread.used, thread.busy = self._calls, True
        try:
            completion = await self._together(thread.turns)
        finally:
            thread.busy = False
        if completion.fault is not None:
            raise Refused("the policy could not answer", status=500, got=completion.fault.detail)
        thread.segments += sampled_segments(completion)
        thread.sampled += [completion.sampled] if completion.sampled is not None else []
        thread.stop_reason = completion.stop_reason
        attempt.stopped = None          # it went on: whatever a call before was refused for did not end it
        attempt.calls += 1
        attempt.spent += len(completion.token_ids)
        return completion

    def _left(self, attempt: Attempt) -> int:
        """Tokens that the attempt may still sample; Refused where a budget of its is spent."""
        tokens, calls = self.allowed.attempt_tokens, self.allowed.attempt_calls
        if calls is not None and attempt.calls >= calls:
            attempt.stopped = "turn_limit"
            raise Refused("the attempt has had all its calls", got=f"{attempt.calls} of {calls}",
                          why="its budget of turns is spent")
        left = self.context if tokens is None else tokens - attempt.spent
        if left < 1:
            attempt.stopped = "length"
            raise Refused("the attempt has sampled all its tokens", got=f"{attempt.spent} of {tokens}", why="its budget is spent")
        return left

    async def _together(self, turns: OpenTurns) -> Completion:
        """The next turn, sampled with whatever else waits."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        self._waiting.append((turns, future))
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_S)
            batch, self._waiting = self._waiting, []
            try:
                done = await asyncio.get_running_loop().run_in_executor(
                    self._pool, self.engine.sample_turns, [turns for turns, _ in batch])
            except Exception as error:
                for _, future in batch:
                    with contextlib.suppress(asyncio.InvalidStateError):
                        future.set_exception(error)
                continue
            for (_, future), completion in zip(batch, done, strict=True):
                if not future.done():
                    future.set_result(completion)

    def _tell(self, attempt: Attempt, thread: Thread, before: int, completion: Completion) -> None:
        if self.told is not None:
            self.told({"attempt": attempt.name, "thread": thread.number, "prompt_tokens": before,
                       "prompt_ids": list(thread.turns.token_ids[:before]), "token_ids": list(completion.token_ids),
                       "logps": list(completion.logps), "versions": list(completion.versions),
                       "stop_reason": completion.stop_reason, "sampled": completion.sampled})

    def close(self) -> None:
        """Ends the engine's thread."""
        self._pool.shutdown()


def _over(name: str) -> Refused:
    return Refused(f"the attempt {name} is over", status=409, why="its trace was taken")


def _action(spoken: Spoken, tools: Sequence[ToolSchema], text: str, call: int) -> Action:
    """What the agent is told was said; a turn with a call that cannot be read is its whole text, so that the agent can answer."""
    from rollbook.rollouts.answering import read_turn
    if any(not isinstance(one, Made) for one in spoken.calls):
        return Action(text=text[spoken.reasoning_end:].strip())
    read = read_turn(spoken, tools, turn=call, ids=(), decode=lambda ids: "")
    return Action(text=text[spoken.reasoning_end:].strip()) if read.misfits else read.action


def _same(known: Sequence[Turn], sent: Sequence[Turn]) -> bool:
    """Whether two conversations say the same: texts, and calls by name and arguments."""
    return all(_key(a) == _key(b) for a, b in zip(known, sent, strict=True))


def _key(turn: Turn) -> tuple[str, str, str]:
    action = turn.action
    if action is None:
        return turn.role, turn.content, turn.call or ""
    calls = json.dumps([[call.name, dict(call.arguments)] for call in action.calls], sort_keys=True)
    return turn.role, action.text.strip(), calls
