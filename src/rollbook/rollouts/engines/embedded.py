"""The embedded engine: continuous batching over the working copy, exact ids, log-probs and versions per token.

Legend: B rows being decoded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rollbook.models.decoder import Decoder
from rollbook.models.weights import weight_hash
from rollbook.models.working_copy import Cache, WorkingCopy
from rollbook.records import Completion, ModelError, Request, sampled_hash
from rollbook.records.rollout import StopReason
from rollbook.rollouts.engines.sampling import draw, uniforms

MAX_ROWS = 128
PREFILL_TOKENS = 8192


@dataclass(slots=True)
class _Row:
    """One request being answered."""

    request: Request
    uniform: np.ndarray
    started: float
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)


class EmbeddedEngine:
    """Samples from a private copy of the published weights.

    A request's uniforms depend on its key alone, so what else is in the batch changes its tokens only through floating point.
    """

    name = "embedded-0"

    def __init__(self, *, stop_ids: frozenset[int], dtype: torch.dtype, max_rows: int = MAX_ROWS):
        self.stop_ids, self.dtype, self.max_rows = stop_ids, dtype, max_rows
        self._stop = torch.tensor(sorted(stop_ids))
        self.weights: WorkingCopy | None = None
        self.version = -1

    def load(self, decoder: Decoder, version: int) -> str:
        """Takes a copy of the weights; returns the hash of what it will sample from, for the publisher to compare."""
        self.weights = WorkingCopy(decoder, self.dtype)
        self.version = version
        return weight_hash(self.weights.named())

    def logprobs(self, token_ids: Sequence[int], given: int) -> tuple[float, ...]:
        """Log-probs (nats, temperature 1) of the tokens after the first `given`, by the path that samples: prefill, decoding."""
        if self.weights is None:
            raise ModelError("the engine has no weights", why="sampling before the first publication", fix="call load first")
        arena = Cache.empty(self.weights.architecture, 1, len(token_ids), self.dtype)
        logits, cache = self.weights.prefill(torch.tensor([token_ids[:given]]), torch.tensor([given]))
        arena.put(0, cache, torch.tensor([0]))
        found: list[float] = []
        for token in token_ids[given:]:
            found.append(float(torch.log_softmax(logits.float(), -1)[0, token]))
            logits = self.weights.decode(torch.tensor([token]), arena.first(1))
        return tuple(found)

    def sample(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order."""
        if self.weights is None:
            raise ModelError("the engine has no weights", why="sampling before the first publication", fix="call load first")
        for request in requests:
            self._check(request)
        done: dict[str, Completion] = {}
        for settings in dict.fromkeys(_settings(r) for r in requests):
            self._run([r for r in requests if _settings(r) == settings], done)
        return [done[request.key] for request in requests]

    def _check(self, request: Request) -> None:
        assert self.weights is not None
        context = self.weights.architecture.context
        if not request.prompt_ids or request.max_tokens < 1:
            raise ModelError(f"request {request.key} asks for nothing",
                             got=f"{len(request.prompt_ids)} prompt tokens, {request.max_tokens} new tokens")
        if len(request.prompt_ids) + request.max_tokens > context:
            raise ModelError(f"request {request.key} does not fit the model's context",
                             got=f"{len(request.prompt_ids)} prompt + {request.max_tokens} new tokens for {context}",
                             fix="shorten the prompt or lower max_tokens")

    def _run(self, requests: list[Request], done: dict[str, Completion]) -> None:
        """Continuous batching: rows that end make room, waiting requests take it; the arena's first rows are the live ones."""
        assert self.weights is not None
        waiting = deque(requests)
        capacity = max(len(r.prompt_ids) + r.max_tokens for r in requests)
        arena = Cache.empty(self.weights.architecture, min(self.max_rows, len(requests)), capacity, self.dtype)
        rows: list[_Row] = []
        token_B = torch.empty(0, dtype=torch.long)
        while waiting or rows:
            if waiting and len(rows) <= self.max_rows * 3 // 4:
                batch, cache, logits, of = self._admit(waiting, arena.key.shape[1] - len(rows))
                arena.put(len(rows), cache, of)
                token_B = torch.cat([token_B, self._take(batch, logits[of])])
                rows += batch
            rows, token_B = self._harvest(rows, token_B, arena, done)
            if rows:
                token_B = self._take(rows, self.weights.decode(token_B, arena.first(len(rows))))

    def _admit(self, waiting: deque[Request], room: int) -> tuple[list[_Row], Cache, Tensor, Tensor]:
        """Rows for as many requests as fit, cache and logits of their distinct prompts, and which prompt each row has."""
        assert self.weights is not None
        batch: list[Request] = []
        prompts: dict[tuple[int, ...], int] = {}
        width = 0
        while waiting and len(batch) < room:
            width = max(width, len(waiting[0].prompt_ids))
            if prompts and width * (len(prompts) + 1) > PREFILL_TOKENS and waiting[0].prompt_ids not in prompts:
                break
            request = waiting.popleft()
            prompts.setdefault(request.prompt_ids, len(prompts))
            batch.append(request)
        logits, cache = _prefill(self.weights, list(prompts))
        of = torch.tensor([prompts[r.prompt_ids] for r in batch])
        now = time.monotonic()
        rows = [_Row(request=r, uniform=uniforms(r.seed, r.key, r.max_tokens), started=now) for r in batch]
        return rows, cache, logits, of

    def _take(self, rows: list[_Row], logits: Tensor) -> Tensor:
        """Draws one token per row and writes it down."""
        if not torch.isfinite(logits).all():
            bad = [row.request.key for row, ok in zip(rows, torch.isfinite(logits).all(-1).tolist(), strict=True) if not ok]
            raise ModelError("the model gave logits that are not finite", got=f"{len(bad)} requests, first {bad[0]}",
                             why="its weights are damaged or overflow in this precision")
        uniform = torch.tensor([row.uniform[len(row.tokens)] for row in rows], dtype=torch.float64)
        drawn = draw(logits, uniform, rows[0].request)
        for row, token, logp in zip(rows, drawn.token_B.tolist(), drawn.logp_B.tolist(), strict=True):
            row.tokens.append(token)
            row.logps.append(logp)
        return drawn.token_B

    def _harvest(self, rows: list[_Row], token_B: Tensor, arena: Cache, done: dict[str, Completion]) -> tuple[list[_Row], Tensor]:
        """Completes the rows that ended and closes their gaps with rows from the end."""
        ended_B = torch.isin(token_B, self._stop)
        spent_B = torch.tensor([len(row.tokens) >= row.request.max_tokens for row in rows], dtype=torch.bool)
        over_B = ended_B | spent_B
        if not bool(over_B.any()):
            return rows, token_B
        now = time.monotonic()
        for index in over_B.nonzero()[:, 0].tolist():
            row = rows[index]
            reason: StopReason = "end_of_turn" if ended_B[index] else "length"
            versions = (self.version,) * len(row.tokens)
            done[row.request.key] = Completion(
                key=row.request.key, token_ids=tuple(row.tokens), logps=tuple(row.logps), versions=versions, stop_reason=reason,
                latency_s=now - row.started, sampled=sampled_hash(row.tokens, row.logps, versions))
        alive = (~over_B).nonzero()[:, 0].tolist()
        count = len(alive)
        late = [index for index in alive if index >= count]
        order = list(range(count))
        for gap, source in zip((i for i in range(count) if over_B[i]), late, strict=True):
            arena.move(source, gap)
            order[gap] = source
        return [rows[i] for i in order], token_B[order]


def _prefill(weights: WorkingCopy, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Cache]:
    """Logits and cache of distinct prompts; what they all begin with is computed once."""
    shared = _common_prefix(prompts)
    prefix = None
    if len(prompts) > 1 and shared:
        head = torch.tensor([prompts[0][:shared]])
        _, prefix = weights.prefill(head, torch.tensor([shared]))
    at = shared if prefix is not None else 0
    length = torch.tensor([len(prompt) - at for prompt in prompts])
    token = torch.zeros(len(prompts), int(length.max()), dtype=torch.long)
    for index, prompt in enumerate(prompts):
        token[index, :len(prompt) - at] = torch.tensor(prompt[at:])
    return weights.prefill(token, length, prefix)


def _common_prefix(prompts: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all prompts share at the front; at least one token of each is left to be computed."""
    first, last = min(prompts), max(prompts)
    shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return min(shared, min(map(len, prompts)) - 1)


def _settings(request: Request) -> tuple[float, float, int, float]:
    return (request.temperature, request.top_p, request.top_k, request.min_p)

