"""Requests in flight: continuous batching over the engine's weights, one token of every row at a time.

Legend: B rows being decoded, V vocabulary.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from rollbook.models.cache import Cache
from rollbook.models.working_copy import WorkingCopy
from rollbook.records import Completion, ModelError, Request
from rollbook.rollouts.engines.memory import Plan, Prompts, blank
from rollbook.rollouts.engines.refusing import fault
from rollbook.rollouts.engines.rows import Row, note_support
from rollbook.rollouts.engines.sampling import draw, uniforms
from rollbook.rollouts.engines.stopping import Stops
from rollbook.rollouts.engines.turns import Turns

FIRST = torch.tensor([0])
OnUpdate = Literal["keep", "recompute"]


class Host(Protocol):
    """What a stream needs of its engine; weights and version may change between two tokens."""

    version: int
    stop_ids: frozenset[int]
    prompts: Prompts
    decode: Callable[[Sequence[int]], str] | None
    watch: Callable[[Sequence[str], Tensor], None] | None

    def ready(self) -> WorkingCopy: ...

    def room_for(self, turns: Turns, cache: Cache, arena: Cache) -> bool: ...


@dataclass(slots=True)
class _Batch:
    """Rows in flight: the first rows of the arena are the live ones, in order; `token_B` is what each drew last."""

    arena: Cache
    rows: list[Row]
    token_B: Tensor

    def close_gaps(self, alive: Sequence[int]) -> None:
        """Keeps these rows and moves the last of them into the places that became free."""
        kept = set(alive)
        late = [index for index in alive if index >= len(alive)]
        order = list(range(len(alive)))
        for gap, source in zip((i for i in order if i not in kept), late, strict=True):
            self.arena.move(source, gap)
            order[gap] = source
        self.rows, self.token_B = [self.rows[i] for i in order], self.token_B[order]


class Stream:
    """Rows that end make room, waiting requests take it; requests may be added at any time.

    consumes: requests (`submit`), whatever weights the engine holds · produces: completions (`advance`) · waits for: nothing
    """

    def __init__(self, host: Host, plan: Plan, requests: Sequence[Request], *, turns: Mapping[str, Turns] | None = None,
                 on_update: OnUpdate = "keep"):
        weights = host.ready()
        self.host, self.plan, self.turns, self.on_update = host, plan, dict(turns or {}), on_update
        self.waiting = deque(requests)
        self.refill = min(plan.rows * 3 // 4, plan.rows - 1)
        arena = Cache.empty(weights.architecture, plan.rows, plan.capacity, weights.dtype, weights.device)
        arena.narrow(max((len(request.prompt_ids) for request in requests), default=0) + 1)
        self.batch = _Batch(arena, [], torch.empty(0, dtype=torch.long))
        self._of = weights

    @property
    def busy(self) -> bool:
        """Whether a request waits or is being answered."""
        return bool(self.waiting or self.batch.rows)

    def submit(self, requests: Sequence[Request]) -> None:
        """Adds requests to those that wait; refuses one that no row of the plan could hold."""
        window = self._of.architecture.window
        for request in requests:
            length = len(request.prompt_ids) + request.max_tokens
            if (length if window is None else min(length, window)) > self.plan.capacity:
                raise ModelError("a request is longer than the stream's rows", got=f"{length} positions for {self.plan.capacity}",
                                 why="rows are laid out once, for the longest request",
                                 fix="open the stream with a plan for the longest prompt and answer")
        self.waiting.extend(requests)

    def follow(self, key: str, turns: Turns) -> None:
        """The next request of this name continues the attempt: its keys and values, its uniforms."""
        self.turns[key] = turns

    def advance(self) -> list[Completion]:
        """Admits what fits, gives back what has ended, and samples one more token for every other row."""
        weights = self._weights()
        batch = self.batch
        if self.waiting and len(batch.rows) <= self.refill:
            rows, logits = self._admit(weights)
            batch.token_B = torch.cat([batch.token_B, self._take(rows, logits)])
            batch.rows += rows
        done = self._harvest()
        if batch.rows:
            batch.arena.reach(int(batch.arena.length_B[:len(batch.rows)].max()) + 1)
            batch.token_B = self._take(batch.rows, weights.decode(batch.token_B, batch.arena.first(len(batch.rows))))
        return done

    def cancel(self, keys: frozenset[str]) -> list[Completion]:
        """Ends these requests now; what was sampled of them comes back as cancelled."""
        over = [row.completion("cancelled", routes=self._routes(index)) for index, row in enumerate(self.batch.rows)
                if row.request.key in keys]
        over += [self._row(request).completion("cancelled") for request in self.waiting if request.key in keys]
        self.waiting = deque(request for request in self.waiting if request.key not in keys)
        self.batch.close_gaps([i for i, row in enumerate(self.batch.rows) if row.request.key not in keys])
        return over

    def _weights(self) -> WorkingCopy:
        """The engine's weights; where they are new, keys and values are kept or made again, as `on_update` says."""
        weights = self.host.ready()
        if weights is not self._of:
            self._of = weights
            if self.on_update == "recompute" and self.batch.rows:
                self._recompute(weights)
        return weights

    def _recompute(self, weights: WorkingCopy) -> None:
        """The keys and values of all that was read and said, by these weights; the last token of a row is still to be read."""
        said = [(*row.request.prompt_ids, *row.tokens[:-1]) for row in self.batch.rows]
        at = 0
        while at < len(said):
            end = at + 1
            while end < len(said) and max(map(len, said[at:end + 1])) * (end + 1 - at) <= self.plan.prefill:
                end += 1
            self.batch.arena.put(at, prefill(weights, said[at:end])[1], torch.arange(end - at))
            at = end

    def _admit(self, weights: WorkingCopy) -> tuple[list[Row], Tensor]:
        """Rows for as many requests as fit, their caches in the arena, and the logits after their prompts.

        What an open attempt or an earlier call holds of a prompt is not computed; equal new prompts are computed once.
        """
        known: list[Row] = []
        logits: list[Tensor] = []
        fresh: list[Row] = []
        of: dict[tuple[int, ...], int] = {}
        batch = self.batch
        while self.waiting and len(batch.rows) + len(known) + len(fresh) < self.plan.rows:
            prompt = self.waiting[0].prompt_ids
            held = None if prompt in of else self._known(prompt, self.turns.get(self.waiting[0].key), weights)
            if held is not None:
                batch.arena.put(len(batch.rows) + len(known), held[0], FIRST)
                logits.append(held[1])
                known.append(self._row(self.waiting.popleft()))
                continue
            if of and prompt not in of and max(map(len, (*of, prompt))) * (len(of) + 1) > self.plan.prefill:
                break
            of.setdefault(prompt, len(of))
            fresh.append(self._row(self.waiting.popleft()))
        if fresh:
            after, cache = prefill(weights, list(of))
            self._keep_prompts(of, after, cache)
            index = torch.tensor([of[row.request.prompt_ids] for row in fresh])
            batch.arena.put(len(batch.rows) + len(known), cache, index)
            logits.append(after[index])
        return known + fresh, torch.cat(logits)

    def _keep_prompts(self, of: Mapping[tuple[int, ...], int], after: Tensor, cache: Cache) -> None:
        """Holds prompts for later calls where that is asked for and their logits are sound."""
        prompts = self.host.prompts
        for prompt, index in of.items() if prompts.budget else ():
            if bool(torch.isfinite(after[index]).all()):
                prompts.put(prompt, cache.row(index), after[index:index + 1].clone())

    def _known(self, prompt: tuple[int, ...], turns: Turns | None, weights: WorkingCopy) -> tuple[Cache, Tensor] | None:
        """One-row cache and logits [1, V] of a prompt whose beginning an open attempt holds, or that an earlier call kept."""
        if turns is not None and turns.cache is not None:
            rest = torch.tensor([prompt[turns.cached:]])
            logits, cache = weights.prefill(rest, torch.tensor([rest.shape[1]]), turns.cache)
            return cache, logits
        return self.host.prompts.get(prompt) if self.host.prompts.budget else None

    def _row(self, request: Request) -> Row:
        mine = self.turns.get(request.key)
        drawn = 0 if mine is None else mine.drawn
        uniform = uniforms(request.seed, request.key, drawn + request.max_tokens)[drawn:]
        stops = Stops(ids=self.host.stop_ids | set(request.stop_ids), strings=request.stop, decode=self.host.decode)
        return Row(request=request, stops=stops, uniform=uniform, turns=mine)

    def _take(self, rows: list[Row], logits: Tensor) -> Tensor:
        """Draws one token per row and writes it down; a row whose logits are not finite gets a fault instead."""
        if self.host.watch is not None:
            self.host.watch([row.request.key for row in rows], logits.float().cpu())
        uniform = torch.tensor([row.uniform[len(row.tokens)] for row in rows], dtype=torch.float64)
        drawn = draw(logits, uniform, rows[0].request)
        for index in (~drawn.sound_B).nonzero()[:, 0].tolist():
            rows[index].fault = fault("logits", rows[index].request, "met logits that are not finite",
                                      f"them after {len(rows[index].tokens)} new tokens",
                                      why="the weights are damaged, or overflow in this precision")
        for row, token, logp in zip(rows, drawn.token_B.tolist(), drawn.logp_B.tolist(), strict=True):
            if row.fault is None:
                row.said(token, logp, self.host.version)
        if drawn.kept is not None:
            note_support(rows, drawn.kept)
        return drawn.token_B

    def _harvest(self) -> list[Completion]:
        """Completes the rows that ended and closes their gaps with rows from the end."""
        batch = self.batch
        over = {index: end for index, row in enumerate(batch.rows) if (end := row.ended()) is not None}
        if not over:
            return []
        done = [batch.rows[index].completion(reason, by, self._routes(index)) for index, (reason, by) in over.items()]
        for row, index in ((batch.rows[index], index) for index in over):
            if row.turns is not None:
                row.turns.cache = self._kept(row.turns, index) if row.fault is None else None
            if row.fault is not None:
                blank(batch.arena, index)
        batch.close_gaps([index for index in range(len(batch.rows)) if index not in over])
        return done

    def _routes(self, index: int) -> array[int] | None:
        """The experts of every position of a row but its last token's, where its request asks for them.

        A row whose logits were damaged has read its last token too; no other has.
        """
        row = self.batch.rows[index]
        if not row.request.keep_routes:
            return None
        found = self.batch.arena.experts(index)
        if found is None:
            raise ModelError("the experts of an answer's positions are gone", got=row.request.key,
                             why="the model has none, or its window is shorter than the answer and its cache rolls over them",
                             fix="--set stages.STAGE.routing=free")
        return array("h", found[:len(row.request.prompt_ids) + len(row.tokens) - 1].cpu().contiguous().numpy().tobytes())

    def _kept(self, turns: Turns, index: int) -> Cache | None:
        """A copy of the row's keys and values for the next turn; None where the budget has no room for it beside the arena."""
        cache = self.batch.arena.row(index)
        return cache if self.host.room_for(turns, cache, self.batch.arena) else None


def prefill(weights: WorkingCopy, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Cache]:
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
