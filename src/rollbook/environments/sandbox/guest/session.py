"""The main program of a session: one command after the other, each with its own limits, and nothing left running between them.

It stands between the host and what the policy runs, in their namespaces: a persistent Python is a child of it, a shell command
another. Its answers are the sandbox's word about itself and decide nothing: a session's outcome is judged elsewhere.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import select
import signal
import stat
import sys
import time
from typing import Any, NoReturn

WORK = "work"                            # the folder of the commands, beside this program
PACKAGES = "/packages"
INTERRUPT_S = 1.0
TRIES = 2000
LARGEST_DESCRIPTOR = 256


class Driver:
    """Answers the host's commands. `python` is the persistent interpreter, None until code is run."""

    def __init__(self) -> None:
        self.root = os.path.join(os.getcwd(), WORK)
        os.makedirs(self.root, exist_ok=True)
        os.chdir(self.root)
        self.python: Python | None = None

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The reply to one command; what goes wrong is part of it."""
        try:
            match asked["op"]:
                case "python":
                    return self.run_python(asked)
                case "shell":
                    return self.run_shell(asked)
                case "read":
                    with plain(self.place(asked["path"]), os.O_RDONLY) as file:
                        return {"data": encoded(file.read(asked["bytes"]))}
                case "write":
                    for name, data in asked["files"].items():
                        path = self.place(name)
                        os.makedirs(os.path.dirname(path), exist_ok=True)
                        with plain(path, os.O_WRONLY | os.O_CREAT) as file:
                            file.truncate(0)
                            file.write(base64.b64decode(data))
                    return {}
                case "export":
                    return self.export(asked["bytes"], set(asked["without"]))
            return {"error": f"unknown command {asked['op']}"}
        except OSError as error:
            return {"error": f"{type(error).__name__}: {error.strerror}"}
        except (ValueError, MemoryError, RecursionError) as error:
            return {"error": f"{type(error).__name__}: {error}"[:300]}

    def place(self, name: str) -> str:
        if "\0" in name:
            raise ValueError("a path holds a NUL")
        return os.path.join(self.root, name)

    def run_shell(self, asked: dict[str, Any]) -> dict[str, Any]:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        child = os.fork()
        if child == 0:
            become_shell(writing, self.root, asked["command"])
        os.close(writing)
        try:
            output, ended, status = collect(reading, child, asked)
            if status is None:
                os.kill(child, signal.SIGKILL)
                status = os.waitpid(child, 0)[1]
        finally:
            os.close(reading)
            self.end_others()
        return {"output": encoded(output), "ended": ended, "status": os.waitstatus_to_exitcode(status)}

    def run_python(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self.python is None:
            self.python = Python()
        found = self.python.run(asked)
        if found["ended"] in ("died", "killed", "flood"):
            self.python = None
        self.end_others()
        return found

    def end_others(self) -> None:
        """Kills all that the last command left running; a session in which that is impossible ends."""
        kept = {1, os.getpid(), *([self.python.process] if self.python else [])}
        for _ in range(TRIES):
            reap(kept)
            others = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in kept and running(name)]
            if not others:
                return
            for process in others:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.001)
        os._exit(70)

    def export(self, limit: int, without: set[str]) -> dict[str, Any]:
        """All regular files below the working folder, by relative path; `left` names what is neither file nor folder."""
        files: dict[str, str] = {}
        left, size = [], 0
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(name for name in folders if name not in without)
            left += [name for name in folders if os.path.islink(os.path.join(folder, name))]
            for name in sorted(names):
                path = os.path.join(folder, name)
                if name in without:
                    continue
                if os.path.islink(path) or not os.path.isfile(path):
                    left.append(os.path.relpath(path, self.root))
                    continue
                with open(path, "rb") as file:
                    data = file.read(limit - size + 1)
                size += len(data)
                if size > limit:
                    return {"error": f"the files are larger than {limit} bytes"}
                files[os.path.relpath(path, self.root)] = encoded(data)
        return {"files": files, "left": left}


def plain(path: str, flags: int) -> Any:
    """A regular file; anything else is refused without waiting for it, as a pipe would make its reader wait."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return open(descriptor, "rb" if flags == os.O_RDONLY else "wb")


