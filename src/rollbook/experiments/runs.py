"""What an experiment reads of a run: its score, what it spent, and its hash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rollbook.evidence.errors import EvidenceError
from rollbook.experiments.definition import Definition, Quantity
from rollbook.ledger import Ledger
from rollbook.records import Batch, Census, EvalReport, ResolvedRecipe, RunEnd, StepReport, content_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One finished run. `outcomes` are its held-out scores by task, empty where it diverged; `spent` counts the whole run.

    Example: Outcome(level="eight", seed=1, status="completed", recipe="ResolvedRecipe:4f", run="ab12", score=0.61,
        outcomes={"Task:1": 1.0}, spent={"tokens generated": 8e5, "tokens trained": 7e5, "attempts": 4000})
    """

    level: str
    seed: int
    status: Literal["completed", "diverged"]
    recipe: str
    run: str
    score: float | None
    outcomes: Mapping[str, float]
    spent: Mapping[Quantity, float]


def outcome(folder: Path, definition: Definition, level: str, seed: int) -> Outcome | None:
    """The outcome of a run folder; None while the run is not over."""
    with Ledger.open(folder, write=False) as ledger:
        end = next(iter(ledger.records(RunEnd)), None)
        if end is None:
            return None
        reports = {report.stage: report for report in ledger.records(EvalReport)}
        report = reports.get(definition.metric)
        if end.status == "completed" and report is None:
            raise EvidenceError(f"{folder} has no evaluation {definition.metric}", got=", ".join(reports) or "none",
                                fix="name an evaluation stage of the recipe in `metric`")
        held = {task: value for task, value in report.outcomes.items() if value is not None} if report else {}
        return Outcome(level=level, seed=seed, status=end.status, recipe=content_id(next(iter(ledger.records(ResolvedRecipe)))),
                       run=ledger.semantic_hash(), score=sum(held.values()) / len(held) if held else None, outcomes=held,
                       spent=_spent(ledger))


def _spent(ledger: Ledger) -> dict[Quantity, float]:
    """Tokens sampled in training steps, action tokens that carried a gradient, attempts issued in training and selection."""
    steps = list(ledger.records(StepReport))
    return {"tokens generated": sum(step.metrics.get("rollout/tokens", 0.0) for step in steps),
            "tokens trained": float(sum(batch.action_tokens for batch in ledger.records(Batch))),
            "attempts": float(sum(sum(census.issued.values()) for census in ledger.records(Census)))}
