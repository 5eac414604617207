"""What an attack on the sandbox is, how it is judged, and what it may come to.

The task of every case is the sum of two numbers. Expected sums stay here, outside. A case names all ways in which it may end:
an attack that ends otherwise, or is rewarded, has succeeded.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollbook.environments.sandbox import TEST
from rollbook.records.sandbox import Answer, Attempted, Language, Limits, NoAnswer, Solution

SUMS = ((3, 4, 7), (50_000_000_000_000_000, 1, 50_000_000_000_000_001))
PATIENT = replace(TEST, wall_s=900.0)    # how an attack ends must not depend on how busy the machine is
SMALL = Limits(wall_s=900.0, cpu_s=1.0, memory_bytes=150_000_000, processes=24, file_bytes=4 * 2**20, disk_bytes=16 * 2**20,
               output_bytes=2**20)
SHORT = replace(SMALL, wall_s=1.5)       # for those that wait
TIME = ("limit wall", "limit cpu")
SECRET = "a-secret-of-the-host"
MARKER = "zq-known-to-the-worker-only-zq"
FAILS = ("exit_status", "signal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A program, what it is after, and the ends it may come to. `honest` ones must be rewarded.

    An end is `denied` (it printed DENIED and nothing else), `answered` (another answer, which must be wrong), a code of
    `NoAnswer`, or `limit` with the limit's name.

    Example: Attack(name="sleeps", goal="hold the worker for ever", source="import time; time.sleep(60)", ends=("limit wall",))
    """

    name: str
    goal: str
    source: str
    ends: tuple[str, ...]
    language: Language = "python"
    function: str | None = None
    limits: Limits = PATIENT
    honest: bool = False

    def solution(self, facts: dict[str, str]) -> Solution:
        """The program, with the facts about the host that an attacker might know."""
        source = textwrap.dedent(self.source).lstrip("\n")
        for name, value in facts.items():
            source = source.replace(f"@{name}@", value)
        return Solution(language=self.language, source=source, function=self.function)

    def inputs(self) -> Sequence[Any]:
        return [(a, b) for a, b, _ in SUMS] if self.function else [f"{a} {b}\n".encode() for a, b, _ in SUMS]


def end(attempted: Attempted) -> str:
    """How an attempt ended, in the words of `Attack.ends`."""
    match attempted.answer:
        case NoAnswer(code="limit", detail=limit):
            return f"limit {limit}"
        case NoAnswer(code=code):
            return code
        case Answer(value=value):
            return "denied" if value == "DENIED\n" else "answered"


def rewarded(attempts: Sequence[Attempted]) -> bool:
    """Whether every test has the expected sum: texts are compared word by word, values with their exact type."""
    def right(answer: Answer | NoAnswer, total: int) -> bool:
        if isinstance(answer, NoAnswer):
            return False
        if isinstance(answer.value, str):
            return [line.split() for line in answer.value.rstrip().split("\n")] == [[str(total)]]
        return type(answer.value) is int and answer.value == total
    return all(right(attempted.answer, total) for attempted, (_, _, total) in zip(attempts, SUMS, strict=True))


TOOLS = '''
import ctypes, errno, glob, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
got = []
def tries(name, action, *arguments):
    """Notes what succeeds."""
    try:
        result = action(*arguments)
    except (OSError, ImportError, EOFError):
        return None
    got.append(name)
    return result
def calls(name, result):
    """Notes a function of the C library that did not fail."""
    if result != -1:
        got.append(name)
'''
VERDICT = '''
print("ESCAPED %r" % got[:9] if got else "DENIED")
'''


def reaching(name: str, goal: str, body: str, **fields: Any) -> Attack:
    """An attack that tries for something and says whether it got it: it may only end with DENIED."""
    return Attack(name=name, goal=goal, source=TOOLS + textwrap.dedent(body) + VERDICT, ends=("denied",), **fields)