class Python:
    """A forked interpreter that keeps its variables. Between two runs it is stopped, with all its threads."""

    def __init__(self) -> None:
        command_in, self.commands = os.pipe2(os.O_CLOEXEC)
        self.done, done_out = os.pipe2(os.O_CLOEXEC)
        self.output, output_in = os.pipe2(os.O_CLOEXEC)
        self.process = os.fork()
        if self.process == 0:
            for descriptor in (self.commands, self.done, self.output):
                os.close(descriptor)
            become_python(command_in, done_out, output_in)
        for descriptor in (command_in, done_out, output_in):
            os.close(descriptor)

    def run(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            os.kill(self.process, signal.SIGCONT)
            send(self.commands, asked["code"].encode("utf-8", "surrogatepass"))
        except OSError:
            return self.close("died", b"")
        output = bytearray()
        deadline = time.monotonic() + asked["seconds"]
        for until, next_signal in ((deadline, signal.SIGINT), (deadline + INTERRUPT_S, signal.SIGKILL)):
            found = self.listen(output, until, asked["bytes"])
            if found == "time":
                os.kill(self.process, next_signal)
                continue
            if found == "done":
                said = os.read(self.done, 1)
                os.kill(self.process, signal.SIGSTOP)
                if not os.WIFSTOPPED(os.waitpid(self.process, os.WUNTRACED)[1]):
                    return self.close("died", output)
                ended = "interrupted" if next_signal == signal.SIGKILL else "done" if said == b"+" else "error"
                return {"output": encoded(output), "ended": ended}
            return self.close(found, output)
        return self.close("killed", output)

    def listen(self, output: bytearray, deadline: float, limit: int) -> str:
        """Takes output until the code is done or died, floods, or runs out of time: `done`, `died`, `flood` or `time`."""
        while True:
            ready, _, _ = select.select([self.output, self.done], [], [], max(deadline - time.monotonic(), 0.0))
            if not ready:
                return "time"
            chunk = os.read(self.output, 65536) if self.output in ready else None
            if chunk:
                output += chunk[:max(limit - len(output), 0)]
                if len(output) >= limit:
                    return "flood"
            elif self.done in ready:             # what was printed before has been read
                if chunk == b"" or not peeked(self.done):
                    return "died"
                return "done"
            elif chunk == b"":
                return "died"

    def close(self, ended: str, output: bytes | bytearray) -> dict[str, Any]:
        for descriptor in (self.commands, self.done, self.output):
            os.close(descriptor)
        try:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        return {"output": encoded(output), "ended": ended}


def peeked(descriptor: int) -> bool:
    """Whether there is a byte, rather than an end, in a pipe that can be read."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return any(events & select.POLLIN for _, events in poller.poll(0))


def collect(reading: int, child: int, asked: dict[str, Any]) -> tuple[bytes, str, int | None]:
    """Output of a child, how it ended (`done`, `time`, `flood`), and its wait status where it ended by itself."""
    output, deadline = bytearray(), time.monotonic() + asked["seconds"]
    handle = os.pidfd_open(child)
    try:
        while True:
            ready, _, _ = select.select([reading, handle], [], [], max(deadline - time.monotonic(), 0.0))
            if not ready:
                return bytes(output), "time", None
            if reading in ready and (chunk := os.read(reading, 65536)):
                output += chunk[:max(asked["bytes"] - len(output), 0)]
                if len(output) >= asked["bytes"]:
                    return bytes(output), "flood", None
            elif handle in ready:
                return bytes(output), "done", os.waitpid(child, 0)[1]
            else:                                # it closed its output and goes on
                select.select([handle], [], [], max(deadline - time.monotonic(), 0.0))
    finally:
        os.close(handle)


def running(process: str) -> bool:
    """False where a process has ended and only waits to be taken by its parent."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def reap(kept: set[int]) -> None:
    """Takes children that ended, except those that somebody else waits for."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in kept:
            return
        os.waitpid(found.si_pid, 0)


def become_shell(output: int, root: str, command: str) -> NoReturn:
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, output), (2, output)):
            os.dup2(source, target, inheritable=True)
        os.closerange(3, LARGEST_DESCRIPTOR)
        os.chdir(root)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, signal.SIG_DFL)
        os.environ["PYTHONPATH"] = PACKAGES
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        for name in ("python", "python3"):
            os.environ[f"BASH_FUNC_{name}%%"] = f'() {{ {sys.executable} "$@"; }}'
        os.execv("/bin/bash", ["bash", "-c", command])
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    os._exit(127)


def become_python(commands: int, done: int, output: int) -> NoReturn:
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, null), (1, output), (2, output)):
        os.dup2(source, target, inheritable=True)
    for descriptor in range(3, LARGEST_DESCRIPTOR):
        if descriptor not in (commands, done):
            try:
                os.close(descriptor)
            except OSError:
                pass
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path[:] = [os.getcwd(), *(entry for entry in sys.path if entry != os.path.dirname(os.getcwd())), PACKAGES]
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    number = 0
    while (code := receive(commands)) is not None:
        number += 1
        ok = run_cell(code.decode("utf-8", "surrogatepass"), f"<cell {number}>", names)
        os.write(done, b"+" if ok else b"!")
    os._exit(0)


def run_cell(code: str, name: str, names: dict[str, Any]) -> bool:
    """Runs a cell, prints the value of its last expression, or the traceback; True where it ended without an exception."""
    import ast
    import linecache
    import traceback
    for stream, descriptor in (("stdout", 1), ("stderr", 2)):
        setattr(sys, stream, open(descriptor, "w", encoding="utf-8", errors="backslashreplace", closefd=False))
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    ok = False
    try:
        body = ast.parse(code, name)
        last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
        exec(compile(body, name, "exec", dont_inherit=True), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), names)
            if value is not None:
                print(repr(value))
        ok = True
    except KeyboardInterrupt:
        print("interrupted: the time limit of one call")
    except SystemExit as leave:
        print(f"SystemExit: {leave.code}")
    except BaseException as error:
        own = error.__traceback__
        while own and own.tb_frame.f_code.co_filename != name:
            own = own.tb_next
        print("".join(traceback.format_exception(type(error), error, own)), end="")
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        ok = False
    return ok


def encoded(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode("ascii")


def send(descriptor: int, data: bytes) -> None:
    """One message: its length in eight bytes and itself."""
    view = memoryview(len(data).to_bytes(8, "big") + data)
    while view:
        view = view[os.write(descriptor, view):]


def receive(descriptor: int) -> bytes | None:
    """The next message; None when there will be none."""
    size = exactly(descriptor, 8)
    return None if size is None else exactly(descriptor, int.from_bytes(size, "big"))


def exactly(descriptor: int, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        chunk = os.read(descriptor, min(count - len(parts), 1 << 20))
        if not chunk:
            return None
        parts += chunk
    return bytes(parts)


def hide() -> None:
    """From here on no process of the same user may look into this one's memory or take over its descriptors."""
    import ctypes
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)          # PR_SET_DUMPABLE


def main() -> None:
    commands, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(null, target)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    hide()
    driver = Driver()
    while (asked := receive(commands)) is not None:
        send(answers, json.dumps(driver.answer(json.loads(asked))).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
