"""Attacked runs that share one judge and one proof of the environment, for the stages that come after them: half the time."""

from __future__ import annotations

import atexit
import functools
import shutil
from pathlib import Path

from attacked import attacked, rows

from rollbook.orchestration import judges
from rollbook.orchestration import run as orchestration

PROVE = orchestration.prove
PROVED = []
JUDGE = judges.MagistralJudge


def prove_once(*given):
    """The proof that the first run of this process made: tasks, judge and environment are the same in all of them."""
    if not PROVED:
        PROVED.append(PROVE(*given))
    return PROVED[0]


@functools.cache
def judge_once(settings):
    """One judge for these settings, with its processes, until the tests are over."""
    judge = JUDGE(settings)
    atexit.register(judge.close)
    judge.close = lambda: None
    return judge


def attack(monkeypatch, warm, out, *patches, overrides=()):
    """A run under (owner, name, replacement) patches that are gone when it ends; its folder."""
    with monkeypatch.context() as m:
        m.setattr(orchestration, "prove", prove_once)
        m.setattr(judges, "MagistralJudge", judge_once)
        for owner, name, replacement in patches:
            m.setattr(owner, name, replacement)
        return attacked(warm, out, *overrides)


@functools.cache
def clean_run(warm: Path):
    """The folder of one run without a fault."""
    out = warm.parents[2] / "without_fault"
    shutil.rmtree(out, ignore_errors=True)
    return attacked(warm, out)


@functools.cache
def clean_rows(warm: Path):
    """The audit's rows of that run, by stage."""
    return rows(clean_run(warm))
