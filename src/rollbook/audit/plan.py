"""What recipe and seed decide before anything is sampled: the raw tasks, the two sides, the order in which tasks are issued.

Computed again here; the order without a line of the code that issues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollbook.ledger import environment_manifest
from rollbook.records import CuratedSet, RawTask, ResolvedRecipe, Task, content_id
from rollbook.records.recipe import TaskSettings
from rollbook.tasks import Acquired, Likeness, Split, TaskError, acquire, shares, split
from rollbook.tasks.curated import curated

LIKENESS = Likeness(ngram=13, jaccard=0.8, boilerplate=0.05)
REGENERATED = 20_000        # tasks of both sides together, up to which they are generated again


@dataclass(slots=True)
class Order:
    """The endless sequence in which a pool of tasks is issued: every pass over it is a permutation of its own, by the seed."""

    pool: tuple[str, ...]
    seed: int
    passes: dict[int, Sequence[int]] = field(default_factory=dict)

    def take(self, start: int, count: int) -> list[str]:
        """`count` tasks from place `start` on; none where the pool is empty."""
        found: list[str] = []
        for place in range(start, start + count if self.pool else start):
            number, at = divmod(place, len(self.pool))
            if number not in self.passes:
                self.passes = {number: np.random.default_rng([self.seed, number]).permutation(len(self.pool)).tolist()}
            found.append(self.pool[self.passes[number][at]])
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """Raw tasks and both sides as the recipe's generators and seeds give them, by content id and in order.

    `contracts` maps the id of a raw task to the contract that is made of it, `unit` is what the split keeps apart.
    """

    raw: tuple[str, ...]
    train: tuple[str, ...]
    heldout: tuple[str, ...]
    contracts: Mapping[str, Task]
    unit: str


def generated(recipe: ResolvedRecipe | None, raws: Mapping[str, RawTask], kept: tuple[CuratedSet, bytes] | None = None
              ) -> Generated | str:
    """The tasks generated again, or read again from the run's own copy of its curated set, or why they cannot be."""
    if recipe is None:
        return "the run has no recipe"
    if recipe.settings.environment is not None:
        return "they come from the environment"
    settings = recipe.settings.tasks
    if isinstance(settings, TaskSettings) and settings.curated is not None:
        return _read_again(settings, kept)
    if not isinstance(settings, TaskSettings) or settings.train + settings.heldout > REGENERATED:
        return f"more than {REGENERATED} tasks, or not from generators"
    dates = Counter(raw.acquired_at for raw in raws.values())
    if not dates:
        return "no raw task is on record"
    try:
        acquired = acquire(settings, acquired_at=dates.most_common(1)[0][0])     # whatever is of another day was not drawn
        sides = split(acquired.tasks, train=settings.train, heldout=settings.heldout, seed=settings.seed,
                      weights=shares(settings))
    except (TaskError, ImportError) as error:
        return f"the generators refuse the recipe's tasks ({error})"[:200]
    return _named(acquired, sides)


def _read_again(settings: TaskSettings, kept: tuple[CuratedSet, bytes] | None) -> Generated | str:
    if kept is None:
        return "the run keeps no copy of its curated set"
    try:
        return _named(*curated(*kept, settings, likeness=LIKENESS))
    except TaskError as error:
        return f"the curated set does not give the recipe's tasks ({error})"[:200]


def _named(acquired: Acquired, sides: Split) -> Generated:
    return Generated(raw=tuple(content_id(raw) for raw in acquired.raw), train=tuple(task.id for task in sides.train),
                     heldout=tuple(task.id for task in sides.heldout), contracts={task.raw: task for task in acquired.tasks},
                     unit=sides.manifest.unit)


def excuse(manifest: Mapping[str, Any]) -> str | None:
    """What may make a draw come out otherwise here: another code of this package, another package of generators."""
    here = environment_manifest()
    code, packages = manifest.get("code"), manifest.get("packages")
    if not isinstance(code, Mapping) or code.get("source") != here["code"]["source"]:
        return "the code here is not that of the run"
    if not isinstance(packages, Mapping) or packages.get("reasoning-gym") != here["packages"]["reasoning-gym"]:
        return "reasoning-gym here is not that of the run"
    return None
