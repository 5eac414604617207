"""A verifier worker process: one JSON pair per line in, "taken" and one JSON outcome out, until its input ends.

Limits that hold even while a long computation keeps the interpreter busy: an address-space limit, and a kernel timer whose
default action ends the process a little after the parent would have killed it.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import sys
import threading

GRACE_SECONDS = 1.0
POLL_SECONDS = 2.0


def main(seconds: float, memory_bytes: int, parent: int) -> None:
    """Answers requests until standard input ends or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # a library that prints must not corrupt the answers
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    import math_verify  # noqa: F401  (the slow import, before the clock of the first request runs)

    from rollbook.rewards.conditions import apply_inherited
    from rollbook.rewards.math import UnparsableReference, equivalent

    apply_inherited()

    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    output.write(b'"ready"\n')
    while os.getppid() == parent:
        try:
            answer, reference = json.loads(requests.get(timeout=POLL_SECONDS))
        except queue.Empty:  # a forked sibling may hold the other end of the input open: look again who the parent is
            continue
        signal.setitimer(signal.ITIMER_REAL, seconds + GRACE_SECONDS)
        output.write(b'"taken"\n')  # from here on a death is this comparison's doing
        try:
            outcome: object = equivalent(answer, reference)
        except UnparsableReference as error:
            outcome = {"code": "unparsable_reference", "detail": str(error)}
        except MemoryError:
            outcome = {"code": "out_of_memory", "detail": f"more than {memory_bytes} bytes"}
        except Exception as error:  # whatever the third-party parsers raise becomes a typed outcome
            outcome = {"code": "crash", "detail": f"{type(error).__name__}: {error}"[:200]}
        signal.setitimer(signal.ITIMER_REAL, 0)
        output.write(json.dumps(outcome).encode() + b"\n")


def _listen(requests: queue.SimpleQueue[bytes]) -> None:
    """Hands over request lines; the end of the input means that the parent is gone, and ends the process at once."""
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
