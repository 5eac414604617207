"""Two sides of one task set, apart by canonical problem: never by seed, which leaks."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rollbook.records import SplitManifest, Task, TaskId, canonical, digest
from rollbook.tasks.errors import TaskError


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The training side, the held-out side (one task per canonical problem), and the manifest that proves them apart.

    `weights` says how often one pass over the training side draws a task, where that is more than once.
    """

    train: tuple[Task, ...]
    heldout: tuple[Task, ...]
    manifest: SplitManifest
    weights: Mapping[TaskId, int] = field(default_factory=dict)


def split(tasks: Sequence[Task], *, train: int, heldout: int, seed: int, weights: Mapping[str, float] | None = None) -> Split:
    """`train` and `heldout` tasks with no canonical problem on both sides, families in the proportions of `weights`.

    Without weights the proportions are those of `tasks`. A canonical problem that several families share goes to one side
    with all its forms. Deterministic in the arguments, whatever the order of `tasks`.
    """
    families = _by_family(tasks)
    proportions = dict(weights) if weights is not None else {name: float(len(found)) for name, found in families.items()}
    _check(families, proportions, train, heldout)
    rng = random.Random(f"split/{seed}")
    held: list[Task] = []
    held_units: set[str] = set()
    for name, count in apportion(heldout, proportions).items():
        chosen = _one_per_unit(families[name], held_units, rng)[:count]
        _enough(name, "heldout", count, len(chosen), families[name])
        held += chosen
        held_units |= {task.canonical for task in chosen}
    kept: list[Task] = []
    for name, count in apportion(train, proportions).items():
        left = [task for task in _shuffled(families[name], rng) if task.canonical not in held_units]
        _enough(name, "train", count, len(left), families[name])
        kept += left[:count]
    kept, held = _shuffled(kept, rng), _shuffled(held, rng)
    return Split(train=tuple(kept), heldout=tuple(held), manifest=_manifest(kept, held))


def apportion(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """`total` divided in proportion to `weights` by largest remainder; the parts sum to `total`."""
    whole = sum(weights.values())
    exact = {name: total * weight / whole for name, weight in weights.items()} if total else dict.fromkeys(weights, 0.0)
    parts = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(parts, key=lambda name: (parts[name] - exact[name], name))
    for name in by_remainder[: total - sum(parts.values())]:
        parts[name] += 1
    return parts


def units_digest(units: Iterable[str]) -> str:
    """The hash of a side's sorted split units."""
    return digest(canonical(sorted(set(units))))


def _manifest(train: Sequence[Task], heldout: Sequence[Task]) -> SplitManifest:
    sides = {"train": train, "heldout": heldout}
    units = {side: {task.canonical for task in members} for side, members in sides.items()}
    return SplitManifest(unit="canonical problem", generators=tuple(sorted({task.family for task in (*train, *heldout)})),
                         counts={side: (len(members), len(units[side])) for side, members in sides.items()},
                         units={side: units_digest(found) for side, found in units.items()},
                         overlap=len(units["train"] & units["heldout"]), in_family=True)


def _by_family(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    found: dict[str, list[Task]] = defaultdict(list)
    for task in sorted(tasks, key=lambda task: (task.family, task.canonical, task.prompt[-1].content, task.id)):
        found[task.family].append(task)
    return dict(found)


def _shuffled(tasks: Sequence[Task], rng: random.Random) -> list[Task]:
    return rng.sample(tasks, len(tasks))


def _one_per_unit(tasks: Sequence[Task], taken: set[str], rng: random.Random) -> list[Task]:
    first: dict[str, Task] = {}
    for task in _shuffled(tasks, rng):
        if task.canonical not in taken:
            first.setdefault(task.canonical, task)
    return list(first.values())


def _check(families: Mapping[str, list[Task]], weights: Mapping[str, float], train: int, heldout: int) -> None:
    if train < 0 or heldout < 0:
        raise TaskError("a split cannot have fewer than 0 tasks on a side", got=f"train {train}, heldout {heldout}")
    if not families and train + heldout:
        raise TaskError(f"a split of {train} + {heldout} tasks needs tasks", got="none")
    missing = sorted(set(families) ^ set(weights))
    if missing:
        raise TaskError("split weights and tasks must name the same families", got=", ".join(missing),
                        why="a family without tasks or without a weight would vanish silently")


def _enough(name: str, side: str, wanted: int, found: int, tasks: Sequence[Task]) -> None:
    if found < wanted:
        units = len({task.canonical for task in tasks})
        raise TaskError(f"family {name} has not enough canonical problems for the {side} side: it needs {wanted}",
                        got=f"{found} ({units} canonical problems in {len(tasks)} tasks exist in all)",
                        why="no canonical problem may stand on both sides, and held-out problems are counted once",
                        fix="ask for fewer tasks, raise max_operand or the number of terms, or lower the family's weight")
