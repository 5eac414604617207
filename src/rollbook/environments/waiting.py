"""Blocking work beside an event loop: in threads of a bounded pool, abandoned after its time, text made of bytes."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from rollbook.records import ReplyError

T = TypeVar("T")
P = ParamSpec("P")
THREADS = 4 + 4 * (os.cpu_count() or 1)


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="environment")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns or raises; it runs in a thread shared by all episodes.

    Limit: a thread cannot be stopped. Work that may hang needs a limit of its own, such as a sandbox has.
    """
    call = functools.partial(work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_pool(), call)


def as_text(data: bytes | str, limit: int) -> tuple[str, ReplyError | None]:
    """A tool's output as text for the policy, and what was wrong with it: no UTF-8 (shown escaped), or beyond `limit` characters.

    What is too long keeps its first and last half, with a line between them that says how much is missing.
    """
    error: ReplyError | None = None
    if isinstance(data, bytes):
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text, error = data.decode("utf-8", "backslashreplace"), "not_text"
    else:
        text = data.encode("utf-8", "backslashreplace").decode("utf-8")
        error = None if text == data else "not_text"
    if len(text) <= limit:
        return text, error
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[len(text) - half:]}", "flood"
