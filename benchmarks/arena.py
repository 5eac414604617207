"""Contenders, each a process of its own, doing one round in turn: ratios from one run, interleaved.

A contender is a script that loads what it needs, says `{"ready": ...}` on its standard output and then, for every line it is sent,
does one round and answers `{"seconds": ..., "tokens": ...}`. While one works the others wait for their line and use no processor.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "contenders"
ROOT = Path(__file__).parent.parent
THREADS = 2
PEERS = {"trl": ROOT / ".venv-trl/bin/python", "vllm": ROOT / ".venv-vllm/bin/python", "own": Path(sys.executable)}
MARK = "@arena "
# OpenMP's own waiting policy: idle threads sleep after a short spin, and every contender keeps the wake-up times its users have.
ENVIRONMENT = {"OMP_NUM_THREADS": str(THREADS), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A script of `contenders/`, the environment that runs it, and its settings."""

    name: str
    script: str
    python: str
    settings: Mapping[str, Any]

    @property
    def missing(self) -> str | None:
        """Why it cannot take part; None where it can."""
        path = PEERS[self.python]
        return None if path.exists() else f"{path.relative_to(ROOT)} is not there: make bench-peers"


@dataclass(slots=True)
class Rounds:
    """What a contender measured, round by round."""

    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Median tokens per second."""
        return statistics.median(t / s for t, s in zip(self.tokens, self.seconds, strict=True))

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


class _Process:
    def __init__(self, contender: Contender):
        self.contender = contender
        settings = json.dumps(dict(contender.settings) | {"threads": THREADS})
        self.process = subprocess.Popen([str(PEERS[contender.python]), str(HERE / contender.script), settings], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL if not os.environ.get("ARENA_LOUD") else None,
                                        text=True, env=os.environ | ENVIRONMENT)

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        raise SystemExit(f"{self.contender.name} ended with {self.process.wait()}; run again with ARENA_LOUD=1 to see why")

    def go(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def race(contenders: Sequence[Contender], rounds: int) -> dict[str, Rounds]:
    """Every contender `rounds` times, in turn, after one warm-up round of each; a contender that cannot take part is left out, said."""
    taking = []
    for one in contenders:
        if one.missing is None:
            taking.append(one)
        else:
            print(f"  {one.name}: left out ({one.missing})")
    found = {one.name: Rounds() for one in taking}
    processes = [_Process(one) for one in taking]
    try:
        for process in processes:
            found[process.contender.name].notes = process.answer()
        for number in range(rounds + 1):
            for process in processes:
                done = process.go()
                mine = found[process.contender.name]
                mine.notes |= {k: v for k, v in done.items() if k not in ("seconds", "tokens")}
                if number:
                    mine.seconds.append(done["seconds"])
                    mine.tokens.append(done["tokens"])
                    print(f"  round {number}/{rounds} {process.contender.name}: {done['seconds']:.2f} s", file=sys.stderr, flush=True)
    finally:
        for process in processes:
            process.close()
    return found


def table(rows: Sequence[Sequence[object]], head: Sequence[str]) -> str:
    """A plain table, columns aligned."""
    texts = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
