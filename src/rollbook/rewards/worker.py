"""A verifier worker process: one JSON list of arguments per line in, "taken" and one JSON outcome out, until its input ends.

The work is a function named on the command line as module:function; a function `warm` beside it makes the slow imports first.
Limits that hold even while a long computation keeps the interpreter busy: an address-space limit, and a kernel timer whose
default action ends the process a little after the parent would have killed it.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import resource
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, get_args

from rollbook.records.reward import FailureCode
from rollbook.rewards.pool import writable

GRACE_SECONDS = 1.0
POLL_SECONDS = 2.0
CODES = frozenset(get_args(FailureCode))


def main(seconds: float, memory_bytes: int, parent: int, work: str) -> None:
    """Answers requests until standard input ends or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # a library that prints must not corrupt the answers
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    function = _prepared(work)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    output.write(b'"ready"\n')
    while os.getppid() == parent:
        try:
            arguments = json.loads(requests.get(timeout=POLL_SECONDS))
        except queue.Empty:  # a forked sibling may hold the other end of the input open: look again who the parent is
            continue
        signal.setitimer(signal.ITIMER_REAL, seconds + GRACE_SECONDS)
        output.write(b'"taken"\n')  # from here on a death is this comparison's doing
        outcome = outcome_of(function, arguments, memory_bytes)
        signal.setitimer(signal.ITIMER_REAL, 0)
        output.write(json.dumps(outcome).encode() + b"\n")


def outcome_of(function: Callable[..., Any], arguments: Sequence[Any], memory_bytes: int) -> dict[str, Any]:
    """{"value": ..} or {"code": .., "detail": ..}: an exception whose `code` is one of ours says which failure it is, any other
    is a crash."""
    try:
        value = function(*arguments)
        json.dumps(value)
        return {"value": value}
    except MemoryError:
        return {"code": "out_of_memory", "detail": f"more than {memory_bytes} bytes"}
    except Exception as error:  # whatever the third-party parsers raise becomes a typed outcome
        code = getattr(error, "code", None)
        if isinstance(code, str) and code in CODES:
            return {"code": code, "detail": _told(error)}
        return {"code": "crash", "detail": f"{type(error).__name__}: {_told(error)}"[:200]}


def _told(error: Exception) -> str:
    """What an exception says, as text that can be written down."""
    try:
        return writable(str(error)[:200])
    except Exception as other:
        return f"its text cannot be had: {type(other).__name__}"


def _prepared(work: str) -> Callable[..., Any]:
    """The function, imported and warmed, in the condition of the process that started this one."""
    module_name, _, name = work.partition(":")
    module = importlib.import_module(module_name)
    function: Callable[..., Any] = getattr(module, name)
    if hasattr(module, "warm"):
        module.warm()
    from rollbook.rewards.conditions import apply_inherited

    apply_inherited()
    return function


def _listen(requests: queue.SimpleQueue[bytes]) -> None:
    """Hands over request lines; the end of the input means that the parent is gone, and ends the process at once."""
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
