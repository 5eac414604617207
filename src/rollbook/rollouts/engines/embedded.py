"""The embedded engine: continuous batching over the working copy, exact ids, log-probs and versions per token.

Legend: B rows being decoded, V vocabulary.
"""

from __future__ import annotations

import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from rollbook.models.decoder import Decoder
from rollbook.models.weights import weight_hash
from rollbook.models.working_copy import Cache, WorkingCopy, working_copy
from rollbook.records import Completion, Fault, ModelError, Request, SampledSupport, sampled_hash
from rollbook.records.rollout import StopReason
from rollbook.rollouts.engines.memory import (
    FREE_SHARE,
    Plan,
    Prompts,
    blank,
    cache_bytes,
    free_bytes,
    needed,
    one_row,
    plan,
    position_bytes,
)
from rollbook.rollouts.engines.refusing import Limits, fault, refusal
from rollbook.rollouts.engines.sampling import Kept, draw, uniforms
from rollbook.rollouts.engines.stopping import Stops
from rollbook.rollouts.engines.turns import Turns

MAX_ROWS = 128
FIRST = torch.tensor([0])


@dataclass(slots=True)
class _Row:
    """One request being answered."""

    request: Request
    stops: Stops
    uniform: np.ndarray
    started: float
    turns: Turns | None
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    support: _Support | None = None
    fault: Fault | None = None

    def ended(self) -> tuple[StopReason, int | str | None] | None:
        """Why it is over and what stopped it; None while it goes on."""
        if self.fault is not None:
            return "failed", None
        by = self.stops.met(self.tokens)
        if by is not None:
            return ("end_of_turn" if isinstance(by, int) else "stop_string"), by
        if len(self.tokens) < self.request.max_tokens:
            return None
        cut = self.turns is not None and self.request.max_tokens < self.turns.opened.max_tokens
        return ("context_full" if cut else "length"), None


