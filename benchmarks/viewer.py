"""How quick the viewer is over a run of many trajectories: the first page of each kind cold, then filters, as a browser asks.

python benchmarks/viewer.py [--rows 100000] [--table 2000] [--out FOLDER]: makes the run once (kept in FOLDER), of steps with so
many trajectories each, then measures; every cold page in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from starlette.testclient import TestClient

from rollbook.ledger import Ledger
from rollbook.records import Component, Outcome, RewardVector, Scored, Segment, StepReport, Trace, VerifierStamp
from rollbook.view.app import Door, application
from rollbook.view.held import keep_columns
from rollbook.view.shown import held_runs

STAMP = VerifierStamp(name="math", version="1", digest="77" * 32)
QUERIES = ("", "stage=rl", "outcome=uniform", "text=boxed", "text=no+such+text", "text=4711", "component=format&most=0.05",
           "sort=highest+reward", "sort=longest&stage=rl&text=sum", "version=20", "page=1000")


def make(out: Path, rows: int, table: int) -> None:
    """A run of that many trajectories of about 300 characters, `table` a step."""
    rng = random.Random(1)
    with Ledger.create(out, {"name": "synthetic"}) as ledger:
        for step, at in enumerate(range(0, rows, table), start=1):
            count = min(table, rows - at)
            traces = [trace(rng, at + index, step) for index in range(count)]
            verdicts = [verdict(rng, one) for one in traces]
            ends = [Outcome(attempt=one.attempt, family=("sums", "gcd", "sort")[index % 3],
                            code=("accepted", "uniform", "truncated")[index % 7 % 3]) for index, one in enumerate(traces)]
            ledger.write_traces(f"rl/{step:06d}", traces, verdicts, ends)
            ledger.append(StepReport(stage="rl", step=step, policy="PolicyVersion:1", published="PolicyVersion:2",
                                     census="Census:1", batches=(), updates=(), metrics={"reward/total_mean": rng.random(),
                                                                      "policy/entropy_nats": 0.5 + rng.random()}))


def trace(rng: random.Random, number: int, step: int) -> Trace:
    words = " ".join(rng.choice(("sum", "carry", "then", "therefore", "check", "digit", str(rng.randrange(10_000))))
                     for _ in range(50))
    count = 20 + rng.randrange(60)
    own = Segment(owner="policy", token_ids=tuple(range(count)), logps=(-0.5,) * count, version=step)
    task = f"Task:{number // 8:08x}"
    return Trace(attempt=f"rl/{step:06d}/0/{task}/{number % 8}", task=task, group=f"rl/{step:06d}/0/{task}",
                 envelope="SamplingEnvelope:1", segments=(Segment(owner="user", token_ids=(1, 2, 3)), own),
                 stop_reason="end_of_turn", text=f"<think>{words}</think> \\boxed{{{number}}}", observed={"latency_s": 1.0})


def verdict(rng: random.Random, of: Trace) -> Scored:
    right = float(rng.random() < 0.4)
    parts = (Component(name="format", value=0.1 * (rng.random() < 0.9), verifier=STAMP),
             Component(name="correctness", value=0.9 * right, verifier=STAMP, detail="7 = 7"))
    vector = RewardVector(components=parts, absent=(), composition="magistral/1", composition_digest="c0",
                          total=sum(part.value for part in parts), accuracy=right)
    return Scored(trace=of.id, vector=vector)


def timed(held: TestClient, path: str) -> tuple[float, float]:
    """Seconds on the clock and of this process's processor time: on a machine that also does other things they differ."""
    began, spent = time.perf_counter(), time.process_time()
    answer = held.get(path)
    assert answer.status_code == 200, (path, answer.status_code, answer.text[-300:])
    return time.perf_counter() - began, time.process_time() - spent


def cold(folder: Path, page: str) -> None:
    """The first page that a new process is asked for: it has read nothing."""
    runs = held_runs([folder])
    held = TestClient(application(runs, Door(token=None, hosts=None)))
    path = page.replace("RUN", next(iter(runs)))
    said(f"{path}, cold (in a new process)", timed(held, path))


def measure(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as cache:
        os.environ["ROLLBOOK_CACHE"] = cache            # nothing is kept yet
        for kept in ("nothing kept", "kept"):
            print(f"{kept}:")
            for page in ("/run/RUN/trajectories", "/run/RUN", "/"):
                subprocess.run([sys.executable, __file__, "--out", str(folder), "--cold", page], check=True)
            keep_columns(folder)
    runs = held_runs([folder])
    held, key = TestClient(application(runs, Door(token=None, hosts=None))), next(iter(runs))
    timed(held, f"/run/{key}/trajectories")
    said("a text that is sought before the texts were read", timed(held, f"/run/{key}/trajectories?text=sum"))
    slowest = 0.0
    for query in QUERIES:
        times = [timed(held, f"/run/{key}/trajectories?{query}") for _ in range(5)]
        middle = statistics.median(clock for clock, _ in times), statistics.median(spent for _, spent in times)
        slowest = max(slowest, middle[0])
        said(f"filter {query or '(none)'}", middle)
    rows = runs[key].refresh().rows
    row = rows.row(min(12_345, len(rows) - 1))
    for page, what in (("trajectory", "id"), ("group", "group"), ("task", "task")):
        said(page, timed(held, f"/run/{key}/{page}?id={row[what]}"))
    print(f"slowest filter by median: {1000 * slowest:.0f} ms")


def said(what: str, took: tuple[float, float]) -> None:
    print(f"{what:62} {1000 * took[0]:7.0f} ms, processor {1000 * took[1]:6.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--table", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cold", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.cold:
        cold(told.out, told.cold)
        return
    out = told.out or Path(tempfile.mkdtemp()) / "synthetic"
    if not out.exists():
        began = time.perf_counter()
        make(out, told.rows, told.table)
        print(f"made {told.rows:,} trajectories in {time.perf_counter() - began:.0f} s: {out}")
    measure(out)


if __name__ == "__main__":
    main()
