"""A generator in simulated time: rows that decode together, each pass as long as its rows make it (processor sharing)."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Generator

import simpy

from rollbook.orchestration.planning.inputs import Machines


class Decoder:
    """`decode` gives an event for when so many tokens are sampled; beyond `rows` requests wait in the order they came."""

    def __init__(self, env: simpy.Environment, machines: Machines, rows: int):
        self.env, self.machines, self.rows = env, machines, rows
        self._live: list[tuple[float, int, simpy.Event]] = []
        self._queue: deque[tuple[float, float, simpy.Event]] = deque()
        self._tokens = 0.0                  # sampled by a row that was there from the beginning
        self._since = 0.0
        self._standing = 0                  # publications under way
        self._prefill = 0.0                 # seconds of prompts still to be read, during which no row decodes
        self._count = itertools.count()
        self._changed = env.event()
        self.busy_s = self.row_seconds = 0.0
        env.process(self._run())

    def decode(self, tokens: float, prompt: float) -> simpy.Event:
        """An event that comes when an answer of so many tokens is sampled, after `prompt` tokens were read."""
        done = self.env.event()
        self._queue.append((tokens, prompt, done))
        self._wake()
        return done

    def stand(self) -> None:
        """Stops until `go`: new weights are loaded."""
        self._advance()
        self._standing += 1
        self._wake()

    def go(self) -> None:
        self._advance()
        self._standing -= 1
        self._wake()

    @property
    def waiting(self) -> int:
        """Requests without a row."""
        return len(self._queue)

    @property
    def live(self) -> int:
        return len(self._live)

    def _rate(self) -> float:
        return 1.0 / (self.machines.pass_s + self.machines.row_s * len(self._live))

    def _wake(self) -> None:
        if not self._changed.triggered:
            self._changed.succeed()

    def _advance(self) -> None:
        """Brings the clock of tokens up to now."""
        spent = self.env.now - self._since
        self._since = self.env.now
        if self._standing or not self._live:
            return
        self.busy_s += spent
        self.row_seconds += spent * len(self._live)
        read = min(self._prefill, spent)
        self._prefill -= read
        self._tokens += (spent - read) * self._rate()

    def _run(self) -> Generator[simpy.Event, object, None]:
        while True:
            self._advance()
            while self._live and self._live[0][0] <= self._tokens + 1e-9:
                heapq.heappop(self._live)[2].succeed()
            while self._queue and len(self._live) < self.rows:
                tokens, prompt, done = self._queue.popleft()
                self._prefill += prompt * self.machines.prefill_token_s
                heapq.heappush(self._live, (self._tokens + tokens, next(self._count), done))
            self._changed = self.env.event()
            if self._standing or not self._live:
                yield self._changed
            else:
                left = self._prefill + max(0.0, self._live[0][0] - self._tokens) / self._rate()
                if self.env.now + left == self.env.now:         # shorter than the clock can show: it has passed
                    self._prefill, self._tokens = 0.0, max(self._tokens, self._live[0][0])
                    continue
                yield self.env.timeout(left) | self._changed
