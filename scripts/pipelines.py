"""Every pipeline at lab or tiny scale, one after another: what ran, how long, what moved, whether its audit is clean.

A pipeline that has ended is not run again; one that was interrupted goes on where it stood. Stages that another pipeline of the
same folder made of the same inputs are taken over from it. The held-out gain is the paired one of the last comparison on record:
seeds and problems are fixed by the recipe. Where the lab scale of a pipeline is its tiny one, its tiny run is taken over whole.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

from rollbook.audit.passage import audit_run
from rollbook.ledger import Ledger, environment_manifest
from rollbook.orchestration.reuse import Reuse, stage_keys
from rollbook.orchestration.run import resume_run, run_recipe
from rollbook.recipes import builtin_names, load, resolve
from rollbook.records import Comparison, EvalReport, ResolvedRecipe, RollbookError, RunEnd, StageEnd, content_id


class Quiet:
    """Says the stages and nothing else."""

    def stage(self, name: str, index: int, total: int, steps: int) -> None:
        print(f"  {index}/{total} {name}", file=sys.stderr, flush=True)

    def step(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def note(self, text: str) -> None: ...


def runnable(scale: str) -> list[str]:
    """The recipes whose mechanisms are built and that have no open value at the scale."""
    found = []
    for name in builtin_names():
        try:
            resolve(load(name), scale)
        except RollbookError:
            continue
        found.append(name)
    return found


def ended(folder: Path) -> bool:
    with Ledger.open(folder, write=False) as ledger:
        return any(end.status == "completed" for end in ledger.records(RunEnd))


def made(name: str, scale: str, folder: Path) -> None:
    """Runs the pipeline, or what is left of it."""
    if folder.exists():
        if not ended(folder):
            resume_run(folder, Quiet())
        return
    recipe = resolve(load(name), scale)
    run_recipe(recipe, folder, Quiet(), reuse=begun(recipe, folder.parent))


def begun(recipe: ResolvedRecipe, runs: Path) -> Reuse | None:
    """The finished run beside this one that begins with the most stages of it; None where none begins like it."""
    keys = list(stage_keys(recipe).values())
    shared: dict[Path, int] = {}
    for folder in sorted(path for path in runs.iterdir() if (path / "manifest.json").is_file()) if runs.is_dir() else ():
        if not ended(folder) or not same(folder):
            continue
        with Ledger.open(folder, write=False) as ledger:
            there = stage_keys(next(ledger.records(ResolvedRecipe))).values()
        shared[folder] = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(keys, there, strict=False)))
    best = max(shared, key=lambda folder: shared[folder], default=None)
    return Reuse(folder=best) if best is not None and shared[best] else None


def same(folder: Path) -> bool:
    """Whether the run was made by this program; a run of another one is no source."""
    with Ledger.open(folder, write=False) as ledger:
        return bool(ledger.manifest.get("code", {}).get("source") == environment_manifest()["code"]["source"])


def row(name: str, folder: Path) -> list[str]:
    """Pipeline, stages, minutes, held-out accuracy before -> after with the interval of the gain, audit."""
    with Ledger.open(folder, write=False) as ledger:
        reports = {content_id(one): one for one in ledger.records(EvalReport)}
        last = list(ledger.records(Comparison))[-1:]
        minutes = sum(end.observed.get("wall_s", 0.0) for end in ledger.records(RunEnd)) / 60
        stages = sum(1 for _ in ledger.records(StageEnd))
        taken = len(ledger.manifest.get("taken_over", {}).get("stages", ()))
    moved = "no comparison"
    if last and last[0].before in reports and last[0].after in reports:
        before, after, gain = reports[last[0].before], reports[last[0].after], last[0].gain
        moved = (f"{before.accuracy.estimate:.1%} -> {after.accuracy.estimate:.1%} ({100 * gain.estimate:+.1f}, "
                 f"95% {100 * gain.low:+.1f} to {100 * gain.high:+.1f})")
    failing = [one.name for one in audit_run(folder).rows if one.result == "fail"]
    return [name, f"{stages}, {taken} taken over" if taken else str(stages), f"{minutes:.1f}", moved,
            "clean" if not failing else f"fails: {', '.join(failing)}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="recipes; all that can run at the scale where none is named")
    parser.add_argument("--scale", choices=("lab", "tiny"), default="tiny")
    parser.add_argument("--out", type=Path, default=Path("runs/pipelines"))
    given = parser.parse_args()
    print("| pipeline | stages | minutes | held-out accuracy | audit |\n|---|---|---|---|---|", flush=True)
    wrong = 0
    for name in given.names or runnable(given.scale):
        began, folder = time.monotonic(), given.out / f"{name}-{given.scale}"
        print(name, file=sys.stderr, flush=True)
        try:
            made(name, given.scale, folder)
            cells = row(name, folder)
        except RollbookError as error:
            cells = [name, "", f"{(time.monotonic() - began) / 60:.1f}", "", f"stopped: {error.what}"]
        wrong += cells[-1] != "clean"
        print("| " + " | ".join(cells) + " |", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
