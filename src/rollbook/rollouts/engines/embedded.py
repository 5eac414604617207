"""The embedded engine: samples from the working copy, with exact ids, log-probs and versions per token."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rollbook.models.cache import CPU, Cache
from rollbook.models.decoder import Decoder
from rollbook.models.hashing import ordered_hash
from rollbook.models.working_copy import WorkingCopy, working_copy
from rollbook.records import Completion, ModelError, Request
from rollbook.rollouts.engines.memory import (
    FREE_SHARE,
    Plan,
    Prompts,
    cache_bytes,
    free_bytes,
    needed,
    plan,
    position_bytes,
)
from rollbook.rollouts.engines.refusing import Limits, refusal
from rollbook.rollouts.engines.stream import FIRST, OnUpdate, Stream
from rollbook.rollouts.engines.turns import Turns

MAX_ROWS = 128


class EmbeddedEngine:
    """Samples from a private copy of the published weights.

    A request's uniforms depend on its key alone, so what else is in the batch changes its tokens only through floating point.
    Keys and values take at most `kv_bytes` (default: half of the memory that is free now), of which prompts kept between calls
    may take `prefix_bytes`; requests beyond it wait. `decode` gives the text in which stop strings are sought.
    Limit: equal calls give equal bits in any process where `prefix_bytes` is 0 (a kept prompt was computed in another batch) and
    the budget does not bind or is given (the default one differs with the machine's load).
    """

    name = "embedded-0"

    def __init__(self, *, stop_ids: frozenset[int], dtype: torch.dtype, max_rows: int = MAX_ROWS, kv_bytes: int | None = None,
                 prefix_bytes: int = 0, decode: Callable[[Sequence[int]], str] | None = None, device: torch.device = CPU):
        self.stop_ids, self.dtype, self.max_rows, self.decode = stop_ids, dtype, max_rows, decode
        self.kv_bytes = int(FREE_SHARE * free_bytes(device)) if kv_bytes is None else kv_bytes
        if not 0 <= prefix_bytes < self.kv_bytes:
            raise ModelError("kept prompts need 0 <= prefix_bytes < kv_bytes", got=f"{prefix_bytes} of {self.kv_bytes}",
                             why="the rest of the budget is what requests are answered in")
        self.prompts = Prompts(prefix_bytes)
        self.weights: WorkingCopy | None = None
        self.loaded = ""
        self.version = -1
        self.between_tokens = threading.Lock()       # held by whoever samples on another thread than the one that publishes
        self.watch: Callable[[Sequence[str], Tensor], None] | None = None
        self._open: weakref.WeakSet[Turns] = weakref.WeakSet()

    def load(self, decoder: Decoder, version: int) -> str:
        """Takes a copy of the weights; returns the hash of what it will sample from, for the publisher to compare."""
        weights = working_copy(decoder, self.dtype)
        loaded = ordered_hash(weights.ordered())
        with self.between_tokens:
            self.weights, self.version, self.loaded = weights, version, loaded
            self.prompts.use(loaded)
        return loaded

    def logprobs(self, token_ids: Sequence[int], given: int) -> tuple[float, ...]:
        """Log-probs (nats, temperature 1) of the tokens after the first `given`, by the path that samples: prefill, decoding."""
        weights = self.ready()
        arena = Cache.empty(weights.architecture, 1, len(token_ids), self.dtype, weights.device)
        logits, cache = weights.prefill(torch.tensor([token_ids[:given]]), torch.tensor([given]))
        arena.put(0, cache, FIRST)
        found: list[float] = []
        for place, token in enumerate(token_ids[given:], start=given):
            if place > given:
                logits = weights.decode(torch.tensor([token_ids[place - 1]]), arena.first(1))
            found.append(float(torch.log_softmax(logits.float(), -1)[0, token]))
        return tuple(found)

    def sample(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order; what cannot be answered comes back as failed, with the reason."""
        return self._answer(requests, {})

    def open(self, request: Request) -> Turns:
        """An attempt of several turns; each is sampled as the request says, and its keys and values are kept for the next."""
        turns = Turns(request, self.sample_turns)
        self._open.add(turns)
        return turns

    def sample_turns(self, several: Sequence[Turns]) -> list[Completion]:
        """The next turn of each attempt, decoded together. Caches that other weights made are computed again."""
        context = self.ready().architecture.context
        for turns in several:
            turns.take(self.loaded)
        requests = [turns.request for turns in several]
        requests = [replace(one, max_tokens=max(1, min(one.max_tokens, context - len(one.prompt_ids)))) for one in requests]
        done = self._answer(requests, {turns.opened.key: turns for turns in several})
        for turns, completion in zip(several, done, strict=True):
            turns.said(completion)
        return done

    def ready(self) -> WorkingCopy:
        """The weights as they are sampled from now; refuses to sample before the first publication."""
        if self.weights is None:
            raise ModelError("the engine has no weights", why="sampling before the first publication", fix="call load first")
        return self.weights

    def _answer(self, requests: Sequence[Request], turns: Mapping[str, Turns]) -> list[Completion]:
        a = self.ready().architecture
        if len({request.key for request in requests}) < len(requests):
            raise ModelError("two requests carry one key", got=f"{len(requests)} requests",
                             why="they would draw the same uniforms, and their samples could not be told apart")
        limits = Limits(context=a.context, vocab=a.vocab, budget=self._budget, position=position_bytes(a, self.dtype),
                        text=self.decode is not None)
        done: dict[str, Completion] = {}
        for request in requests:
            if (refused := refusal(request, limits)) is not None:
                done[request.key] = Completion(key=request.key, token_ids=(), logps=(), versions=(), stop_reason="failed",
                                               latency_s=0.0, fault=refused)
        sound = [request for request in requests if request.key not in done]
        for settings in dict.fromkeys(map(_settings, sound)):
            self._run([request for request in sound if _settings(request) == settings], turns, done)
        return [done[request.key] for request in requests]

    @property
    def _budget(self) -> int:
        return self.kv_bytes - self.prompts.budget

    def _plan(self, requests: Sequence[Request], one_position: int) -> Plan:
        """What fits beside the caches of open turns; these are let go, to be computed again, where nothing else would fit."""
        held = sum(turns.bytes for turns in self._open)
        window = self.ready().architecture.window
        found = plan(requests, positions=(self._budget - held) // one_position, max_rows=self.max_rows, window=window)
        if found.rows or not held:
            return found
        for turns in self._open:
            turns.cache = None
        return plan(requests, positions=self._budget // one_position, max_rows=self.max_rows, window=window)

    def _run(self, requests: Sequence[Request], turns: Mapping[str, Turns], done: dict[str, Completion]) -> None:
        """Answers requests of equal sampling settings; where they cannot share a plan, the short ones first."""
        planned = self._plan(requests, position_bytes(self.ready().architecture, self.dtype))
        if not planned.rows:
            ordered = sorted(requests, key=needed)
            for part in (ordered[:len(ordered) // 2], ordered[len(ordered) // 2:]):
                self._run(part, turns, done)
            return
        stream = Stream(self, planned, requests, turns=turns)
        while stream.busy:
            done |= {completion.key: completion for completion in stream.advance()}

    def stream(self, *, rows: int, longest_prompt: int, longest_answer: int, on_update: OnUpdate = "keep") -> Stream:
        """An open stream of requests of equal sampling settings, into which new weights may come at any time (`load`).

        `on_update`: whether the keys and values of rows in flight are kept when they do, or computed again.
        """
        a = self.ready().architecture
        capacity = longest_prompt + longest_answer
        capacity = capacity if a.window is None else min(capacity, a.window)
        needed_bytes = (rows * capacity + 2 * longest_prompt) * position_bytes(a, self.dtype)
        if needed_bytes > self._budget:
            raise ModelError("the stream's rows do not fit the budget for keys and values",
                             got=f"{needed_bytes} bytes of {self._budget}", why="they are laid out once, for the longest request",
                             fix="fewer rows, shorter answers, or a larger kv_bytes")
        return Stream(self, Plan(rows=rows, capacity=capacity, prefill=max(longest_prompt, capacity)), (), on_update=on_update)

    def rows_that_fit(self, rows: int, context: int, longest_prompt: int) -> int:
        """At most `rows` rows of a stream that the budget holds when each may grow to `context` positions; at least one."""
        a = self.ready().architecture
        capacity = context if a.window is None else min(context, a.window)
        positions = self._budget // position_bytes(a, self.dtype) - 2 * longest_prompt
        return max(1, min(rows, positions // capacity))

    def room_for(self, turns: Turns, cache: Cache, arena: Cache) -> bool:
        """Whether the budget holds an attempt's cache beside the arena and what other open attempts keep."""
        held = sum(other.bytes for other in self._open if other is not turns)
        return held + cache_bytes(arena) + cache_bytes(cache) <= self._budget


def _settings(request: Request) -> tuple[float, float, int, float]:
    return (request.temperature, request.top_p, request.top_k, request.min_p)
