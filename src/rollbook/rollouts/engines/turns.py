"""An attempt of several turns whose keys and values stay with the engine: nothing is computed twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from rollbook.models.cache import Cache
from rollbook.records import Completion, ModelError, Request
from rollbook.rollouts.engines.memory import cache_bytes


class Turns:
    """What was said so far, the cache of all but its last tokens, and the weights (by hash) that this cache is of.

    All turns draw from one stream of uniforms, the attempt's: token k of the attempt takes the k-th, whatever was cached.
    """

    def __init__(self, request: Request, sample: Callable[[Sequence[Turns]], list[Completion]]):
        self._sample = sample
        self.opened = request
        self.token_ids = request.prompt_ids
        self.cache: Cache | None = None
        self.weights = ""
        self.drawn = 0
        self.closed = False

    @property
    def cached(self) -> int:
        """Tokens whose keys and values are held."""
        return 0 if self.cache is None else int(self.cache.length_B[0])

    @property
    def bytes(self) -> int:
        return 0 if self.cache is None else cache_bytes(self.cache)

    @property
    def request(self) -> Request:
        """The next turn as a request."""
        return replace(self.opened, prompt_ids=self.token_ids)

    def append(self, token_ids: Sequence[int]) -> None:
        """Adds tokens that the policy did not sample: an observation, the next user's message."""
        self._check()
        self.token_ids = (*self.token_ids, *token_ids)

    def sample(self) -> Completion:
        """One turn of at most the request's `max_tokens`; a fault ends the attempt."""
        return self._sample([self])[0]

    def said(self, completion: Completion) -> None:
        """Takes a turn's tokens in; after a fault nothing can follow."""
        self.token_ids = (*self.token_ids, *completion.token_ids)
        self.drawn += len(completion.token_ids)
        if completion.fault is not None:
            self.close()

    def take(self, weights: str) -> None:
        """Lets go of a cache that other weights made; the tokens are computed again with these."""
        self._check()
        if weights != self.weights:
            self.cache, self.weights = None, weights

    def close(self) -> None:
        """Gives the cache back."""
        self.cache, self.closed = None, True

    def _check(self) -> None:
        if self.closed:
            raise ModelError(f"the turns of {self.opened.key} are over", why="they were closed, or a fault ended them")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
