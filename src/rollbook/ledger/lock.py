"""One writer per run: an exclusive file lock that dies with the process and is not kept alive by its forked children."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from rollbook.ledger.layout import refusing
from rollbook.records import LedgerError


class WriteLock:
    """Held from construction to `release`; LedgerError when another process, or another opening in this one, holds it."""

    def __init__(self, path: Path):
        self._descriptor = -1
        with refusing("the run could not be locked for writing"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise LedgerError("another process is writing this run", got=f"process {holder}",
                              why="two writers would break the chain",
                              fix="wait for it or stop it; to look on, open read-only") from error
        except OSError as error:
            os.close(descriptor)
            raise LedgerError("the run could not be locked for writing", got=error.strerror,
                              why="the file system may not support locks", fix="keep runs on a file system with locks") from error
        self._descriptor = descriptor
        _held.add(self)
        try:
            with refusing("the run could not be locked for writing"):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except BaseException:
            self.release()
            raise

    @property
    def held(self) -> bool:
        return self._descriptor >= 0

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        _held.discard(self)


_held: weakref.WeakSet[WriteLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
