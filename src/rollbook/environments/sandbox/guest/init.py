"""Process 1 of a program's namespaces: lays out its files, gives up all rights, starts it, and reports how it ended.

It runs no code of the program. Within its namespace it cannot be signalled, traced or read, and when it ends the kernel kills
everything else in there, whatever groups or sessions were made.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import time
from typing import Any

from . import kernel
from .program import become

BOX, TMP = "/box", "/tmp"               # the working directory, whose parent cannot be written, and temporary files
INODES = 8192
DESCRIPTORS = 4
GRACE_S = 5.0                            # the outside kills at the limit; this is for when it cannot


def first_process(status: int, calls: bytes) -> None:
    """Never returns. Waits for the program's descriptors: its payload, standard input, output and error."""
    try:
        os.setsid()
        kernel.mount("proc", "/proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC, "subset=pid")
        with socket.socket(fileno=os.dup(status)) as channel:
            message, descriptors, _, _ = socket.recv_fds(channel, 16, DESCRIPTORS)
        if not message:
            os._exit(0)                  # nobody will ask any more
        payload, *streams = descriptors
        header, body = read_header(payload)
        lay_out(header, payload, body)
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0, "dumpable")
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        began = time.monotonic()
        tell(status, event="started")
        program = os.fork()
        if program == 0:
            become(header, streams, calls)
        for descriptor in (payload, *streams):
            os.close(descriptor)
        ended = wait_for(program, began + header["limits"]["wall_s"] + GRACE_S)
        wall = time.monotonic() - began
        end_everything()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        tell(status, event="ended", status=ended, wall_s=wall, cpu_s=used.ru_utime + used.ru_stime,
             peak_bytes=used.ru_maxrss * 1024)
    except BaseException as error:
        tell(status, event="error", detail=f"{type(error).__name__}: {error}"[:500])
    os._exit(0)


def tell(channel: int, /, **message: object) -> None:
    """One message to the outside."""
    os.write(channel, json.dumps(message).encode())


def read_header(payload: int) -> tuple[dict[str, Any], int]:
    """The request's header and where the contents of its files begin."""
    size = int.from_bytes(os.pread(payload, 8, 0), "big")
    parts, place = [], 8
    while place < 8 + size:
        parts.append(os.pread(payload, 8 + size - place, place))
        place += len(parts[-1])
    return json.loads(b"".join(parts)), place


def lay_out(header: dict[str, Any], payload: int, place: int) -> None:
    """One fresh disk seen at two places, and the program's files."""
    os.umask(0o022)
    kernel.mount("tmpfs", TMP, kernel.NOSUID | kernel.NODEV,
                 f"size={header['limits']['disk_bytes']},nr_inodes={INODES},mode=0755")
    for target in (BOX, TMP):            # the disk's own root is covered by the second
        os.mkdir(TMP + target)
        kernel.bind(TMP + target, target)
    os.chdir(BOX)
    for name, size in header["files"]:
        if folder := os.path.dirname(name):
            os.makedirs(folder, exist_ok=True)
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
        end = place + size
        while place < end:
            place += os.sendfile(file, payload, place, end - place)
        os.close(file)


def wait_for(program: int, deadline: float) -> int | None:
    """The program's wait status; None when the time is over. Orphans are taken on the way."""
    while True:
        while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if found[0] == program:
                return found[1]
        if signal.sigtimedwait({signal.SIGCHLD}, max(deadline - time.monotonic(), 0.0)) is None:
            return None


def end_everything() -> None:
    """Kills all others in the namespace and takes them, so that their time and memory are counted."""
    try:
        os.kill(-1, signal.SIGKILL)
        while True:
            os.waitpid(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        return
