"""A lasting place in the isolated sandbox: a disk, a Python that keeps its variables, shell commands; one command at a time.

Between two commands nothing in it runs: what a command leaves behind is killed, the Python is stopped.
"""

from __future__ import annotations

import base64
import json
import socket
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollbook.environments.sandbox.supervise import attend
from rollbook.environments.sandbox.usage import Watcher
from rollbook.records.errors import RollbookError
from rollbook.records.sandbox import Limit, Limits, Program

if TYPE_CHECKING:
    from rollbook.environments.sandbox.bubblewrap import _Cell

DRIVER = Path(__file__).parent / "guest" / "session.py"
SLACK_S = 20.0                           # what the driver may take beyond a command's own time: a busy machine
START_S = 120.0                          # and for its own start
# Magistral (2506.10910) gives a program 300 MB; a session lasts longer than a test and holds a repository.
SESSION = Limits(wall_s=4 * 3600.0, cpu_s=900.0, memory_bytes=300_000_000, processes=48, file_bytes=32 * 2**20,
                 disk_bytes=128 * 2**20, output_bytes=64 * 2**20)
Ended = Literal["done", "error", "interrupted", "killed", "died", "flood", "time"]


class SessionEnded(RollbookError):
    """The session is over by its program's doing; `limit` is what it exceeded, None where it ended itself."""

    def __init__(self, what: str, *, limit: Limit | None):
        super().__init__(what)
        self.limit = limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one command printed and how it ended; `status` is a shell command's exit status, negative for a signal.

    Example: Ran(output=b"7\\n", ended="done", status=0)
    """

    output: bytes
    ended: Ended
    status: int | None = None


class Session:
    """Commands for one session; not for several threads at a time. Made by `BubblewrapSandbox.open`."""

    def __init__(self, cell: _Cell, limits: Limits, turn: AbstractContextManager[Any], forget: Callable[[Session], None],
                 commands: socket.socket):
        self._cell, self._limits, self._turn, self._commands = cell, limits, turn, commands
        self._watcher: Watcher | None = None
        self._forget = forget
        self._over: SessionEnded | None = None
        self._finalizer = weakref.finalize(self, _end, cell, commands)

    def python(self, code: str, *, seconds: float, output_bytes: int) -> Ran:
        """Runs code in the persistent Python; the value of a last expression is printed."""
        found = self._ask({"op": "python", "code": code, "seconds": seconds, "bytes": output_bytes}, seconds)
        if "error" in found:
            return Ran(output=f"{found['error']}\n".encode(), ended="died")
        return Ran(output=base64.b64decode(found["output"]), ended=found["ended"])

    def shell(self, command: str, *, seconds: float, output_bytes: int) -> Ran:
        """Runs a command with bash in the working folder; its processes end with it."""
        if "\0" in command:
            return Ran(output=b"a command cannot hold a NUL\n", ended="done", status=2)
        found = self._ask({"op": "shell", "command": command, "seconds": seconds, "bytes": output_bytes}, seconds)
        if "error" in found:
            return Ran(output=f"{found['error']}\n".encode(), ended="done", status=126)
        return Ran(output=base64.b64decode(found["output"]), ended=found["ended"], status=found["status"])

    def read(self, path: str, *, limit: int) -> bytes | str:
        """The bytes of a file, at most `limit`; a text where it cannot be read."""
        found = self._ask({"op": "read", "path": path, "bytes": limit}, SLACK_S)
        return str(found["error"]) if "error" in found else base64.b64decode(found["data"])

    def write(self, files: Mapping[str, bytes]) -> str | None:
        """Writes files, with their folders; a text where one cannot be written."""
        data = {name: base64.b64encode(content).decode("ascii") for name, content in files.items()}
        return self._ask({"op": "write", "files": data}, SLACK_S).get("error")

    def export(self, *, limit: int, without: Iterable[str] = ()) -> dict[str, bytes] | str:
        """All regular files of the working folder by relative path; a text where they are more than `limit` bytes."""
        found = self._ask({"op": "export", "bytes": limit, "without": sorted(without)}, SLACK_S)
        if "error" in found:
            return str(found["error"])
        return {name: base64.b64decode(data) for name, data in found["files"].items()}

    @property
    def over(self) -> SessionEnded | None:
        """Why no command is answered any more."""
        return self._over

    def close(self) -> None:
        """Ends all of it."""
        self._over = self._over or SessionEnded("the session was closed", limit=None)
        self._finalizer()
        self._forget(self)

    def _ask(self, command: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The driver's answer. Raises SessionEnded, then and ever after, when there is none."""
        if self._over is not None:
            raise self._over
        with self._turn:
            started = self._watcher is not None
            if not started:
                self._watcher = Watcher(self._cell.process(), self._limits)
            deadline = time.monotonic() + seconds + SLACK_S + (0.0 if started else START_S)
            try:
                data = json.dumps(command).encode()
                self._commands.sendall(len(data).to_bytes(8, "big") + data)
                return self._answer(deadline)
            except (OSError, ValueError, KeyError) as error:
                raise self._end(f"it said what its driver does not say: {type(error).__name__}", None) from error

    def _answer(self, deadline: float) -> dict[str, Any]:
        answers = self._cell.streams[0]
        while True:
            if answers.over:
                raise self._end("more output than it may have", "output")
            size = int.from_bytes(answers.data[:8], "big") if len(answers.data) >= 8 else None
            if size is not None and len(answers.data) >= 8 + size:
                found = json.loads(answers.data[8:8 + size])
                answers.data.clear()
                if not isinstance(found, dict):
                    raise ValueError("no answer")
                return found
            before, watcher = len(answers.data), self._watcher
            assert watcher is not None
            exceeded = attend([answers], done=self._cell.status(), deadline=deadline, look=watcher,
                              enough=lambda before=before: len(answers.data) > before)         # type: ignore[misc]
            if exceeded is not None:
                raise self._end(f"it went beyond its limit of {exceeded}", exceeded)
            if len(answers.data) == before:
                raise self._end("its driver is gone", None)

    def _end(self, why: str, limit: Limit | None) -> SessionEnded:
        self._over = SessionEnded(f"the session ended: {why}", limit=limit)
        self._finalizer()
        self._forget(self)
        return self._over


def driver(files: Mapping[str, bytes], limits: Limits, environment: Mapping[str, str]) -> Program:
    """The program of a session whose working folder starts with these files."""
    return Program(source=DRIVER.read_bytes(), files={f"work/{name}": data for name, data in files.items()}, limits=limits,
                   environment=environment)


def _end(cell: _Cell, commands: socket.socket) -> None:
    commands.close()
    cell.close()
