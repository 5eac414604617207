"""Reading what a program writes while its limits are watched; the same for every backend."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollbook.records.sandbox import Captured, Ending, Exceeded, Exited, Limit, Limits, Signalled

CHUNK = 65536
FIRST_LOOK_S = 0.03
Look = Callable[[], tuple[Limit | None, float]]


@dataclass(slots=True)
class Stream:
    """One descriptor that a program writes to; of more than `limit` bytes the rest is not kept, and `over` is true."""

    descriptor: int
    limit: int
    data: bytearray = field(default_factory=bytearray)
    over: bool = False
    open: bool = True

    def read(self) -> None:
        """Takes all that is there, without waiting."""
        while self.open and not self.over:
            try:
                chunk = os.read(self.descriptor, CHUNK)
            except BlockingIOError:
                return
            room = self.limit - len(self.data)
            self.data += chunk[:room]
            self.over, self.open = len(chunk) > room, bool(chunk)

    def captured(self) -> Captured:
        return Captured(data=bytes(self.data), truncated=self.over)


def pipe(limit: int) -> tuple[Stream, int]:
    """A stream and the descriptor to write to it with."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reading, False)
    return Stream(reading, limit), writing


def attend(streams: Sequence[Stream], *, done: int, deadline: float, look: Look,
           enough: Callable[[], bool] = lambda: False) -> Limit | None:
    """Reads until `done` can be read, which means that the program ended, or there is `enough` (None), or a limit is exceeded."""
    with selectors.PollSelector() as selector:
        selector.register(done, selectors.EVENT_READ)
        for stream in streams:
            if stream.open:
                selector.register(stream.descriptor, selectors.EVENT_READ, stream)
        next_look = time.monotonic() + FIRST_LOOK_S
        while True:
            ended = False
            for key, _ in selector.select(max(min(deadline, next_look) - time.monotonic(), 0.0)):
                if key.data is None:
                    ended = True
                    continue
                key.data.read()
                if key.data.over:
                    return "output"
                if not key.data.open:
                    selector.unregister(key.fd)
            now = time.monotonic()
            if ended or enough():
                return None
            if now >= deadline:
                return "wall"
            if now >= next_look:
                exceeded, pause = look()
                if exceeded is not None:
                    return exceeded
                next_look = time.monotonic() + pause


def ending(report: Mapping[str, Any], limits: Limits) -> Ending:
    """How a program ended, by its wait status and what it had used; status None means that time ran out."""
    status = report["status"]
    if status is None or report["wall_s"] > limits.wall_s:
        return Exceeded(limit="wall")
    if report["peak_bytes"] > limits.memory_bytes:
        return Exceeded(limit="memory")
    if report["cpu_s"] > limits.cpu_s:
        return Exceeded(limit="cpu")
    if os.WIFEXITED(status):
        return Exited(status=os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    by_limit: dict[int, Limit] = {signal.SIGXCPU: "cpu", signal.SIGXFSZ: "file_size"}
    return Exceeded(limit=by_limit[number]) if number in by_limit else Signalled(signal=number)
