"""Sampling while training against taking turns, with environments that make attempts wait: speed, accuracy, idle environments.

    python benchmarks/asynchrony.py race --seeds 5 --out runs/race      both loops, interleaved, the same batches a step
    python benchmarks/asynchrony.py waiting --episodes 2000             what so many waiting environments cost one process

Prints a table and JSON; `race` draws a timeline of who was busy.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

FLOW = ("{throttle: {kind: AReaLCode, eta: 2}, concurrency: 192, on_update: keep, late: wait, queue: 64, stall_s: 300}")
COMMON = ("environment.definition=waiting_sums:WaitingSums", "environment.max_seconds=120", "environment.call_seconds=120",
          "stages.rl.probe_every=0", "stages.rl.probe=0", "stages.rl.prompts=16", "stages.rl.max_waves=3")
# A wave of 16 prompts brings 15.7 groups that are learnt from; a loop without waves is given 16 of them a step.
WAYS = {"taking turns": ("stages.rl.groups=12",),
        "while training": ("stages.rl.groups=16", "stages.rl.max_policy_age=2", f"stages.rl.asynchrony={FLOW}")}


class Silent:
    """A progress nobody looks at."""

    def stage(self, name: str, index: int, total: int, steps: int) -> None:
        pass

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        pass

    def note(self, text: str) -> None:
        pass


def race(seeds: int, steps: int, wait_s: float, out: Path) -> dict[str, object]:
    """Both ways for every seed, about the same sequences a step; trained sequences a second of the RL stage, and held-out accuracy.

    The cold start of a seed is made once and taken over by the way that comes second.
    """
    from rollbook.orchestration.reuse import Reuse
    from rollbook.orchestration.run import run_recipe
    from rollbook.recipes import load, resolve

    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for seed in range(1, seeds + 1):
        source: Path | None = None
        for way in list(WAYS) if seed % 2 else list(reversed(WAYS)):
            root = out / f"{way.replace(' ', '-')}-{seed}"
            if not (root / "manifest.json").exists():
                recipe = resolve(load("tool-calculator"), "tiny", (
                    *COMMON, *WAYS[way], f"run.seed={seed}", f"stages.rl.steps={steps}",
                    f"environment.parameters={{terms: 2, low: 10, high: 99, tool: calc, wait_s: {wait_s}}}"))
                run_recipe(recipe, root, Silent(), reuse=None if source is None else Reuse(folder=source))
            source = root
            found[way].append(measured(root))
            print(json.dumps({"seed": seed, "way": way, **found[way][-1]}), flush=True)
    ratio = [a["sequences_per_s"] / b["sequences_per_s"] for a, b in zip(found["while training"], found["taking turns"], strict=True)]
    points = [100 * (a["after"] - b["after"]) for a, b in zip(found["while training"], found["taking turns"], strict=True)]
    drawn = np.random.default_rng(0).choice(points, (10_000, len(points))).mean(1)
    return {"ratio_median": statistics.median(ratio), "ratio_each": ratio, "accuracy_points": statistics.mean(points),
            "accuracy_interval": [float(x) for x in np.quantile(drawn, (0.025, 0.975))],
            "gain": {way: statistics.mean(100 * (one["after"] - one["before"]) for one in all_) for way, all_ in found.items()}}


def measured(root: Path) -> dict[str, float]:
    """Of a finished run: sequences trained, seconds of its RL stage, accuracies."""
    from rollbook.ledger import Ledger
    from rollbook.records import Batch, EvalReport, StepReport

    with Ledger.open(root, write=False) as ledger:
        sequences = sum(len(batch.traces) for batch in ledger.records(Batch) if batch.scope.startswith("rl/"))
        seconds = sum(report.observed["time/step_s"] for report in ledger.records(StepReport) if report.stage == "rl")
        training = sum(report.observed["time/update_s"] for report in ledger.records(StepReport) if report.stage == "rl")
        accuracy = {report.stage: report.accuracy.estimate for report in ledger.records(EvalReport)}
    return {"sequences": sequences, "seconds": seconds, "sequences_per_s": sequences / seconds, "learner_busy": training / seconds,
            "before": accuracy["cold_eval"], "after": accuracy["final_eval"]}


def timeline(out: Path, seed: int = 1) -> Path:
    """When the learner worked and when it waited, for both ways, as a picture."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from rollbook.ledger import Ledger
    from rollbook.records import StepReport

    figure, axes = plt.subplots(len(WAYS), 1, figsize=(9, 2.6), sharex=True, layout="constrained")
    for axis, way in zip(axes, WAYS, strict=True):
        with Ledger.open(out / f"{way.replace(' ', '-')}-{seed}", write=False) as ledger:
            at = 0.0
            for report in ledger.records(StepReport):
                if report.stage != "rl":
                    continue
                whole, trained = report.observed["time/step_s"], report.observed["time/update_s"]
                axis.barh(0, whole - trained, left=at, color="#cccccc")
                axis.barh(0, trained, left=at + whole - trained, color="#0072b2")
                at += whole
        axis.set_yticks([0], [way])
    axes[-1].set_xlabel("seconds of the RL stage · blue: the learner trains · grey: it waits for attempts")
    target = out / "timeline.svg"
    figure.savefig(target)
    return target


