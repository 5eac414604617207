"""What stages 1 to 3 share: the tables of tasks in their order, and what a table of trajectories is for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rollbook.audit.index import RunIndex
from rollbook.records import RawTask, Task
from rollbook.records.recipe import PassRate, PolicyGradient

Use = Literal["evaluation", "selection", "training"]
TRAIN = "tasks/train"
PROTECTED = "protocols/"      # tables of other protocols' tasks: compared with, never used


@dataclass(slots=True)
class TaskTables:
    """The task ids of every table of tasks, in order; the training side is `tasks/train`, every other table is kept apart."""

    tables: dict[str, list[str]] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def take(self, run: RunIndex, identity: str, record: object) -> None:
        if isinstance(record, Task) and run.table is not None:
            self.tables.setdefault(run.table, []).append(identity)
            self.places.setdefault(identity, []).append(run.table)

    @property
    def train(self) -> list[str]:
        return self.tables.get(TRAIN, [])

    @property
    def heldout(self) -> list[str]:
        """The tasks of all tables but the training side's, each once."""
        return list(dict.fromkeys(task for name, tasks in self.tables.items() if name != TRAIN for task in tasks))

    def trains(self, task: str) -> bool:
        return TRAIN in self.places.get(task, ())

    def held(self, task: str) -> bool:
        return any(name != TRAIN for name in self.places.get(task, ()))


def use_of(run: RunIndex, table: str) -> Use:
    """What the trajectories of a table were sampled for; whatever is no evaluation and no selection may reach the weights."""
    head, _, rest = table.partition("/")
    stage = run.recipe.settings.stages.get(head) if run.recipe is not None else None
    if isinstance(stage, PolicyGradient) and rest.isdigit():
        return "training"
    if isinstance(stage, PassRate) and not rest:
        return "selection"
    return "evaluation" if head == "eval" and rest else "training"


def foreign(run: RunIndex) -> bool:
    """Whether the record at hand is a task of a registered protocol, which the run only keeps apart from."""
    return (run.table or "").startswith(PROTECTED)


def raw_of(run: RunIndex, task: str) -> RawTask | None:
    """The raw task that a task of the run was made from, if both are on record."""
    contract = run.tasks.get(task)
    return None if contract is None else run.raws.get(contract.raw)
