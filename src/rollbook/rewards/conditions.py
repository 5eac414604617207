"""Conditions under which a verdict must not change: another time, no network, another package index."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal, NoReturn, get_args

Changed = Literal["clock", "network", "packages"]
Condition = Literal["ordinary"] | Changed
CONDITIONS: tuple[Condition, ...] = ("ordinary", *get_args(Changed))
VARIABLE = "ROLLBOOK_CONDITION"      # inherited by the processes that a judge starts
AHEAD_DAYS = 400
DESCRIPTIONS: Mapping[Changed, str] = {"clock": f"clock {AHEAD_DAYS} days ahead", "network": "every connection refused",
                                       "packages": "another package index and no user packages"}


def apply(condition: Condition) -> None:
    """Puts this process, and the Python processes it starts through our worker, under a condition; for good."""
    os.environ[VARIABLE] = condition
    if condition == "clock":
        import time_machine

        time_machine.travel(time.time() + AHEAD_DAYS * 86400, tick=True).start()
    elif condition == "network":
        socket.socket.connect = _refuse                              # type: ignore[method-assign]
        socket.socket.connect_ex = _refuse                           # type: ignore[method-assign]
        socket.getaddrinfo = _refuse
    elif condition == "packages":
        os.environ |= {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_NO_INDEX": "1", "PYTHONNOUSERSITE": "1"}
        sys.path[:] = [path for path in sys.path if path]


def apply_inherited() -> None:
    """The condition of the process that started this one, if it is under any."""
    condition = os.environ.get(VARIABLE)
    if condition in CONDITIONS:
        apply(condition)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise OSError("no network: a verdict must not need one")
