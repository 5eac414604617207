"""The isolated backend: bubblewrap around a warm interpreter, and inside it fresh namespaces, disk and limits per program."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollbook.environments.sandbox import launch
from rollbook.environments.sandbox.payload import packed, sealed
from rollbook.environments.sandbox.session import SESSION, Session, driver
from rollbook.environments.sandbox.supervise import Stream, attend, ending, pipe
from rollbook.environments.sandbox.usage import Watcher
from rollbook.records.codec import canonical, digest
from rollbook.records.sandbox import Ending, Exceeded, Execution, Limit, Limits, Program, SandboxError, SandboxStamp, Signalled

NAME = "bubblewrap"
MESSAGE_BYTES = 4096
ATTEMPTS = 2
TOGETHER_S = 2.0                         # when all of a sandbox is ended, its last process ends this much later at most


class BubblewrapSandbox:
    """Runs programs from any thread, at most `parallel` at a time; others wait for their turn, which no limit counts.

    The interpreter starts with the first program and stays until `close`; namespaces for the next `parallel` programs are made in
    advance, each used once. `readonly` maps places inside to folders outside that
    the sandbox's user can read; `packages` are places among them to import from.
    """

    def __init__(self, *, parallel: int | None = None, python: Path | None = None, readonly: Mapping[str, Path] | None = None,
                 packages: Sequence[str] = ()):
        bubblewrap = launch.find_bubblewrap()
        self._interpreter = launch.find_interpreter(python)
        self._packages = list(packages)
        self._command = launch.command(bubblewrap, self._interpreter, readonly or {})
        self.parallel = parallel or len(os.sched_getaffinity(0))
        self.stamp = SandboxStamp(name=NAME, strength="isolated", unenforced=(), digest=self._digest(bubblewrap))
        self._turns = threading.BoundedSemaphore(self.parallel)
        self._lock = threading.Lock()
        self._zygotes: list[launch.Zygote] = []              # one, or none before the first program
        self._cells: deque[_Cell] = deque()                  # made in advance
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._closed = False
        self._finalizer = weakref.finalize(self, _end_all, self._zygotes, self._cells)

    def run(self, program: Program) -> Execution:
        """What came of the program; SandboxError when it could not be started or could not be ended."""
        with self._turns:
            for _ in range(ATTEMPTS):
                with self._cell() as cell:
                    if cell.start(program):
                        self._make_ready()                   # while the program runs
                        return cell.finish(program.limits, self.stamp)
                self._forget(cell.zygote)
        raise SandboxError("the sandbox's interpreter ended twice before it started a program", got=f"{ATTEMPTS} attempts",
                           why="it runs no program itself, so the machine ended it: often for lack of memory")

    def open(self, files: Mapping[str, bytes] | None = None, *, limits: Limits = SESSION,
             environment: Mapping[str, str] | None = None) -> Session:
        """A session with a disk and a Python of its own. Any number can be open; at most `parallel` commands run at a time."""
        program = driver(files or {}, limits, environment or {})
        for _ in range(ATTEMPTS):
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            cell = self._cell()
            try:
                with there:
                    if cell.start(program, there.fileno()):
                        session = Session(cell, limits, self._turns, self._sessions.discard, here)
                        self._sessions.add(session)
                        return session
            except BaseException:
                cell.close()
                here.close()
                raise
            cell.close()
            here.close()
            self._forget(cell.zygote)
        raise SandboxError("the sandbox's interpreter ended twice before it started a session", got=f"{ATTEMPTS} attempts",
                           why="it runs no program itself, so the machine ended it: often for lack of memory")

    def close(self) -> None:
        """Ends everything that runs in the sandbox and waits for it."""
        for session in list(self._sessions):
            session.close()
        with self._lock:
            self._closed = True
            _end_all(self._zygotes, self._cells)

    def _cell(self) -> _Cell:
        with self._lock:
            if self._closed:
                raise SandboxError("the sandbox is closed", why="its processes were ended", fix="make a new one")
            if not self._zygotes:
                self._zygotes.append(launch.start(self._command, self._interpreter, self._packages))
            return self._cells.popleft() if self._cells else _Cell(self._zygotes[0])

    def _make_ready(self) -> None:
        with self._lock:
            while self._zygotes and len(self._cells) < self.parallel:
                self._cells.append(_Cell(self._zygotes[0]))

    def _forget(self, zygote: launch.Zygote) -> None:
        with self._lock:
            if zygote in self._zygotes:
                _end_all(self._zygotes, self._cells)

    def _digest(self, bubblewrap: str) -> str:
        version = subprocess.run([bubblewrap, "--version"], capture_output=True, text=True, check=False).stdout.strip()
        return digest(canonical({
            "bubblewrap": version, "interpreter": dataclasses.asdict(self._interpreter), "command": self._command[1:],
            "packages": self._packages, "machine": os.uname().machine,
            "data": {target: digest(data) for target, data in launch.inner_data().items()}}))


class _Cell:
    """Namespaces for one program, and the descriptors of its execution: closed at the end, whatever happened."""

    def __init__(self, zygote: launch.Zygote):
        self.zygote = zygote
        self.streams: list[Stream] = []
        self._open: list[int] = []
        self._first: int | None = None                       # a descriptor of the namespaces' process 1
        self._report: dict[str, Any] | None = None
        self._status, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there, contextlib.suppress(OSError):            # an interpreter that has ended is noticed at the start
            socket.send_fds(zygote.control, [b"cell"], [there.fileno()])

    def __enter__(self) -> _Cell:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends what runs in it."""
        self._kill()
        while self._open:
            os.close(self._open.pop())
        self._status.close()

    def process(self) -> int:
        """The number of process 1 of the namespaces."""
        assert self._first is not None
        return _process_of(self._first)

    def status(self) -> int:
        """A descriptor that can be read when the program has ended."""
        return self._status.fileno()

    def start(self, program: Program, stdin: int | None = None) -> bool:
        """True once the program runs; False if the cell's interpreter ended before. `stdin` replaces the program's own input."""
        self._oom_kills = oom_kills()
        given: list[int] = []                                # payload, standard input, output and error
        try:
            given += [sealed(packed(program), "payload"), sealed(program.stdin, "stdin") if stdin is None else os.dup(stdin)]
            for _ in range(2):
                stream, writing = pipe(program.limits.output_bytes)
                self.streams.append(stream)
                self._open.append(stream.descriptor)
                given.append(writing)
            socket.send_fds(self._status, [b"program"], given)
        except ConnectionError:
            while self._hear() is not None:                  # it may have said why
                pass
            return False
        finally:
            for descriptor in given:
                os.close(descriptor)
        deadline, started = time.monotonic() + launch.START_S, False
        while not started or self._first is None:
            if not launch.wait_readable(self._status.fileno(), max(deadline - time.monotonic(), 0.0)):
                raise SandboxError("a program was not started", got=f"nothing within {launch.START_S} s")
            message = self._hear()
            if message is None:
                return False
            started = started or message["event"] == "started"
        return True

    def finish(self, limits: Limits, stamp: SandboxStamp) -> Execution:
        """Watches the program to its end and says how it ended."""
        assert self._first is not None
        began = time.monotonic()
        watcher = Watcher(_process_of(self._first), limits)
        exceeded = None
        if self._report is None:                             # else it was over before the news of its start was read
            exceeded = attend(self.streams, done=self._status.fileno(), deadline=began + limits.wall_s, look=watcher)
        if exceeded is not None:
            watcher()                                        # the last look: what was killed reports nothing itself
            self._kill()
        if not launch.wait_readable(self._first, launch.END_S):
            self._kill()
            raise SandboxError("a program could not be ended", got=f"processes left {launch.END_S} s after they were killed")
        wall = time.monotonic() - began
        while self._report is None and launch.wait_readable(self._status.fileno(), 0.0) and self._hear() is not None:
            pass
        for stream in self.streams:
            stream.read()                                    # all writers are dead: what is there is all there is
        report = self._report or {"wall_s": wall, "cpu_s": 0.0, "peak_bytes": 0}
        stdout, stderr = (stream.captured() for stream in self.streams)
        return Execution(ending=self._ending(exceeded, limits), stdout=stdout, stderr=stderr, wall_s=report["wall_s"],
                         cpu_s=max(report["cpu_s"], watcher.cpu_s), peak_bytes=max(report["peak_bytes"], watcher.memory_bytes),
                         sandbox=stamp)

    def _hear(self) -> dict[str, Any] | None:
        """The next message from inside; None when there will be none."""
        try:
            data, handles, _, _ = socket.recv_fds(self._status, MESSAGE_BYTES, 1)
        except ConnectionResetError:                         # it ended with something of ours unread
            return None
        for handle in handles:
            self._first = handle
            self._open.append(handle)
        if not data:
            return None
        message: dict[str, Any] = json.loads(data)
        if message["event"] == "error":
            raise SandboxError("a program could not be started in its namespaces", got=message["detail"])
        if message["event"] == "ended":
            self._report = message
        return message

    def _ending(self, exceeded: Limit | None, limits: Limits) -> Ending:
        if exceeded is None and any(stream.over for stream in self.streams):
            exceeded = "output"
        if exceeded is not None:
            return Exceeded(limit=exceeded)
        if self._report is None and launch.wait_readable(self.zygote.handle, TOGETHER_S):
            raise SandboxError("the sandbox ended while a program ran in it", why="it was closed, or the machine ended it")
        killed = Signalled(signal=signal.SIGKILL)            # without a report process 1 itself was
        found = killed if self._report is None else ending(self._report, limits)
        if found == killed and oom_kills() != self._oom_kills:
            raise SandboxError("the machine ran out of memory while a program ran", fix="run fewer programs at a time",
                               why="the kernel ended processes for it, perhaps this one, which was within its limit")
        return found

    def _kill(self) -> None:
        if self._first is not None:
            try:
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            except (ProcessLookupError, OSError):
                pass


def oom_kills() -> int:
    """How many processes the kernel has ended for lack of memory since the machine started."""
    with open("/proc/vmstat", encoding="ascii") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)


def _process_of(handle: int) -> int:
    """The process number behind a descriptor of a process; -1 when it is gone."""
    with open(f"/proc/self/fdinfo/{handle}", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pid:"))


def _end_all(zygotes: list[launch.Zygote], cells: deque[_Cell]) -> None:
    while cells:
        cells.popleft().close()
    while zygotes:
        zygotes.pop().close()
