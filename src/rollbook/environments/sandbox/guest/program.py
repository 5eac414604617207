"""The process that becomes the program. From `run_python` or exec on, nothing it says or does is trusted."""

from __future__ import annotations

import builtins
import fcntl
import io
import os
import resource
import signal
import sys
import types
from typing import Any, NoReturn

from . import kernel

SPACE_BYTES = 2**30                      # address space beyond the memory limit: reserved is not used, but it is bounded
STACK_BYTES = 64 * 2**20
OPEN_FILES = 128
FIRST_FREE = 200                         # descriptors are moved out of the way of the low numbers first


def become(header: dict[str, Any], streams: list[int], calls: bytes) -> NoReturn:
    """Connects the streams to descriptors 0, 1 and 2, takes on the limits, and runs the program."""
    try:
        os.setsid()
        moved = [fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE) for stream in streams]
        for target, stream in enumerate(moved):
            os.dup2(stream, target, inheritable=True)
        os.closerange(len(streams), 2**20)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1, "dumpable")
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
        os.environ.clear()
        os.environ.update(header["environment"])
        limit(header["limits"])
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        kernel.restrict_calls(calls)
        argv = header["argv"]
        if header["source"] is not None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            run_python(header["source"], argv)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, signal.SIG_DFL)
        os.execvp(argv[0], argv)
    except BaseException as error:
        os.write(2, f"sandbox: {type(error).__name__}: {error}\n".encode("utf-8", "backslashreplace"))
    os._exit(127)


def limit(limits: dict[str, Any]) -> None:
    """The kernel's own limits for this process and each that it starts."""
    cpu = int(limits["cpu_s"]) + 1
    for name, soft, hard in (
            (resource.RLIMIT_AS, limits["memory_bytes"] + SPACE_BYTES, limits["memory_bytes"] + SPACE_BYTES),
            (resource.RLIMIT_CPU, cpu, cpu + 1),
            (resource.RLIMIT_FSIZE, limits["file_bytes"], limits["file_bytes"]),
            (resource.RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES),
            (resource.RLIMIT_STACK, STACK_BYTES, STACK_BYTES),
            (resource.RLIMIT_CORE, 0, 0),
            (resource.RLIMIT_MEMLOCK, 0, 0),
            (resource.RLIMIT_MSGQUEUE, 0, 0),
            (resource.RLIMIT_NPROC, limits["processes"] + 1, limits["processes"] + 1)):      # process 1 counts
        resource.setrlimit(name, (soft, hard))


def run_python(name: str, arguments: list[str]) -> NoReturn:
    """Runs a file of the working directory as the main module and leaves as the interpreter would."""
    path = os.path.join(os.getcwd(), name)
    sys.argv = [name, *arguments]
    sys.path.insert(0, os.getcwd())
    for module in [module for module in sys.modules if module == "guest" or module.startswith("guest.")]:
        del sys.modules[module]
    sys.stdin = sys.__stdin__ = _text(0, "r")                        # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _text(1, "w")                      # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text(2, "w", errors="backslashreplace", line_buffering=True)      # type: ignore[misc]
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=builtins)
    sys.modules["__main__"] = main
    status = 0
    try:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, main.__dict__)
    except SystemExit as leave:
        status = _exit_status(leave)
    except BaseException as error:
        own = error.__traceback__.tb_next if error.__traceback__ else None       # without the frame of this function
        sys.excepthook(type(error), error.with_traceback(own), own)
        status = 1
    _leave(status)


def _text(descriptor: int, mode: str, errors: str = "strict", line_buffering: bool = False) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, mode, closefd=False)
    buffer = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, line_buffering=line_buffering)


def _exit_status(leave: SystemExit) -> int:
    if leave.code is None:
        return 0
    if isinstance(leave.code, int):
        return leave.code & 0xFF
    sys.stderr.write(f"{leave.code}\n")
    return 1


def _leave(status: int) -> NoReturn:
    """What the interpreter does at its end, without taking its modules apart."""
    import atexit
    import threading
    try:
        threading._shutdown()                                        # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stderr.flush()
        sys.stdout.flush()
    except BaseException:
        status = status or 120
    os._exit(status)
