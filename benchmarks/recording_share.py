"""What recording takes of a real run's wall time: prints a table by what is recorded, and JSON.

    python benchmarks/recording_share.py [--recipe magistral-small] [--scale lab] [--steps 4] [--set a.b=c ...] [--out RUN]

The recipe runs as it would by `rollbook run`; the functions that exist for the record alone are timed where they are called, the
innermost one counts. What scoring, sampling or the optimizer need for themselves is not recording.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollbook.ledger import Ledger
from rollbook.orchestration import publish, recording, run, session, stages, step
from rollbook.orchestration.publish import Publisher
from rollbook.orchestration.run import run_recipe
from rollbook.recipes import load, resolve
from rollbook.rollouts.engines import embedded
from rollbook.training.optimizer import Optimizer
from rollbook.training.policy import PolicyLearner


class Clock:
    """Seconds by category; a call inside another one counts for the inner category only."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._inner = [0.0]

    def wrap(self, owner: Any, name: str, category: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(real)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            self._inner.append(0.0)
            try:
                return real(*args, **kwargs)
            finally:
                whole = time.perf_counter() - began
                self.spent[category] += whole - self._inner.pop()
                self._inner[-1] += whole
                self.calls[category] += 1
        setattr(owner, name, timed)


def instrument(clock: Clock) -> None:
    """Wraps what exists for the record alone."""
    for name in ("append", "append_many", "write_traces", "write_table", "put"):
        clock.wrap(Ledger, name, "log, tables, objects")
    clock.wrap(publish, "weight_hash", "weight hashes")
    clock.wrap(embedded, "ordered_hash", "weight hashes")
    clock.wrap(publish, "published_hash", "weight hashes")
    clock.wrap(Optimizer, "digest", "optimizer's digest")
    clock.wrap(Publisher, "_probe", "probe of the published policy")
    clock.wrap(session, "save_checkpoint", "checkpoints")
    for module in (stages.supervised, stages.policy_gradient):
        clock.wrap(module, "save_state", "state to continue from")
    clock.wrap(step, "batch_record", "batches and updates")
    clock.wrap(step, "update_record", "batches and updates")
    clock.wrap(recording, "sft_tensors", "batches and updates")
    clock.wrap(PolicyLearner, "kl_to_start", "KL to the start (a measure)")
    clock.wrap(run, "_record_sources", "tasks, proof, decontamination")


class Quiet:
    def stage(self, name: str, index: int, total: int, steps: int) -> None:
        print(f"  {name}", flush=True)

    def step(self, step: int, metrics: dict[str, float]) -> None: ...

    def note(self, text: str) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="magistral-small")
    parser.add_argument("--scale", default="lab")
    parser.add_argument("--steps", type=int, default=None, help="steps of the stage `rl`; default: the recipe's")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out", type=Path, help="where the run is kept; default: a folder that is removed afterwards")
    given = parser.parse_args()
    steps = () if given.steps is None else (f"stages.rl.steps={given.steps}",)
    recipe = resolve(load(given.recipe), given.scale, (*given.set, *steps))
    clock, folder = Clock(), Path(tempfile.mkdtemp())
    instrument(clock)
    try:
        began = time.perf_counter()
        run_recipe(recipe, given.out or folder / "run", Quiet())
        wall = time.perf_counter() - began
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{'recorded':<34}{'calls':>7}{'s':>9}{'share':>8}")
    for category, seconds in sorted(clock.spent.items(), key=lambda item: -item[1]):
        print(f"{category:<34}{clock.calls[category]:>7}{seconds:>9.2f}{100 * seconds / wall:>7.2f}%")
    total = sum(clock.spent.values())
    print(f"{'all':<34}{'':>7}{total:>9.2f}{100 * total / wall:>7.2f}%  of {wall:.1f} s")
    if given.json:
        given.json.write_text(json.dumps({"wall_s": wall, "recording_s": total, "share": total / wall, "by": clock.spent}, indent=1))


if __name__ == "__main__":
    main()
