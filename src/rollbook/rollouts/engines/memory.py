"""What keys and values may cost: the budget, how many rows of which length it holds, and prompts kept between calls."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from torch import Tensor

from rollbook.models.architecture import Architecture
from rollbook.models.cache import CPU, Cache
from rollbook.records import Request

FREE_SHARE = 0.5            # of the memory that is free when the engine is built, unless told otherwise
PREFILL_TOKENS = 8192       # prompt tokens of one prefill, padding included
CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device = CPU) -> int:
    """Memory that this process could still take: the accelerator's, the machine's, or its control group's where that is less."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, max(0, int(limit) - used))


def position_bytes(a: Architecture, dtype: torch.dtype) -> int:
    """Bytes of what a cache holds of one token."""
    return cache_bytes(Cache.empty(a, 1, 1, dtype))


def needed(request: Request) -> int:
    """Positions that a request needs when it runs alone: its row, and its prompt's while it is computed."""
    return 2 * len(request.prompt_ids) + request.max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rows of `capacity` positions that run at once, and `prefill` positions for the prompts that are computed at once."""

    rows: int
    capacity: int
    prefill: int


def plan(requests: Sequence[Request], *, positions: int, max_rows: int, window: int | None = None) -> Plan:
    """As many rows as the requests, `max_rows` and the budget allow; 0 where one request's length is too much for another's.

    A prefill of several prompts may hold what they share once more, so that room for the longest is set aside. A row needs no
    more positions than the architecture's sliding `window`.
    """
    longest = max(len(request.prompt_ids) for request in requests)
    capacity = max(len(request.prompt_ids) + request.max_tokens for request in requests)
    capacity = capacity if window is None else min(capacity, window)
    rows = max(0, min(max_rows, len(requests), (positions - longest) // capacity))
    left = positions - rows * capacity - longest
    return Plan(rows=rows, capacity=capacity, prefill=min(PREFILL_TOKENS, max(longest, left)))


@dataclass(slots=True)
class Prompts:
    """Keys, values and last logits of prompts, kept up to `budget` bytes and only for the weights that made them.

    They are kept by weight hash: an update that moved the weights drops them, one that left every bit alone does not.
    """

    budget: int
    weights: str = ""
    bytes: int = 0
    hits: int = 0
    held: OrderedDict[tuple[int, ...], tuple[Cache, Tensor]] = field(default_factory=OrderedDict)

    def use(self, weights: str) -> None:
        """Says whose prompts are wanted from now on."""
        if weights != self.weights:
            self.held.clear()
            self.bytes, self.weights = 0, weights

    def get(self, prompt: tuple[int, ...]) -> tuple[Cache, Tensor] | None:
        """The one-row cache and logits [1, V] of a prompt that is held."""
        found = self.held.get(prompt)
        if found is not None:
            self.held.move_to_end(prompt)
            self.hits += 1
        return found

    def put(self, prompt: tuple[int, ...], cache: Cache, logits: Tensor) -> None:
        """Keeps a prompt and lets go of those longest unused; one that exceeds the budget by itself is not kept."""
        size = cache_bytes(cache) + logits.nbytes
        if size > self.budget or prompt in self.held:
            return
        self.held[prompt] = (cache, logits)
        self.bytes += size
        while self.bytes > self.budget:
            _, (gone, after) = self.held.popitem(last=False)
            self.bytes -= cache_bytes(gone) + after.nbytes


def cache_bytes(cache: Cache) -> int:
    """Bytes of a cache's keys and values."""
    return sum(held.nbytes for held in cache.held)


def blank(cache: Cache, row: int) -> None:
    """Zeros a row: masked positions are multiplied by 0, which leaves a NaN a NaN for whoever takes the row next."""
    for held in cache.held:
        held[:, row] = 0
