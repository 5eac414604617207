"""Small runs with one fault in the producer: the records stay consistent and every hash holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from small_runs import Quiet, small_recipe

from rollbook.audit.detectors import all_detectors
from rollbook.audit.passage import audit_run, read
from rollbook.ledger import Ledger
from rollbook.orchestration.run import run_recipe
from rollbook.records.recipe import Pretrained

QUICK = ("stages.cold_start.steps=2", "stages.cold_start.optimizer.warmup_steps=0", "stages.rl.steps=2",
         "stages.rl.optimizer.warmup_steps=0", "stages.rl.probe=4", "stages.rl.probe_every=1")


def quick_recipe(warm: Path, *overrides: str):
    """A run of two supervised and two policy-gradient steps that starts from a model which knows the format already."""
    recipe = small_recipe(*QUICK, *overrides) if not overrides else small_recipe(*_merged(QUICK, overrides))
    settings = dataclasses.replace(recipe.settings, model=Pretrained(path=str(warm), context=recipe.settings.model.context))
    return dataclasses.replace(recipe, settings=settings)


def _merged(base, overrides):
    replaced = {one.split("=")[0] for one in overrides}
    return (*(one for one in base if one.split("=")[0] not in replaced), *overrides)


def attacked(warm: Path, out: Path, *overrides: str):
    """Runs to the end with whatever faults the caller has put into the producer; the run's folder."""
    assert run_recipe(quick_recipe(warm, *overrides), out, Quiet()) == 0
    return out


def rows(run: Path):
    """The audit's rows by stage number."""
    return {row.stage: row for row in audit_run(run).rows}


def assert_caught(run: Path, stage: int, *, record: str, evidence: str = "") -> None:
    """The row of this stage fails and names a record of this kind, and the evidence holds these words."""
    row = rows(run)[stage]
    assert row.result == "fail", row
    assert row.record is not None and row.record.startswith(record), row
    assert evidence in row.evidence, row
    assert row.remedy


def assert_found(run: Path, stage: int, *, record: str, evidence: str) -> None:
    """Among everything that this stage's detector finds, though another finding comes first, is this record with these words."""
    detectors = all_detectors()
    index = read(Ledger.open(run, write=False), detectors)
    (detector,) = (one for one in detectors if one.stage == stage)
    detector.finish(index)
    assert any(one.record.startswith(record) and evidence in one.evidence for one in detector.failures), detector.failures
