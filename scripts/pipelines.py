"""Every pipeline at tiny scale, one after another: what ran, how long, what moved, whether its audit is clean.

A pipeline that has ended is not run again; one that was interrupted goes on where it stood. The held-out gain is the paired one
of the last comparison on record: seeds and problems are fixed by the recipe.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rollbook.audit.passage import audit_run
from rollbook.ledger import Ledger
from rollbook.orchestration.run import resume_run, run_recipe
from rollbook.recipes import builtin_names, load, resolve
from rollbook.records import Comparison, EvalReport, RollbookError, RunEnd, content_id


class Quiet:
    """Says the stages and nothing else."""

    def stage(self, name: str, index: int, total: int, steps: int) -> None:
        print(f"  {index}/{total} {name}", file=sys.stderr, flush=True)

    def step(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def note(self, text: str) -> None: ...


def runnable() -> list[str]:
    """The recipes whose mechanisms are built and that have a tiny scale without open values."""
    found = []
    for name in builtin_names():
        try:
            resolve(load(name), "tiny")
        except RollbookError:
            continue
        found.append(name)
    return found


def ended(folder: Path) -> bool:
    with Ledger.open(folder, write=False) as ledger:
        return any(end.status == "completed" for end in ledger.records(RunEnd))


def made(name: str, folder: Path) -> None:
    """Runs the pipeline, or what is left of it."""
    if not folder.exists():
        run_recipe(resolve(load(name), "tiny"), folder, Quiet())
    elif not ended(folder):
        resume_run(folder, Quiet())


def row(name: str, folder: Path) -> list[str]:
    """Pipeline, stages, minutes, held-out accuracy before -> after with the interval of the gain, audit."""
    with Ledger.open(folder, write=False) as ledger:
        reports = {content_id(one): one for one in ledger.records(EvalReport)}
        last = list(ledger.records(Comparison))[-1:]
        minutes = sum(end.observed.get("wall_s", 0.0) for end in ledger.records(RunEnd)) / 60
        stages = len({one.stage for one in reports.values()})
    moved = "no comparison"
    if last and last[0].before in reports and last[0].after in reports:
        before, after, gain = reports[last[0].before], reports[last[0].after], last[0].gain
        moved = (f"{before.accuracy.estimate:.1%} -> {after.accuracy.estimate:.1%} ({100 * gain.estimate:+.1f}, "
                 f"95% {100 * gain.low:+.1f} to {100 * gain.high:+.1f})")
    failing = [one.name for one in audit_run(folder).rows if one.result == "fail"]
    return [name, str(stages), f"{minutes:.1f}", moved, "clean" if not failing else f"fails: {', '.join(failing)}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="recipes; all that can run at tiny scale where none is named")
    parser.add_argument("--out", type=Path, default=Path("runs/pipelines"))
    given = parser.parse_args()
    print("| pipeline | evaluations | minutes | held-out accuracy | audit |\n|---|---|---|---|---|", flush=True)
    wrong = 0
    for name in given.names or runnable():
        began = time.monotonic()
        print(name, file=sys.stderr, flush=True)
        try:
            made(name, given.out / name)
            cells = row(name, given.out / name)
        except RollbookError as error:
            cells = [name, "", f"{(time.monotonic() - began) / 60:.1f}", "", f"stopped: {error.what}"]
        wrong += cells[-1] != "clean"
        print("| " + " | ".join(cells) + " |", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