@dataclass(slots=True)
class _Support:
    """What a row's tokens were drawn from, as it grows."""

    ids: array[int] = field(default_factory=lambda: array("i"))
    counts: list[int] = field(default_factory=list)
    log_mass: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Batch:
    """Rows in flight: the first rows of the arena are the live ones, in order; `token_B` is what each drew last."""

    plan: Plan
    arena: Cache
    waiting: deque[Request]
    turns: Mapping[str, Turns]
    rows: list[_Row] = field(default_factory=list)
    token_B: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))

    def close_gaps(self, alive: Sequence[int]) -> None:
        """Keeps these rows and moves the last of them into the places that became free."""
        kept = set(alive)
        late = [index for index in alive if index >= len(alive)]
        order = list(range(len(alive)))
        for gap, source in zip((i for i in order if i not in kept), late, strict=True):
            self.arena.move(source, gap)
            order[gap] = source
        self.rows, self.token_B = [self.rows[i] for i in order], self.token_B[order]


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
                 prefix_bytes: int = 0, decode: Callable[[Sequence[int]], str] | None = None):
        self.stop_ids, self.dtype, self.max_rows, self.decode = stop_ids, dtype, max_rows, decode
        self.kv_bytes = int(FREE_SHARE * free_bytes()) if kv_bytes is None else kv_bytes
        if not 0 <= prefix_bytes < self.kv_bytes:
            raise ModelError("kept prompts need 0 <= prefix_bytes < kv_bytes", got=f"{prefix_bytes} of {self.kv_bytes}",
                             why="the rest of the budget is what requests are answered in")
        self.prompts = Prompts(prefix_bytes)
        self.weights: WorkingCopy | None = None
        self.loaded = ""
        self.version = -1
        self.watch: Callable[[Sequence[str], Tensor], None] | None = None
        self._open: weakref.WeakSet[Turns] = weakref.WeakSet()

    def load(self, decoder: Decoder, version: int) -> str:
        """Takes a copy of the weights; returns the hash of what it will sample from, for the publisher to compare."""
        self.weights = working_copy(decoder, self.dtype)
        self.version = version
        self.loaded = weight_hash(self.weights.named())
        self.prompts.use(self.loaded)
        return self.loaded

    def logprobs(self, token_ids: Sequence[int], given: int) -> tuple[float, ...]:
        """Log-probs (nats, temperature 1) of the tokens after the first `given`, by the path that samples: prefill, decoding."""
        weights = self._ready()
        arena = Cache.empty(weights.architecture, 1, len(token_ids), self.dtype)
        logits, cache = weights.prefill(torch.tensor([token_ids[:given]]), torch.tensor([given]))
        arena.put(0, cache, FIRST)
        found: list[float] = []
        for token in token_ids[given:]:
            found.append(float(torch.log_softmax(logits.float(), -1)[0, token]))
            logits = weights.decode(torch.tensor([token]), arena.first(1))
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
        context = self._ready().architecture.context
        for turns in several:
            turns.take(self.loaded)
        requests = [turns.request for turns in several]
        requests = [replace(one, max_tokens=max(1, min(one.max_tokens, context - len(one.prompt_ids)))) for one in requests]
        done = self._answer(requests, {turns.opened.key: turns for turns in several})
        for turns, completion in zip(several, done, strict=True):
            turns.said(completion)
        return done

    def _ready(self) -> WorkingCopy:
        if self.weights is None:
            raise ModelError("the engine has no weights", why="sampling before the first publication", fix="call load first")
        return self.weights

    def _answer(self, requests: Sequence[Request], turns: Mapping[str, Turns]) -> list[Completion]:
        a = self._ready().architecture
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
        found = plan(requests, positions=(self._budget - held) // one_position, max_rows=self.max_rows)
        if found.rows or not held:
            return found
        for turns in self._open:
            turns.cache = None
        return plan(requests, positions=self._budget // one_position, max_rows=self.max_rows)

    def _run(self, requests: Sequence[Request], turns: Mapping[str, Turns], done: dict[str, Completion]) -> None:
        """Continuous batching: rows that end make room, waiting requests take it."""
        weights = self._ready()
        planned = self._plan(requests, position_bytes(weights.architecture, self.dtype))
        if not planned.rows:
            ordered = sorted(requests, key=needed)
            for part in (ordered[:len(ordered) // 2], ordered[len(ordered) // 2:]):
                self._run(part, turns, done)
            return
        arena = Cache.empty(weights.architecture, planned.rows, planned.capacity, self.dtype)
        arena.narrow(max(len(request.prompt_ids) for request in requests) + 1)
        batch = _Batch(planned, arena, deque(requests), turns)
        refill = min(self.max_rows * 3 // 4, planned.rows - 1)
        while batch.waiting or batch.rows:
            if batch.waiting and len(batch.rows) <= refill:
                rows, logits = self._admit(batch, weights)
                batch.token_B = torch.cat([batch.token_B, self._take(rows, logits)])
                batch.rows += rows
            self._harvest(batch, done)
            if batch.rows:
                arena.reach(int(arena.length_B[:len(batch.rows)].max()) + 1)
                batch.token_B = self._take(batch.rows, weights.decode(batch.token_B, arena.first(len(batch.rows))))

    def _admit(self, batch: _Batch, weights: WorkingCopy) -> tuple[list[_Row], Tensor]:
        """Rows for as many requests as fit, their caches in the arena, and the logits after their prompts.

        What an open attempt or an earlier call holds of a prompt is not computed; equal new prompts are computed once.
        """
        known: list[_Row] = []
        logits: list[Tensor] = []
        fresh: list[_Row] = []
        of: dict[tuple[int, ...], int] = {}
        while batch.waiting and len(batch.rows) + len(known) + len(fresh) < batch.plan.rows:
            prompt = batch.waiting[0].prompt_ids
            held = None if prompt in of else self._known(prompt, batch.turns.get(batch.waiting[0].key), weights)
            if held is not None:
                batch.arena.put(len(batch.rows) + len(known), held[0], FIRST)
                logits.append(held[1])
                known.append(self._row(batch.waiting.popleft(), batch.turns))
                continue
            if of and prompt not in of and max(map(len, (*of, prompt))) * (len(of) + 1) > batch.plan.prefill:
                break
            of.setdefault(prompt, len(of))
            fresh.append(self._row(batch.waiting.popleft(), batch.turns))
        if fresh:
            after, cache = _prefill(weights, list(of))
            self._keep_prompts(of, after, cache)
            index = torch.tensor([of[row.request.prompt_ids] for row in fresh])
            batch.arena.put(len(batch.rows) + len(known), cache, index)
            logits.append(after[index])
        return known + fresh, torch.cat(logits)

    def _keep_prompts(self, of: Mapping[tuple[int, ...], int], after: Tensor, cache: Cache) -> None:
        """Holds prompts for later calls where that is asked for and their logits are sound."""
        for prompt, index in of.items() if self.prompts.budget else ():
            if bool(torch.isfinite(after[index]).all()):
                self.prompts.put(prompt, one_row(cache, index), after[index:index + 1].clone())

    def _known(self, prompt: tuple[int, ...], turns: Turns | None, weights: WorkingCopy) -> tuple[Cache, Tensor] | None:
        """One-row cache and logits [1, V] of a prompt whose beginning an open attempt holds, or that an earlier call kept."""
        if turns is not None and turns.cache is not None:
            rest = torch.tensor([prompt[turns.cached:]])
            logits, cache = weights.prefill(rest, torch.tensor([rest.shape[1]]), turns.cache)
            return cache, logits
        return self.prompts.get(prompt) if self.prompts.budget else None

    def _row(self, request: Request, turns: Mapping[str, Turns]) -> _Row:
        mine = turns.get(request.key)
        drawn = 0 if mine is None else mine.drawn
        uniform = uniforms(request.seed, request.key, drawn + request.max_tokens)[drawn:]
        stops = Stops(ids=self.stop_ids | set(request.stop_ids), strings=request.stop, decode=self.decode)
        return _Row(request=request, stops=stops, uniform=uniform, started=time.monotonic(), turns=mine)

    def _take(self, rows: list[_Row], logits: Tensor) -> Tensor:
        """Draws one token per row and writes it down; a row whose logits are not finite gets a fault instead."""
        if self.watch is not None:
            self.watch([row.request.key for row in rows], logits.float())
        uniform = torch.tensor([row.uniform[len(row.tokens)] for row in rows], dtype=torch.float64)
        drawn = draw(logits, uniform, rows[0].request)
        for index in (~drawn.sound_B).nonzero()[:, 0].tolist():
            rows[index].fault = fault("logits", rows[index].request, "met logits that are not finite",
                                      f"them after {len(rows[index].tokens)} new tokens",
                                      why="the weights are damaged, or overflow in this precision")
        for row, token, logp in zip(rows, drawn.token_B.tolist(), drawn.logp_B.tolist(), strict=True):
            if row.fault is None:
                row.tokens.append(token)
                row.logps.append(logp)
        if drawn.kept is not None:
            _note_support(rows, drawn.kept)
        return drawn.token_B

    def _harvest(self, batch: _Batch, done: dict[str, Completion]) -> None:
        """Completes the rows that ended and closes their gaps with rows from the end."""
        over = {index: end for index, row in enumerate(batch.rows) if (end := row.ended()) is not None}
        if not over:
            return
        now = time.monotonic()
        for index, (reason, by) in over.items():
            row = batch.rows[index]
            done[row.request.key] = self._completion(row, reason, by, now)
            if row.turns is not None:
                row.turns.cache = self._kept(batch, index) if row.fault is None else None
            if row.fault is not None:
                blank(batch.arena, index)
        batch.close_gaps([index for index in range(len(batch.rows)) if index not in over])

    def _completion(self, row: _Row, reason: StopReason, by: int | str | None, now: float) -> Completion:
        versions = (self.version,) * len(row.tokens)
        held = row.support
        support = None if held is None else SampledSupport(ids=held.ids, counts=tuple(held.counts), log_mass=tuple(held.log_mass))
        return Completion(key=row.request.key, token_ids=tuple(row.tokens), logps=tuple(row.logps), versions=versions,
                          stop_reason=reason, latency_s=now - row.started, stopped_by=by, support=support, fault=row.fault,
                          sampled=sampled_hash(row.tokens, row.logps, versions) if row.tokens else None)

    def _kept(self, batch: _Batch, index: int) -> Cache | None:
        """A copy of the row's keys and values for the next turn; None where the budget has no room for it beside the arena."""
        cache = one_row(batch.arena, index)
        held = sum(turns.bytes for turns in self._open if turns is not batch.rows[index].turns)
        return cache if held + cache_bytes(batch.arena) + cache_bytes(cache) <= self._budget else None


def _note_support(rows: Sequence[_Row], kept: Kept) -> None:
    id_BC = kept.id_BC.to(torch.int32).numpy()
    for index, (row, count, mass) in enumerate(zip(rows, kept.count_B.tolist(), kept.log_mass_B.tolist(), strict=True)):
        if row.fault is None:
            row.support = row.support or _Support()
            row.support.ids.frombytes(id_BC[index, :count].tobytes())
            row.support.counts.append(count)
            row.support.log_mass.append(mass)


def _prefill(weights: WorkingCopy, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Cache]:
    """Logits and cache of distinct prompts; what they all begin with is computed once."""
    shared = _common_prefix(prompts)
    prefix = None
    if len(prompts) > 1 and shared:
        head = torch.tensor([prompts[0][:shared]])
        _, prefix = weights.prefill(head, torch.tensor([shared]))
    at = shared if prefix is not None else 0
    length = torch.tensor([len(prompt) - at for prompt in prompts])
    token = torch.empty(len(prompts), int(length.max()), dtype=torch.long)
    for index, prompt in enumerate(prompts):
        token[index, :len(prompt) - at] = torch.tensor(prompt[at:])
        token[index, len(prompt) - at:] = prompt[-1]       # padding of its own: no other row can meet what is wrong with it
    return weights.prefill(token, length, prefix)


def _common_prefix(prompts: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all prompts share at the front; at least one token of each is left to be computed."""
    first, last = min(prompts), max(prompts)
    shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return min(shared, min(map(len, prompts)) - 1)


def _settings(request: Request) -> tuple[float, float, int, float]:
    return (request.temperature, request.top_p, request.top_k, request.min_p)
