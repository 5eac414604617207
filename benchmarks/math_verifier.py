"""How often the math verifier is wrong, and how long it takes, beside math-verify alone: prints a table, and JSON with --out.

    python benchmarks/math_verifier.py [--pairs FILE ...] [--only ours|math-verify] [--mistakes] [--out FILE]

Pairs are rows {reference, answer, equal, kind}; `answer` is a whole response. A pair that comes back without an answer counts as
not accepted, so that it is a false reject where the two are equal, and is counted as unscored too. math-verify alone is used
as its documentation shows: both texts through `parse` with its default extraction, then `verify`, with its own time limits, in a
process that is killed after KILL_SECONDS. One pair at a time, one process each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from rollbook.rewards import Failure, VerifierPool
from rollbook.rewards.boxes import last_box
from rollbook.rewards.numbers import compare

GOLDEN = Path(__file__).parent.parent / "tests" / "golden" / "rewards"
FILES = tuple(GOLDEN / f"math_pairs_{name}.jsonl" for name in ("blind", "second_blind", "third_blind", "fourth_blind", "informed"))
LIMIT_SECONDS = 2.0
KILL_SECONDS = 12.0
Outcome = bool | str
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Mistakes and times of one contender on one file. `unscored` maps a reason to a count."""

    pairs: int
    false_accepts: int
    false_rejects: int
    unscored: Counter[str]
    seconds: Sequence[float]
    mistakes: Sequence[tuple[Row, Outcome]]

    def row(self) -> dict[str, Any]:
        ordered = sorted(self.seconds)
        return {"pairs": self.pairs, "false accepts": self.false_accepts, "false rejects": self.false_rejects,
                "unscored": dict(self.unscored), "crashes": self.unscored["crash"],
                "p50_ms": 1000 * statistics.median(ordered), "p99_ms": 1000 * ordered[int(0.99 * (len(ordered) - 1))],
                "max_ms": 1000 * ordered[-1]}


class Ours:
    """The path of a judge: last box, exact numbers in this process, everything else in a worker that is killed."""

    def __init__(self) -> None:
        self.pool = VerifierPool(workers=1, seconds=LIMIT_SECONDS)
        self.pool.verify([("1+x", "x+1")])

    def __call__(self, answer: str, reference: str) -> Outcome:
        box = last_box(answer)
        if box.answer is None:
            return False
        if not reference.strip():
            return "no_reference"
        equal = compare(box.answer, reference)
        if equal is not None:
            return equal
        [outcome] = self.pool.verify([(box.answer, reference)])
        return outcome.code if isinstance(outcome, Failure) else outcome

    def close(self) -> None:
        self.pool.close()


class MathVerify:
    """math-verify alone, in a child process that is replaced when it hangs or dies."""

    def __init__(self) -> None:
        self._start()

    def __call__(self, answer: str, reference: str) -> Outcome:
        try:
            self.pipe.send((answer, reference))
            if self.pipe.poll(KILL_SECONDS):
                return self.pipe.recv()
            reason = "timeout"
        except (EOFError, BrokenPipeError, ConnectionResetError):
            reason = "crash"
        self.close()
        self._start()
        return reason

    def close(self) -> None:
        self.child.kill()
        self.child.join()

    def _start(self) -> Self:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.child = context.Process(target=serve, args=(theirs,), daemon=True)
        self.child.start()
        theirs.close()
        self.pipe.send((r"\boxed{1+x}", "x+1"))
        self.pipe.recv()
        return self


def serve(pipe: Connection) -> None:
    """Answers pairs with math-verify until the other end is closed."""
    import logging

    import math_verify

    logging.disable(logging.CRITICAL)
    while True:
        answer, reference = pipe.recv()
        try:
            wanted = math_verify.parse(f"${reference}$")
            pipe.send(bool(math_verify.verify(wanted, math_verify.parse(answer))))
        except Exception as error:
            pipe.send(f"crash: {type(error).__name__}"[:5])


def tally(contender: Callable[[str, str], Outcome], rows: Sequence[Row]) -> Tally:
    """The contender asked about every row, one at a time."""
    accepts = rejects = 0
    unscored: Counter[str] = Counter()
    seconds, mistakes = [], []
    for row in rows:
        began = time.perf_counter()
        outcome = contender(row["answer"], row["reference"])
        seconds.append(time.perf_counter() - began)
        if isinstance(outcome, str):
            unscored[outcome] += 1
        accepted = outcome is True
        accepts += accepted and not row["equal"]
        rejects += row["equal"] and not accepted
        if accepted != row["equal"]:
            mistakes.append((row, outcome))
    return Tally(pairs=len(rows), false_accepts=accepts, false_rejects=rejects, unscored=unscored, seconds=seconds,
                 mistakes=mistakes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, nargs="+", default=[file for file in FILES if file.exists()])
    parser.add_argument("--only", choices=("ours", "math-verify"))
    parser.add_argument("--mistakes", action="store_true", help="print every wrong outcome")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    contenders = [("math-verify alone", MathVerify), ("ours", Ours)]
    report: list[dict[str, Any]] = []
    print(f"{'pairs':24} {'verifier':18} {'n':>5} {'false acc.':>10} {'false rej.':>10} {'crashes':>7} {'unscored':>8} "
          f"{'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}")
    for name, make in contenders:
        if options.only and not name.startswith(options.only):
            continue
        contender = make()
        for file in options.pairs:
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            found = tally(contender, rows)
            row = {"file": file.stem, "verifier": name, "load": os.getloadavg()[0], **found.row()}
            report.append(row)
            print(f"{file.stem:24} {name:18} {row['pairs']:5} {row['false accepts']:10} {row['false rejects']:10} "
                  f"{row['crashes']:7} {sum(row['unscored'].values()):8} {row['p50_ms']:8.1f} {row['p99_ms']:8.1f} "
                  f"{row['max_ms']:8.1f}", flush=True)
            if options.mistakes:
                for wrong, outcome in found.mistakes:
                    print(f"    {wrong['kind']:22} want {wrong['equal']!s:5} got {outcome!s:12} {wrong['reference']!r} | "
                          f"{wrong['answer']!r}")
        contender.close()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; per-pair limit of ours {LIMIT_SECONDS} s")
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
