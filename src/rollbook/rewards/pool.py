"""Verification with a hard limit: worker processes that are killed when their time is over."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rollbook.records.reward import FailureCode
from rollbook.rewards.errors import RewardError

MEMORY_BYTES = 2 * 1024**3
START_SECONDS = 120.0
ENDING_SECONDS = 5.0        # between the end of a worker's output and its own
STARTS = 5                  # workers in a row that may be killed while they start
READY, TAKEN = "ready", "taken"
MATH = "rollbook.rewards.math:equivalent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a verifier has no answer.

    Example: Failure(code="timeout", detail="killed after 2.0 s")
    """

    code: FailureCode
    detail: str


Outcome = bool | Failure


def writable(text: str) -> str:
    """The text with halves of surrogate pairs written out, so that a record and a table can hold it."""
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(slots=True)
class Worker:
    """One child process in a session of its own. `job` is the index given to it, `taken` once it said that it works on it;
    `deadline` is on the monotonic clock."""

    process: subprocess.Popen[bytes]
    deadline: float
    job: int | None = None
    ready: bool = False
    taken: bool = False
    buffer: bytearray = field(default_factory=bytearray)

    def kill(self) -> None:
        """Ends the process with everything it started and takes its exit status."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass

    def send(self, document: object) -> None:
        """Writes one request line; a dead worker is noticed when its output is read."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(document).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass


class VerifierPool:
    """Calls a function in child processes, one call at a time in each, none beyond `seconds`; by default that compares answers.

    `work` names the function as module:function; it takes and returns what JSON can hold. Workers start at the first call and
    stay until `close`. Each is a fresh interpreter, not a fork: safe beside threads that compute. Batches from several threads
    wait for each other. After Ctrl-C the busy workers are dead and the pool can be used again; a worker whose parent dies reads
    the end of its input and ends, at the latest when its own timer of the same limit kills it.
    """

    def __init__(self, *, workers: int, seconds: float, memory_bytes: int = MEMORY_BYTES, work: str = MATH):
        self.size, self.seconds, self.memory_bytes, self.work = workers, seconds, memory_bytes, work
        self._workers: list[Worker] = []
        self._lock = threading.Lock()
        self._closed = False
        self._killed = 0            # workers in a row that were killed before they were ready
        self._finalizer = weakref.finalize(self, _kill_all, self._workers)

    def verify(self, pairs: Sequence[tuple[str, str]]) -> list[Outcome]:
        """For each (answer, reference) whether they are equal, or why that could not be found out, in order."""
        distinct = list(dict.fromkeys(pairs))
        found = self.run(distinct)
        outcomes = {pair: outcome if isinstance(outcome, Failure) else bool(outcome)
                    for pair, outcome in zip(distinct, found, strict=True)}
        return [outcomes[pair] for pair in pairs]

    def run(self, calls: Sequence[Sequence[Any]]) -> list[Any]:
        """What the function returns for each list of arguments, or the Failure, in order."""
        if not calls:
            return []
        with self._lock:
            if self._closed:
                raise RewardError("the verifier pool is closed", why="its worker processes were ended", fix="make a new judge")
            return self._run(calls)

    def close(self) -> None:
        """Ends every worker and waits for each."""
        with self._lock:
            self._closed = True
            _kill_all(self._workers)

    def _run(self, calls: Sequence[Sequence[Any]]) -> list[Any]:
        waiting, done = deque(range(len(calls))), dict[int, Any]()
        self._drop([worker for worker in self._workers if worker.process.poll() is not None])  # died while idle
        try:
            while len(done) < len(calls):
                while len(self._workers) < min(self.size, len(calls) - len(done)):
                    self._workers.append(self._start())
                for worker in self._workers:
                    if worker.ready and worker.job is None and waiting:
                        worker.job, worker.taken = waiting.popleft(), False
                        worker.deadline = time.monotonic() + self.seconds
                        worker.send(list(calls[worker.job]))
                self._wait(waiting, done)
        finally:
            self._drop([worker for worker in self._workers if worker.job is not None])
        return [done[index] for index in range(len(calls))]

    def _wait(self, waiting: deque[int], done: dict[int, Any]) -> None:
        """Takes what workers answered until one of them did or is over its limit."""
        watched = [worker for worker in self._workers if worker.job is not None or not worker.ready]
        with selectors.DefaultSelector() as selector:
            for worker in watched:
                assert worker.process.stdout is not None
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            left = min(worker.deadline for worker in watched) - time.monotonic()
            for key, _ in selector.select(max(left, 0.0)):
                self._read(key.data, waiting, done)
        now = time.monotonic()
        for worker in [worker for worker in watched if worker in self._workers and worker.deadline <= now]:
            if worker.job is None and worker.ready:
                continue
            self._drop([worker])
            if worker.job is None:
                raise RewardError("a verifier worker did not start", got=f"nothing within {START_SECONDS} s")
            done[worker.job] = Failure(code="timeout", detail=f"killed after {self.seconds} s")

    def _read(self, worker: Worker, waiting: deque[int], done: dict[int, Any]) -> None:
        assert worker.process.stdout is not None
        data = os.read(worker.process.stdout.fileno(), 65536)
        if not data:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(ENDING_SECONDS)         # how it ended by itself, before it is made sure that it has
            self._drop([worker])
            if not worker.ready:
                self._not_started(worker)
                return
            if worker.job is not None and not worker.taken:  # it was dying while idle: the comparison is not to blame
                waiting.appendleft(worker.job)
            elif worker.job is not None:
                done[worker.job] = Failure(code="crash", detail=f"the worker ended with status {worker.process.returncode}")
            return
        worker.buffer += data
        *lines, rest = worker.buffer.split(b"\n")
        worker.buffer = bytearray(rest)
        for line in lines:
            self._hear(worker, json.loads(line), done)

    def _not_started(self, worker: Worker) -> None:
        """A worker that somebody killed while it started is started again, a few times; one that ends by itself will again."""
        status = worker.process.returncode
        self._killed += 1
        if status < 0 and self._killed < STARTS:
            return
        raise RewardError("a verifier worker did not start", got=f"exit status {status}",
                          why=f"a signal ended {self._killed} in a row, as where memory runs out" if status < 0 else
                          "its first imports failed; its error output says which",
                          fix="free memory, or choose fewer workers" if status < 0 else
                          "reinstall what it imports; for mathematics math-verify and sympy")

    def _hear(self, worker: Worker, message: object, done: dict[int, Any]) -> None:
        """Takes one line of a worker: that it is ready, that it has the comparison, or the outcome."""
        if message == READY:
            worker.ready, self._killed = True, 0
        elif message == TAKEN:
            worker.taken = True
        else:
            assert worker.job is not None
            assert isinstance(message, dict)
            outcome = message["value"] if "value" in message else Failure(**message)
            done[worker.job], worker.job = outcome, None
            if isinstance(outcome, Failure) and outcome.code == "out_of_memory":
                self._drop([worker])

    def _start(self) -> Worker:
        command = [sys.executable, "-m", "rollbook.rewards.worker", str(self.seconds), str(self.memory_bytes), str(os.getpid()),
                   self.work]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True,
                                   env=environment)
        return Worker(process=process, deadline=time.monotonic() + START_SECONDS)

    def _drop(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.kill()
            if worker in self._workers:
                self._workers.remove(worker)


def _kill_all(workers: list[Worker]) -> None:
    while workers:
        workers.pop().kill()