def waiting(episodes: int, seconds: float) -> dict[str, object]:
    """Memory and processor time of one process while so many episodes wait for their environments."""
    import psutil

    from rollbook.environments import load_definition, open_services
    from rollbook.models.load import load_policy
    from rollbook.records import Dispatch, EnvironmentSpec, EpisodeBudget
    from rollbook.records.recipe import SamplingSettings, Tiny
    from rollbook.rollouts.engines.embedded import EmbeddedEngine
    from rollbook.rollouts.environment import EnvironmentRollouts
    from rollbook.rollouts.episodes_in_flight import EpisodesInFlight
    from rollbook.rollouts.rules import EpisodeRules

    policy = load_policy(Tiny(architecture="llama", layers=2, hidden=64, heads=4, kv_heads=2, intermediate=96, context=160,
                              window=None, experts=0, experts_per_token=0, seed=3))
    engine = EmbeddedEngine(stop_ids=policy.tokenizer.stop_ids, dtype=__import__("torch").float32, decode=policy.tokenizer.decode)
    engine.load(policy.decoder, 0)
    spec = EnvironmentSpec(name="waiting", definition="waiting_sums:WaitingSums",
                           parameters={"wait_s": 10 * seconds, "spread": 1.5, "tail_share": 0.0},
                           budget=EpisodeBudget(max_tokens=40, max_turns=3, turn_tokens=12, call_seconds=1000 * seconds))
    with open_services() as services:
        rollouts = EnvironmentRollouts(sampler=engine, tokenizer=policy.tokenizer, seed=3, max_tokens=40, spec=spec,
                                       sampling=SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0),
                                       definition=load_definition(spec), services=services, context=160,
                                       rules=EpisodeRules(dialect="fenced", announces=False))
        task = rollouts.definition.tasks(count=1, seed=1).tasks[0]
        before = psutil.Process().memory_info().rss
        flying = EpisodesInFlight(rollouts, engine, rows=64, on_update="keep")
        for number in range(episodes // 4):
            order = Dispatch(scope=f"w/g/{number:06d}", tasks=(task.id,), samples=4, envelope="e")
            flying.start(order, task, tuple(attempt for attempt, _ in order.attempts()))
        flying.advance()
        began, spent = time.monotonic(), time.process_time()
        while time.monotonic() - began < seconds:
            flying.advance()
        share = (time.process_time() - spent) / (time.monotonic() - began)
        held = psutil.Process().memory_info().rss - before
        for number in range(episodes // 4):
            flying.cancel(f"w/g/{number:06d}")
        flying.close()
    return {"episodes": episodes, "process_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "episodes_mib": held / 2**20, "core_share": share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    running = kinds.add_parser("race")
    running.add_argument("--seeds", type=int, default=5)
    running.add_argument("--steps", type=int, default=20)
    running.add_argument("--wait-s", type=float, default=0.5)
    running.add_argument("--out", type=Path, default=Path("runs/race"))
    idle = kinds.add_parser("waiting")
    idle.add_argument("--episodes", type=int, default=2000)
    idle.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    if asked.kind == "waiting":
        print(json.dumps(waiting(asked.episodes, asked.seconds), indent=1))
        return
    print(json.dumps(race(asked.seeds, asked.steps, asked.wait_s, asked.out), indent=1))
    print(timeline(asked.out))


if __name__ == "__main__":
    main()
