"""A warm interpreter that never runs a program itself: for each request it forks a child that goes into namespaces of its own.

It sees no source, no input and no output: the host gives them to the child, so a fork of this process knows nothing of earlier
programs. What the child does afterwards cannot come back here: it has another process and mount namespace and no descriptor of
this one.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys

from . import kernel, seccomp
from .init import first_process

PRELOADED = ("abc", "bisect", "collections", "collections.abc", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions",
             "functools", "heapq", "io", "itertools", "json", "math", "operator", "queue", "random", "re", "string", "threading",
             "typing", "traceback", "atexit", "bisect", "cmath", "statistics")
NAMESPACES = (kernel.NEW_USER | kernel.NEW_MOUNTS | kernel.NEW_PIDS | kernel.NEW_NETWORK | kernel.NEW_IPC | kernel.NEW_UTS)


def main(control_descriptor: int, packages: list[str]) -> None:
    """Serves requests until the other end is closed."""
    for name in PRELOADED:
        importlib.import_module(name)
    sys.path = [entry for entry in sys.path if entry != "/sandbox"] + packages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)           # children are taken by the kernel
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    calls = seccomp.assembled(os.uname().machine)
    gc.collect()
    gc.freeze()
    control = socket.socket(fileno=control_descriptor)
    socket.send_fds(control, [b"ready"], [os.pidfd_open(os.getpid())])
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 16, 1)
        if not message:
            os._exit(0)
        try:
            child = os.fork()
        except OSError as error:
            tell_error(descriptors[0], error)
            child = -1
        if child == 0:
            control.close()
            isolate(descriptors[0], calls)
        os.close(descriptors[0])


def tell_error(status: int, error: BaseException) -> None:
    """Says on the status socket why a program could not be started."""
    os.write(status, json.dumps({"event": "error", "detail": f"{type(error).__name__}: {error}"[:500]}).encode())


def isolate(status: int, calls: bytes) -> None:
    """Makes the namespaces and their first process, hands out a descriptor of that process, and ends."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        user, group = os.getuid(), os.getgid()
        kernel.unshare(NAMESPACES)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
        first = os.fork()
        if first == 0:
            first_process(status, calls)
        with socket.socket(fileno=os.dup(status)) as channel:
            socket.send_fds(channel, [b'{"event": "pid"}'], [os.pidfd_open(first)])
    except BaseException as error:
        tell_error(status, error)
    os._exit(0)
