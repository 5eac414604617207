"""An outside program that ends when it must: in time, before it floods the disk, and with the process that started it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

FLOOD = 64 * 2**20      # bytes of output at which a program is ended
LOOK_S = 0.2            # how often its output is looked at
GUARD = 'read _; kill -KILL "-$1"'      # its standard input ends with the process that holds the other end, however that ends


class Flooded(Exception):
    """A program that was ended because it wrote more than `FLOOD` bytes."""


@contextlib.contextmanager
def started(command: Sequence[str], variables: Mapping[str, str], folder: str,
            outputs: tuple[Path, Path]) -> Iterator[subprocess.Popen[bytes]]:
    """The program in a session of its own, which is ended with all that it started there: at the end of this context, or when
    this process is killed. OSError or ValueError where it cannot be started.

    Limit: what it starts in further sessions is not found.
    """
    with outputs[0].open("wb") as out, outputs[1].open("wb") as err:
        program = subprocess.Popen(command, cwd=folder, env=dict(variables), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   start_new_session=True)
    try:
        guard = subprocess.Popen(["/bin/sh", "-c", GUARD, "guard", str(program.pid)], stdin=subprocess.PIPE, cwd="/", env={},
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            yield program
        finally:
            guard.kill()
            guard.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def status_of(program: subprocess.Popen[bytes], outputs: Sequence[Path], seconds: float | None) -> int:
    """How it ended; TimeoutError where it did not in time, Flooded where its outputs grew beyond all measure."""
    until = None if seconds is None else time.monotonic() + seconds
    while True:
        left = LOOK_S if until is None else max(0.0, min(LOOK_S, until - time.monotonic()))
        try:
            return program.wait(left)
        except subprocess.TimeoutExpired:
            if sum(output.stat().st_size for output in outputs if output.is_file()) > FLOOD:
                raise Flooded from None
            if until is not None and time.monotonic() >= until:
                raise TimeoutError from None
