"""Processes that compute together: one object on each, whose methods are called on all of them in the same order."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rollbook.records import Diverged, ModelError

GRACE_S = 10.0      # how long the others have once one rank has failed: they may wait for it in a collective
END_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """What a rank died of inside a call, as it can be raised here."""

    error: BaseException


class Ranks:
    """`size` processes, each with what `make(rank, size)` gives there; `make` must be importable by name.

    A call that one rank does not survive, or that takes longer than `patience_s`, ends all of them: the others would wait for it.
    """

    def __init__(self, make: Callable[[int, int], Any], size: int, *, patience_s: float):
        context = multiprocessing.get_context("spawn")
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="rollbook-ranks-", dir=memory))
        self.patience_s = patience_s
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(make, rank, size, str(self.folder / "store"), theirs), daemon=True,
                                      name=f"rollbook-rank-{rank}")
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._finalizer = weakref.finalize(self, _end, tuple(self._pipes), tuple(self._processes), str(self.folder))
        self._answers()

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """The method of every rank's object with these arguments; what each returned, in the order of ranks."""
        message = pickle.dumps((method, arguments))
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send_bytes(message)
            except OSError as error:
                raise self._lost(rank) from error
        return self._answers()

    def close(self) -> None:
        """Ends every rank; a second time does nothing."""
        self._finalizer()

    def _answers(self) -> list[Any]:
        found: dict[int, Any] = {}
        deadline = time.monotonic() + self.patience_s
        while len(found) < len(self._pipes):
            open_ = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in found}
            ready = wait(list(open_), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                rank = open_[pipe]                       # type: ignore[index]
                try:
                    found[rank] = pickle.loads(self._pipes[rank].recv_bytes())
                except (EOFError, OSError) as error:
                    raise self._lost(rank) from error
                if isinstance(found[rank], Failed):
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        failures = [one.error for one in found.values() if isinstance(one, Failed)]
        silent = [rank for rank in range(len(self._pipes)) if rank not in found]
        if silent:
            self.close()
        if failures:
            raise min(failures, key=lambda error: isinstance(error, Diverged))     # the others only heard of it
        if silent:
            raise ModelError(f"ranks {silent} of the learner did not answer", got=f"nothing within {self.patience_s:g} s",
                             why="the others wait for them in a collective", fix="raise run.learner.patience_s")
        return [found[rank] for rank in range(len(self._pipes))]

    def _lost(self, rank: int) -> ModelError:
        self._processes[rank].join(END_S)
        status = self._processes[rank].exitcode
        self.close()
        return ModelError(f"rank {rank} of the learner died", got=f"exit status {status}",
                          why="its rows of the weights are gone, and the others would wait for it",
                          fix="`rollbook resume RUN` goes on from the last state; fewer ranks where memory is short")


def _end(pipes: tuple[Connection, ...], processes: tuple[BaseProcess, ...], folder: str) -> None:
    for pipe in pipes:
        with contextlib.suppress(OSError):
            pipe.send_bytes(pickle.dumps((None, ())))
            pipe.close()
    for process in processes:
        process.join(END_S)
        if process.is_alive():
            process.kill()
            process.join()
    shutil.rmtree(folder, ignore_errors=True)


def serve(make: Callable[[int, int], Any], rank: int, size: int, store: str, pipe: Connection) -> None:
    """The life of a rank: it ends when it is told to, or when its parent is gone."""
    import torch
    import torch.distributed as dist

    try:
        if torch.cuda.is_available():
            torch.cuda.set_device(rank % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl" if dist.is_nccl_available() and torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(days=1))
        held = make(rank, size)
        answer: Any = None
    except BaseException as error:
        answer = Failed(error=_portable(error))
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(pickle.dumps(answer))
            method, arguments = pickle.loads(pipe.recv_bytes())
            if method is None:
                break
            try:
                answer = getattr(held, method)(*arguments)
            except Exception as error:
                answer = Failed(error=_portable(error))
    os._exit(0)         # a process group whose peers are gone would wait for them


def _portable(error: BaseException) -> BaseException:
    """The error itself where the other side can raise it, else its words."""
    with contextlib.suppress(Exception):
        if str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    return ModelError("a rank of the learner failed", got=f"{type(error).__name__}: {error}"[:600])
