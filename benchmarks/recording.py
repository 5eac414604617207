"""What recording costs and what an audit of a large run takes: prints a table and JSON.

    python benchmarks/recording.py [--trajectories 100000] [--out FOLDER]

Appending: bytes of the log that are written and synced, small records and the records of real steps; trajectories as tables.
Each per second of the clock and per second of one core, for a machine that others use too. At rest: bytes per token of a
synthetic run, whole and by part. Audit: seconds, seconds of the core and peak memory of `rollbook audit` on it, in a process of
its own, on one core.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rollbook.ledger import Ledger, TraceTable
from rollbook.records import Batch, Credit, Outcome, StepReport, Update


def appending(source: Path, folder: Path) -> dict[str, float]:
    """MB/s of log bytes written and synced: small records, and the records of real steps, over again."""
    with Ledger.open(source, write=False) as ledger:
        steps = [record for cls in (Credit, Batch, Update, StepReport) for record, _ in zip(ledger.records(cls), range(200),
                                                                                          strict=False)]
    small = [Outcome(attempt=f"rl/{i:06d}/0/Task:{'0' * 64}/1", family="chain_sum", code="accepted") for i in range(20_000)]
    found = {}
    for name, records in (("small records", small), ("records of steps", steps)):
        run = folder / name.replace(" ", "-")
        with Ledger.create(run, {}) as ledger:
            began, worked = time.perf_counter(), time.process_time()
            for _ in range(4):
                ledger.append_many(records)
            spent, worked = time.perf_counter() - began, time.process_time() - worked
        found[f"append {name}, MB/s"] = _size(run / "events") / 1e6 / spent
        found[f"append {name}, MB per core-s"] = _size(run / "events") / 1e6 / worked
    found |= _trajectories(source, folder / "traces")
    return found


def _trajectories(source: Path, run: Path) -> dict[str, float]:
    """MB/s of trajectories: their ids, log-probs and text as they stand in memory, committed as tables."""
    with Ledger.open(source, write=False) as ledger:
        rows = [row for row, _ in zip(ledger.read_traces(), range(8192), strict=False)]
    payload = sum(8 * sum(len(s.token_ids) for s in trace.segments) + len(trace.text) for trace, _, _ in rows)
    with Ledger.create(run, {}) as ledger:
        began, worked = time.perf_counter(), time.process_time()
        for number in range(2):
            ledger.write_traces(f"t/{number}", [t for t, _, _ in rows], [v for _, v, _ in rows if v], [o for _, _, o in rows])
        spent, worked = time.perf_counter() - began, time.process_time() - worked
    return {"append trajectories, MB/s": 2 * payload / 1e6 / spent, "append trajectories, 1/s": 2 * len(rows) / spent,
            "append trajectories, 1 per core-s": 2 * len(rows) / worked}


def at_rest(run: Path) -> dict[str, float]:
    """Bytes per token, prompts included, by part of the run folder."""
    with Ledger.open(run, write=False) as ledger:
        tokens = sum(event.body["tokens"] for event in ledger.events(TraceTable.__name__))
    parts = {name: _size(run / name) / tokens for name in ("traces", "events", "objects")}
    return {"at rest, bytes/token": sum(parts.values()), **{f"  of that {name}": size for name, size in parts.items()},
            "tokens": float(tokens)}


def auditing(run: Path) -> dict[str, float]:
    """Seconds and memory of the audit, measured from outside."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    began, before = time.perf_counter(), used.ru_utime + used.ru_stime
    command = ["taskset", "-c", "0", sys.executable, "-c", "from rollbook.cli import main; main()", "audit", str(run), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    spent = time.perf_counter() - began
    rows = {row["name"]: row["result"] for row in json.loads(done.stdout)["rows"]}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak, worked = used.ru_maxrss / 2**20, used.ru_utime + used.ru_stime - before
    print("audit:", ", ".join(f"{name} {result}" for name, result in rows.items()))
    return {"audit, s": spent, "audit, core-s": worked,
            "audit, peak GiB": peak, "audit, failed rows": float(list(rows.values()).count("fail"))}


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from synthetic_run import make

    parser = argparse.ArgumentParser()
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    folder = arguments.out or Path(tempfile.mkdtemp(prefix="rollbook-recording-"))
    folder.mkdir(parents=True, exist_ok=True)
    run = folder / "run"
    began = time.perf_counter()
    for done in make(run, arguments.trajectories):
        print(f"\rmaking a run: {done} trajectories, {time.perf_counter() - began:.0f} s", end="", file=sys.stderr)
    print(file=sys.stderr)
    found = {"trajectories": float(arguments.trajectories), **at_rest(run), **appending(run, folder), **auditing(run)}
    for name, value in found.items():
        print(f"{name:38} {value:14,.2f}")
    print(json.dumps(found))
    if arguments.out is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
