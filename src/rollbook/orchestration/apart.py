"""Was a policy trained on the tasks that it is asked? What is known of a run's training tasks, compared with a protocol's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbook.evaluation.protocols import Bundle, ProtocolRefused
from rollbook.ledger import Ledger
from rollbook.orchestration.sourcing import LIKENESS
from rollbook.records import RawTask, Task, content_id
from rollbook.records.graph import START
from rollbook.tasks import Side, decontaminate

TRAIN = "tasks/train"


def training_side(run: Path) -> Side | None:
    """The tasks that a run trains on; None where none are on record."""
    ledger = Ledger.open(run, write=False)
    rows = [event for event in ledger.events("RecordTable") if event.body["name"] == TRAIN]
    tasks = tuple(one for event in rows for one in ledger.table_records(event) if isinstance(one, Task))
    if not tasks:
        return None
    wanted = {task.raw for task in tasks}
    raws = {identity: raw for raw in ledger.records(RawTask) if (identity := content_id(raw)) in wanted}
    return Side(tasks=tasks, raws=tuple(raws.values()))


def compared(bundle: Bundle, run: Path) -> Mapping[str, Any] | None:
    """How many of a run's training tasks were compared with the protocol's; refuses where one of them stands in it, or nearly
    does. None where the run's training tasks are not on record."""
    side = training_side(run)
    if side is None:
        return None
    made = decontaminate(side, bundle.side, protocol=bundle.protocol.name, likeness=LIKENESS)
    if made.found:
        first, count = made.found[0], len({one.train for one in made.found})
        raise ProtocolRefused(f"{count} tasks that this run trained on stand in the protocol",
                              got=f"{first.train[:20]} is {first.protected[:20]} ({first.method}, {first.score:.2f})",
                              why="what was trained on is remembered, not solved",
                              fix="evaluate under a protocol of other tasks, or a policy of another run")
    return {"run_tasks": made.train_count, "protocol_tasks": made.protected_count, "train": made.train, "found": 0,
            "skipped": dict(made.skipped)}


def in_words(manifest: Mapping[str, Any]) -> str:
    """What an evaluation knows of whether its policy was trained on these tasks."""
    known = manifest.get("apart")
    if known is not None:
        return f"none of the {known['run_tasks']:,} training tasks of the policy's run stands in the protocol"
    if (manifest.get("policy") or {}).get("stage") == START:
        return "the run of this policy had not trained it yet; what was trained before is not known"
    return "whether the policy was trained on these tasks is not known"
