"""Who waits for what, and for how long: a stall becomes an error that names it, never a hang without a message."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rollbook.records import RollbookError


class Stalled(RollbookError):
    """Nothing in an asynchronous stage moved for longer than its deadline; the message names what waits for what."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class Standing:
    """What a loop does now: `waits_for` None while it works; `since` on the board's clock, seconds."""

    waits_for: str | None
    since: float


class Board:
    """Every loop says on it when it moves and what it waits for; whoever waits longest may ask whether all stand still.

    Limit: a loop that computes for longer than `stall_s` without saying so looks like one that hangs.
    """

    def __init__(self, stall_s: float, clock: Callable[[], float] = time.monotonic):
        self.stall_s, self._clock = stall_s, clock
        self._mutex = threading.Lock()
        self._loops: dict[str, Standing] = {}
        self._moved = clock()
        self._failure: BaseException | None = None

    def moved(self, loop: str) -> None:
        """The loop did something that others can build on."""
        with self._mutex:
            self._moved = self._clock()
            self._loops[loop] = Standing(None, self._moved)

    def working(self, loop: str) -> None:
        """The loop computes; that alone is no progress."""
        with self._mutex:
            before = self._loops.get(loop)
            if before is None or before.waits_for is not None:
                self._loops[loop] = Standing(None, self._clock())

    def waits(self, loop: str, what: str) -> None:
        """The loop has nothing to do until this happens; the first time it says so counts."""
        with self._mutex:
            before = self._loops.get(loop)
            if before is None or before.waits_for != what:
                self._loops[loop] = Standing(what, self._clock())

    def failed(self, error: BaseException) -> None:
        """A loop died of this; whoever checks next raises it."""
        with self._mutex:
            self._failure = self._failure or error

    @property
    def down(self) -> bool:
        """Whether a loop has died: the others have nothing to wait for."""
        with self._mutex:
            return self._failure is not None

    def check(self) -> None:
        """Raises what a loop died of, or `Stalled` where nothing moved for `stall_s`."""
        with self._mutex:
            if self._failure is not None:
                raise self._failure
            now = self._clock()
            if now - self._moved < self.stall_s:
                return
            lines = [f"{name} waits for {held.waits_for} since {now - held.since:.0f} s" if held.waits_for is not None
                     else f"{name} has been working for {now - held.since:.0f} s" for name, held in sorted(self._loops.items())]
        raise Stalled(f"nothing moved for {self.stall_s:g} s", got="; ".join(lines) or "no loop ever reported",
                      why="a generator, a verifier or the throttle does not let the next batch come together",
                      fix="look at the first that waits; raise asynchrony.stall_s where an attempt may honestly take this long")
