"""What a tree of processes uses, read from outside it: the program has no part in these numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from rollbook.records.sandbox import Limit, Limits

TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
FASTEST_BYTES_PER_S = 4e9                # how fast memory is filled: the next look comes before the limit could be reached
SHORTEST_S, LONGEST_S = 0.01, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Memory and processor time of a process with all its descendants, ended ones included in the time.

    Example: Usage(memory_bytes=14_000_000, cpu_s=0.02)
    """

    memory_bytes: int
    cpu_s: float


def tree(root: int) -> Iterator[int]:
    """The process and its descendants, as far as they are there."""
    waiting = [root]
    while waiting:
        process = waiting.pop()
        yield process
        try:
            threads = os.listdir(f"/proc/{process}/task")
        except OSError:
            continue
        for thread in threads:
            if text := _read(f"/proc/{process}/task/{thread}/children"):
                waiting += map(int, text.split())


def usage(root: int, enough_bytes: int) -> Usage:
    """Resident memory, pages shared by several processes counted once where the plain sum is above `enough_bytes`."""
    processes, resident, ticks = list(tree(root)), 0, 0
    for process in processes:
        if text := _read(f"/proc/{process}/statm"):
            resident += int(text.split()[1]) * PAGE
        if text := _read(f"/proc/{process}/stat"):
            ticks += sum(map(int, text.rpartition(b")")[2].split()[11:15]))
    if resident > enough_bytes:
        resident = sum(map(_proportional, processes))
    return Usage(memory_bytes=resident, cpu_s=ticks / TICKS)


class Watcher:
    """Looks at a tree from time to time, often enough for its limits; remembers the most it saw."""

    def __init__(self, root: int, limits: Limits):
        self.root, self.limits = root, limits
        self.memory_bytes, self.cpu_s = 0, 0.0

    def __call__(self) -> tuple[Limit | None, float]:
        """The limit that is exceeded, if any, and seconds until the next look."""
        now = usage(self.root, self.limits.memory_bytes)
        self.memory_bytes, self.cpu_s = max(self.memory_bytes, now.memory_bytes), max(self.cpu_s, now.cpu_s)
        if now.memory_bytes > self.limits.memory_bytes:
            return "memory", 0.0
        if now.cpu_s > self.limits.cpu_s:
            return "cpu", 0.0
        until_full = (self.limits.memory_bytes - now.memory_bytes) / FASTEST_BYTES_PER_S
        until_spent = (self.limits.cpu_s - now.cpu_s) / (os.cpu_count() or 1)
        return None, min(max(min(until_full, until_spent), SHORTEST_S), LONGEST_S)


def _proportional(process: int) -> int:
    """Bytes of a process, a page of n processes counted 1/n; its resident bytes where the kernel does not tell."""
    if text := _read(f"/proc/{process}/smaps_rollup"):
        for line in text.splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    if text := _read(f"/proc/{process}/statm"):
        return int(text.split()[1]) * PAGE
    return 0


def _read(path: str) -> bytes:
    """A file of /proc; nothing where the process is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return b""
