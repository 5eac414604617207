"""What every contender's script does: read its settings, say it is ready, do a round for every line it is sent."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

MARK = "@arena "
_out = sys.stdout
WORDS = ("the quick brown fox jumps over a lazy dog while seven wizards box near old barns and count coins by light of "
         "dim lamps until morning comes with rain wind snow or sun on hills rivers towns roads bridges fields").split()


def settings() -> dict[str, Any]:
    return json.loads(sys.argv[1])


def say(document: dict[str, Any]) -> None:
    _out.write(MARK + json.dumps(document) + "\n")
    _out.flush()


def serve(round_: Callable[[int], dict[str, Any]], **notes: Any) -> None:
    """Answers every line with what one round gives; `round_` gets the round's number and may time itself."""
    say({"ready": True, **notes})
    for number, _ in enumerate(sys.stdin):
        began = time.perf_counter()
        found = round_(number)
        say({"seconds": time.perf_counter() - began} | found)


def prompt_text(number: int, words: int) -> str:
    """A text of `words` words that differs with its number."""
    return " ".join(WORDS[(number * 7 + i * (1 + number % 5)) % len(WORDS)] for i in range(words))


def prompt_ids(encode: Callable[[str], list[int]], number: int, length: int) -> list[int]:
    """Exactly `length` token ids of text that differs with the number."""
    ids = encode(f"{number} " + prompt_text(number, length + 8))
    return ids[:length]


def peak_gib() -> float:
    """The largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def matmul_limit(torch: Any, seconds: float = 1.0) -> float:
    """GFLOP/s of a large bf16 product on these cores."""
    a, b = (torch.randn(2048, 2048).bfloat16() for _ in range(2))
    a @ b
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        a @ b
        count += 1
    return 2 * 2048**3 * count / (time.perf_counter() - began) / 1e9
