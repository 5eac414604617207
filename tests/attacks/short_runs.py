"""The shortest complete runs; equal texts are re-scored under the changed conditions once, not once a run."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from attacked import attacked

from rollbook.orchestration import proof
from rollbook.orchestration import run as producer

SHORT = ("stages.rl.steps=1", "stages.cold_start.steps=1", "stages.rl.probe=0", "stages.rl.probe_every=0",
         "stages.select.candidates=6", "reward.verify_workers=1")
REAL = proof.rescore


@functools.cache
def rescored(judge, settings, items):
    return REAL(judge, settings, items)


def short(warm: Path, out: Path, *overrides: str) -> Path:
    """A run of one supervised and one policy-gradient step with whatever faults the caller has put into the producer."""
    with pytest.MonkeyPatch.context() as m:
        m.setattr(proof, "rescore", lambda judge, settings, items: rescored(judge, settings, tuple(items)))
        return attacked(warm, out, *SHORT, *overrides)


def begun(warm: Path, out: Path) -> Path:
    """A run that stops before its first stage: its tasks, split, environment and first policy are on record."""
    with pytest.MonkeyPatch.context() as m:
        m.setattr(producer, "_go", lambda session, state: 0)
        m.setattr(producer, "check_written", lambda settings, train: None)      # no stage will want demonstrations
        return short(warm, out)


@functools.cache
def clean_run(warm: Path) -> Path:
    """One run without a fault, for every stage that looks at it."""
    return short(warm, warm.parents[2] / "clean")
