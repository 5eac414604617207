"""A program in an interpreter of its own that answers JSON lines: started when first asked, ended with this process."""

from __future__ import annotations

import atexit
import collections
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as Late
from pathlib import Path
from typing import Any

from rollbook.records import EnvironmentFault

LARGEST = 32 * 2**20        # bytes of an answer
CONDITION = "ROLLBOOK_CONDITION"                # under which a proof plays, which must reach what it proves
KEPT = ("PATH", "LANG", "LC_ALL", "HOME", CONDITION, "PIP_INDEX_URL", "PIP_NO_INDEX", "PYTHONNOUSERSITE")
# of this process's variables no others: no keys, no tokens
PLACE = "/dev/shm"          # what an isolated program may write to, and where it begins
LOOK_S = 0.5                # how often a process looks whether the one that started it is there
ROOM = 256 * 2**20          # bytes that it may write there
SAID = 40                   # lines of its standard error that are kept for a message


class NotGiven(EnvironmentFault):
    """What was asked for is not to be had of this program: it said why."""


class Gone(EnvironmentFault):
    """The program ended, by itself or because something else held it up: what was asked can be asked again."""


class Elsewhere:
    """One running program. `ask` may be called by many threads at a time."""

    def __init__(self, command: tuple[str, ...], variables: Mapping[str, str], *, isolated: bool):
        given = {name: os.environ[name] for name in KEPT if name in os.environ} | dict(variables)
        words = [*(_box() if isolated else ()), *command]
        try:
            self.process = subprocess.Popen(words, env=given | ({"TMPDIR": PLACE} if isolated else {}), stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        except (OSError, ValueError) as error:
            raise EnvironmentFault("the program that holds the environment cannot be started", code="missing_tool",
                                   got=f"{command[0]}: {error}",
                                   fix="name a Python in which its packages are installed") from error
        self.owner, self.command = os.getpid(), command
        self._asked: dict[int, Future[dict[str, Any]]] = {}
        self._numbers, self._lock, self._over = itertools.count(), threading.Lock(), False
        self._said: collections.deque[bytes] = collections.deque(maxlen=SAID)
        for work in (self._read, self._listen):
            threading.Thread(target=work, name="elsewhere", daemon=True).start()
        atexit.register(self.close)

    @property
    def usable(self) -> bool:
        """Whether it can be asked: it runs, and belongs to this process and to no process that this one was forked from."""
        return self.owner == os.getpid() and not self._over and self.process.poll() is None

    def ask(self, op: str, seconds: float, **more: Any) -> Any:
        """What it answers. NotGiven where it refuses, Gone where it ended, EnvironmentFault where it fails or is late."""
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            number = next(self._numbers)
            self._asked[number] = future
        try:
            line = json.dumps({"n": number, "op": op, **more}).encode() + b"\n"
            with self._lock:
                if self._over:
                    raise BrokenPipeError
                assert self.process.stdin is not None
                self.process.stdin.write(line)
                self.process.stdin.flush()
            answer = future.result(seconds)
        except Late:
            self.close()        # whatever holds it up would hold up what is asked next
            raise EnvironmentFault("the program that holds the environment gave no answer", code="timeout",
                                   got=f"{op}: nothing within {seconds:g} s", why="it is ended, and started again when next asked"
                                   ) from None
        except OSError:
            raise self._gone(op) from None
        finally:
            self._asked.pop(number, None)
        if "refused" in answer:
            raise NotGiven("the environment is not to be had", code="build", got=str(answer["refused"]))
        if "found" not in answer:
            raise EnvironmentFault("the program that holds the environment failed", code="act",
                                   got=str(answer.get("failed"))[:400])
        return answer["found"]

    def close(self) -> None:
        """Ends it; in a fork of the process that made it nothing is ended."""
        if self.owner != os.getpid():
            return
        self._over = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        atexit.unregister(self.close)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError, TypeError, KeyError, OSError, InvalidStateError):
            while line := self.process.stdout.readline(LARGEST):
                answer = json.loads(line)
                waiting = self._asked.get(answer["n"])
                if waiting is not None:
                    waiting.set_result(answer)
        self._over = True
        for future in list(self._asked.values()):
            with contextlib.suppress(InvalidStateError):
                future.set_exception(BrokenPipeError())

    def _listen(self) -> None:
        assert self.process.stderr is not None
        with contextlib.suppress(ValueError, OSError):
            while line := self.process.stderr.readline(4096):
                self._said.append(line)

    def _gone(self, op: str) -> Gone:
        self.close()
        said = b"".join(self._said).decode("utf-8", "replace").strip()
        return Gone("the program that holds the environment is gone", code="act", got=said[-400:] or f"at {op}",
                    fix=f"run by hand: {' '.join(self.command)[:300]}")


_running: dict[object, Elsewhere] = {}
_guard = threading.Lock()


def running(command: tuple[str, ...], variables: Mapping[str, str], *, isolated: bool) -> Elsewhere:
    """The program of this command, shared by all that ask for it in this process; a new one where it ended."""
    key = (os.getpid(), command, tuple(sorted(variables.items())), isolated)
    with _guard:
        found = _running.get(key)
        if found is None or not found.usable:
            found = _running[key] = Elsewhere(command, variables, isolated=isolated)
        return found


def _box() -> list[str]:
    """bubblewrap's words: everything to read, nothing to write but a folder in memory, no network, no other processes, and no
    rights to undo that, also where root starts it. It has a session already, so that what ends it ends all that is inside.
    """
    path = shutil.which("bwrap")
    if path is None:
        raise EnvironmentFault("bubblewrap is not installed", code="missing_tool",
                               why="the program that holds the environment runs without network and may write nowhere",
                               fix="apt-get install bubblewrap, or let the program do as it likes with isolated: false")
    return [path, "--unshare-user", "--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--size",
            str(ROOM), "--tmpfs", PLACE, "--unshare-net", "--unshare-pid", "--unshare-ipc", "--chdir", PLACE]


def end_with(parent: int) -> None:
    """Ends this process soon after the one that it was started by, however that ends, and with it what hangs on its pipes."""
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os._exit(1)
    threading.Thread(target=watch, name="parent", daemon=True).start()


def interpreter(path: str) -> str:
    """The interpreter's path as it is to be started; EnvironmentFault where there is none."""
    found = shutil.which(os.path.expanduser(path))
    if found is None:
        raise EnvironmentFault("there is no such interpreter", code="missing_tool", got=path,
                               fix="python -m venv FOLDER, install the packages there, and name FOLDER/bin/python")
    return os.path.abspath(found) if Path(found).parent != Path() else found
