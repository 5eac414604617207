"""Pools the gain of several runs of one recipe: each run's paired interval, then the interval over all pairs."""

import sys
from pathlib import Path

from rollbook.evaluation.statistics import BOOTSTRAP_SEED
from rollbook.evaluation.statistics import paired_bootstrap
from rollbook.ledger import Ledger
from rollbook.records import EvalReport, Interval, ResolvedRecipe, RollbookError


def differences(run: Path, before: str, after: str) -> tuple[int, list[float]]:
    """The run's seed and, per held-out problem scored in both, after minus before."""
    with Ledger.open(run, write=False) as ledger:
        recipe = next(iter(ledger.records(ResolvedRecipe)))
        reports = {report.stage: report for report in ledger.records(EvalReport)}
    if before not in reports or after not in reports:
        raise RollbookError(f"{run} lacks an evaluation", got=", ".join(reports), fix=f"let the run reach {after}")
    pairs = [(value, reports[after].outcomes[task]) for task, value in reports[before].outcomes.items()]
    return recipe.settings.run.seed, [a - b for b, a in pairs if a is not None and b is not None]


def points(gain: Interval) -> str:
    """An interval in points, with its count."""
    return f"{100 * gain.estimate:+.1f}  ({100 * gain.low:+.1f} to {100 * gain.high:+.1f}, {gain.count} problems)"


def main(runs: list[str]) -> int:
    parts = [differences(Path(run), "cold_eval", "final_eval") for run in runs]
    print("gain of RL over the cold start, points, held-out, paired 95% interval")
    for run, (seed, values) in zip(runs, parts, strict=True):
        gain = paired_bootstrap([values], seed=BOOTSTRAP_SEED)
        print(f"  seed {seed}: {points(gain)}  {run}")
    pooled = paired_bootstrap([values for _, values in parts], seed=BOOTSTRAP_SEED)
    print(f"  pooled: {points(pooled)}")
    return 0 if pooled.low > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
