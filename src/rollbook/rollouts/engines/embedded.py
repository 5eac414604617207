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
from rollbook.records import Completion, ModelError, Request
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
        waiting = deque(requests)
        capacity = max(len(r.prompt_ids) + r.max_tokens for r in requests)
        rows: list[_Row] = []
        cache: Cache | None = None
        token_B = torch.empty(0, dtype=torch.long)
        while waiting or rows:
            if waiting and len(rows) <= self.max_rows * 3 // 4:
                new_rows, new_cache, new_token = self._admit(waiting, self.max_rows - len(rows), capacity)
                rows, cache, token_B = _join(rows, cache, token_B, (new_rows, new_cache, new_token))
            alive = self._harvest(rows, token_B, done)
            if alive is not None:
                rows = [rows[i] for i in alive.tolist()]
                cache, token_B = (cache.select(alive), token_B[alive]) if cache is not None else (None, token_B)
            if rows and cache is not None:
                assert self.weights is not None
                token_B = self._take(rows, self.weights.decode(token_B, cache))

    def _admit(self, waiting: deque[Request], room: int, capacity: int) -> tuple[list[_Row], Cache, Tensor]:
        """Prefills each distinct prompt once and gives every request of it a row."""
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
        length = torch.tensor([len(p) for p in prompts])
        token = torch.zeros(len(prompts), int(length.max()), dtype=torch.long)
        for index, prompt in enumerate(prompts):
            token[index, :len(prompt)] = torch.tensor(prompt)
        logits, cache = self.weights.prefill(token, length, capacity)
        of = torch.tensor([prompts[r.prompt_ids] for r in batch])
        now = time.monotonic()
        rows = [_Row(request=r, uniform=uniforms(r.seed, r.key, r.max_tokens), started=now) for r in batch]
        return rows, cache.select(of), self._take(rows, logits[of])

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

    def _harvest(self, rows: list[_Row], token_B: Tensor, done: dict[str, Completion]) -> Tensor | None:
        """Completes the rows that ended; returns the indices of those that go on, None when all do."""
        ended_B = torch.isin(token_B, self._stop)
        spent_B = torch.tensor([len(row.tokens) >= row.request.max_tokens for row in rows], dtype=torch.bool)
        if not bool((ended_B | spent_B).any()):
            return None
        now = time.monotonic()
        for row, ended, spent in zip(rows, ended_B.tolist(), spent_B.tolist(), strict=True):
            if ended or spent:
                reason: StopReason = "end_of_turn" if ended else "length"
                done[row.request.key] = Completion(
                    key=row.request.key, token_ids=tuple(row.tokens), logps=tuple(row.logps),
                    versions=(self.version,) * len(row.tokens), stop_reason=reason, latency_s=now - row.started)
        return (~(ended_B | spent_B)).nonzero()[:, 0]


def _settings(request: Request) -> tuple[float, float, int, float]:
    return (request.temperature, request.top_p, request.top_k, request.min_p)


def _join(rows: list[_Row], cache: Cache | None, token_B: Tensor,
          new: tuple[list[_Row], Cache, Tensor]) -> tuple[list[_Row], Cache, Tensor]:
    new_rows, new_cache, new_token = new
    if cache is None or not rows:
        return new_rows, new_cache, new_token
    joined = Cache(key=torch.cat([cache.key, new_cache.key], dim=1), value=torch.cat([cache.value, new_cache.value], dim=1),
                   length_B=torch.cat([cache.length_B, new_cache.length_B]))
    return rows + new_rows, joined, torch.cat([token_B, new_token])
