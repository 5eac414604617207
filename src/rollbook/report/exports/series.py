"""The numbers of a run as other tools take them: one row a step, evaluations beside them, and what the run is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.ledger import Ledger
from rollbook.records import EvalReport, EvaluationResult, ResolvedRecipe, RollbookError, RunEnd, SftReport, StepReport
from rollbook.report.facts import read_facts
from rollbook.report.tables import leaves
from rollbook.report.text import setting


class ExportRefused(RollbookError):
    """A run that cannot be handed on, or a tool that is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Numbers of one moment: `step` counts over all stages from 1, `time_s` is when they were recorded."""

    step: int
    stage: str
    time_s: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """A run as it is handed on."""

    name: str
    settings: Mapping[str, str]
    rows: tuple[Row, ...]
    status: str
    genesis: str


def handed(run: Path) -> Handed:
    """Everything numeric that a run has recorded; refuses a run without a single number."""
    facts = read_facts(run)
    recipe = facts.last(ResolvedRecipe)
    rows = tuple(_rows(facts.ledger))
    if not rows:
        raise ExportRefused("there is nothing to hand on", got=f"no step and no evaluation in {run}",
                            why="no data is not a curve of zeros", fix="wait for the first step")
    end = facts.last(RunEnd)
    told = {path: setting(value) for path, value in leaves(recipe.settings)} if recipe else {}
    return Handed(name=facts.root.name, rows=rows, status=end.status if end else "not ended", genesis=facts.ledger.genesis,
                  settings={**told, "recipe": recipe.name if recipe else "none", "scale": recipe.scale if recipe else "none"})


def _rows(ledger: Ledger) -> Iterator[Row]:
    step = 0
    try:
        for event in ledger.events():
            if event.kind in ("StepReport", "SftReport", "EvalReport", "EvaluationResult"):
                record: Any = event.record()
                step += event.kind not in ("EvalReport", "EvaluationResult")
                stage = record.policy if event.kind == "EvaluationResult" else record.stage
                yield Row(step=max(step, 1), stage=stage, time_s=event.time, values=_values(record))
    except RollbookError:       # a damaged log is handed on up to the damage, as the report draws it
        return


def _values(record: StepReport | SftReport | EvalReport | EvaluationResult) -> dict[str, float]:
    if isinstance(record, StepReport):
        return {**record.observed, **record.metrics}
    if isinstance(record, SftReport):
        return {**record.observed, "sft/loss_nats": record.loss_nats, "sft/grad_norm": record.grad_norm,
                "sft/learning_rate": record.learning_rate, "sft/tokens": float(record.tokens),
                **({} if record.repeated is None else {"sft/repeated_tokens": float(record.repeated)})}
    if isinstance(record, EvaluationResult):
        return {"eval/value": record.value.estimate, "eval/low": record.value.low, "eval/high": record.value.high,
                "eval/unscored": float(record.unscored_attempts), "eval/tokens": float(record.spend.tokens),
                **({"eval/seconds": record.observed["seconds"]} if "seconds" in record.observed else {}),
                **{f"eval/value/{family}": share for family, share in record.by_family.items()}}
    kind = "probe" if "/probe/" in record.stage else "heldout"
    return {f"eval/{kind}_accuracy": record.accuracy.estimate, f"eval/{kind}_low": record.accuracy.low,
            f"eval/{kind}_high": record.accuracy.high, f"eval/{kind}_unscored": float(record.unscored)}


def twice(run: Handed, where: Path) -> ExportRefused:
    """The refusal where the tool already holds a run of this name: its numbers would stand there twice."""
    return ExportRefused(f"{run.name} was handed on before", got=str(where), why="every number would stand there twice",
                         fix="choose another folder with --out, or remove what was written")


def missing(package: str, error: ImportError) -> ExportRefused:
    """The refusal where a tool is not installed."""
    return ExportRefused(f"the package {package} is not installed", got=str(error), why="it writes its own format",
                         fix=f"pip install '{package}'")
