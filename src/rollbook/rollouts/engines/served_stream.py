"""Requests in flight at servers: they come and end at any time, sampled by whichever weights a server has then."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Protocol

from rollbook.records import Completion, Fault, Request
from rollbook.rollouts.engines.replies import cut, unanswerable, whole
from rollbook.rollouts.engines.turns import Turns

WAIT_S = 0.02       # how long `advance` waits for something to end
CANCEL_S = 30.0     # how long a cancelled request may take to come back with what it had sampled


class Asker(Protocol):
    """What a stream needs of its engine."""

    def refused(self, request: Request) -> Fault | None: ...

    def submit(self, request: Request, drawn: int) -> tuple[Future[Completion], Callable[[], None]]: ...

    def check_alive(self) -> None: ...


class ServedStream:
    """At most `rows` requests are with the servers, the others wait here.

    consumes: requests (`submit`) · produces: completions (`advance`) · waits for: the servers, a moment at a time · unblocked by:
    any answer, a time limit, `cancel`
    """

    def __init__(self, engine: Asker, *, rows: int):
        self.engine, self.rows = engine, rows
        self.turns: dict[str, Turns] = {}
        self._waiting: deque[Request] = deque()
        self._open: dict[str, tuple[Request, Future[Completion], Callable[[], None]]] = {}
        self._ended: SimpleQueue[str] = SimpleQueue()
        self._refused: list[Completion] = []

    @property
    def busy(self) -> bool:
        """Whether a request waits or is being answered."""
        return bool(self._waiting or self._open or self._refused)

    def submit(self, requests: Sequence[Request]) -> None:
        """Adds requests to those that wait."""
        for request in requests:
            fault = self.engine.refused(request)
            if fault is None:
                self._waiting.append(request)
            else:
                self._refused.append(unanswerable(request, fault))
        self._send()

    def follow(self, key: str, turns: Turns) -> None:
        """The next request of this name continues the attempt."""
        self.turns[key] = turns

    def advance(self) -> list[Completion]:
        """What ended since the last call; waits a moment where nothing did. Raises where no server answers any more."""
        self._send()
        done, self._refused = self._refused, []
        done += self._collected(WAIT_S if self._open and not done else 0.0)
        self._send()
        self.engine.check_alive()
        return done

    def cancel(self, keys: frozenset[str]) -> list[Completion]:
        """Ends these requests now; what was sampled of them comes back as cancelled, empty where the server does not say."""
        over = [_cancelled(request) for request in self._waiting if request.key in keys]
        self._waiting = deque(request for request in self._waiting if request.key not in keys)
        mine = {key: held for key, held in self._open.items() if key in keys}
        for _, _, abort in mine.values():
            abort()
        deadline = time.monotonic() + CANCEL_S
        for key, (request, future, _) in mine.items():
            del self._open[key]
            try:
                over.append(self._final(future.result(timeout=max(0.0, deadline - time.monotonic()))))
            except TimeoutError:
                over.append(_cancelled(request))
        self._send()
        return over

    def _send(self) -> None:
        while self._waiting and len(self._open) < self.rows:
            request = self._waiting.popleft()
            turns = self.turns.get(request.key)
            future, abort = self.engine.submit(request, 0 if turns is None else turns.drawn)
            self._open[request.key] = (request, future, abort)
            future.add_done_callback(lambda _, key=request.key: self._ended.put(key))

    def _collected(self, patience_s: float) -> list[Completion]:
        done: list[Completion] = []
        try:
            self._take(self._ended.get(timeout=patience_s) if patience_s else self._ended.get_nowait(), done)
            while True:
                self._take(self._ended.get_nowait(), done)
        except Empty:
            return done

    def _take(self, key: str, done: list[Completion]) -> None:
        held = self._open.get(key)
        if held is not None and held[1].done():         # else: the end of a request that was cancelled and is told already
            del self._open[key]
            done.append(self._final(whole(held[1].result()), held[0]))

    def _final(self, completion: Completion, request: Request | None = None) -> Completion:
        turns = self.turns.get(completion.key)
        return completion if turns is None or request is None else cut(completion, request, turns.opened.max_tokens)


def _cancelled(request: Request) -> Completion:
    return Completion(key=request.key, token_ids=(), logps=(), versions=(), stop_reason="cancelled", latency_s=0.0)
