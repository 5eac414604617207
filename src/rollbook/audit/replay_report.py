"""What a replay tells, what comes out of it, and how the process is set up for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from rollbook.audit.ruler import Mismatch, Tolerance
from rollbook.ledger import Ledger
from rollbook.ledger.sameness import Unlike
from rollbook.models.runtime import nearest, prepare, usable_cores
from rollbook.records import LedgerError, PolicyVersion, ResolvedRecipe


class Progress(Protocol):
    """What a replay tells while it goes on."""

    def stage(self, name: str, index: int, total: int, steps: int) -> None: ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReplayed:
    """A training stage as far as it was computed again; `weights` hashes what it led to, `ended` is False where it is open."""

    stage: str
    updates: int
    weights: str
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What came out. `exact`: equal bits were asked for; otherwise `tolerance` is what was allowed and `largest` what was seen.

    `same_bits`: every hash and every number came out as recorded, whether or not that was asked for.

    `mismatches` are those of the first update that differs, nothing after it was computed. `unlike` says what is not as it was.

    Example: ReplayReport(run="a", exact=True, same_bits=True, threads=2, dtype="bfloat16", unlike=(), tolerance=None, largest={},
        stages=(StageReplayed(stage="rl", updates=60, weights="ab..", ended=True),), mismatches=(), notes=())
    """

    run: str
    exact: bool
    same_bits: bool
    threads: int
    dtype: str
    unlike: tuple[Unlike, ...]
    tolerance: Tolerance | None
    largest: Mapping[str, float]
    stages: tuple[StageReplayed, ...]
    mismatches: tuple[Mismatch, ...]
    notes: tuple[str, ...]


def beginning(ledger: Ledger) -> tuple[ResolvedRecipe, PolicyVersion]:
    """The recipe and the first version; refuses a run that had none yet, and a run whose program is not on record."""
    recipe, first = next(iter(ledger.records(ResolvedRecipe)), None), next(iter(ledger.records(PolicyVersion)), None)
    if recipe is None or first is None:
        raise LedgerError("nothing of this run can be computed again", got=str(ledger.root.name),
                          why="it holds no recipe or no published policy", fix="replay a run that has begun to train")
    return recipe, first


def prepared(ledger: Ledger, recipe: ResolvedRecipe, first: PolicyVersion, threads: int | None) -> tuple[torch.dtype, int]:
    """Sets the process up as the run's was, as far as this machine can; compute dtype and threads."""
    recorded = ledger.manifest.get("threads")
    wanted = threads or (recorded if isinstance(recorded, int) else recipe.settings.run.threads)
    dtype: Any = first.probe.dtype if first.probe is not None else recipe.settings.run.dtype
    own = min(wanted, usable_cores())
    settings = dataclasses.replace(recipe.settings.run, threads=own, dtype=dtype, device=str(nearest(recipe.settings.run.device)))
    return prepare(settings), torch.get_num_threads()
