"""Traces of the run's curated set that are imitated: made again from its rows, every one of them, as often as its row weighs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rollbook.audit.index import RunIndex
from rollbook.records import Demonstration, content_id
from rollbook.records.graph import CURATED
from rollbook.rewards.boxed import answers_rightly
from rollbook.tasks import TaskError
from rollbook.tasks.imitating import AUTHOR, imitated

TABLE = f"{CURATED}/demonstrations"
REMEDY = "imitate the traces of the curated set as they are, all that can be imitated and no other"


def times_shown(run: RunIndex, record: Demonstration) -> int:
    """How often one pass over its source shows a demonstration."""
    return run.weights.get(record.task, 1) if run.table == TABLE else 1


def is_copied(record: Demonstration) -> bool:
    """Whether a demonstration says that it is a trace of a curated set."""
    return record.author.partition(":")[0] == AUTHOR


def copied_faults(run: RunIndex, found: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What is wrong with the demonstrations `found`, by their ids, as those of the curated set: (record, evidence)."""
    kept, tokenizer = run.kept_set, run.tokenizer
    if kept is None or tokenizer is None:
        yield found[0], "traces of a curated set are imitated, and the run keeps no set or no tokenizer to make them from again"
        return
    try:
        train = [run.tasks[name] for name in run.train]
        due = [content_id(one) for one in imitated(kept[1], (train, run.raws), tokenizer, answers_rightly).shown]
    except (TaskError, KeyError) as error:
        yield found[0], f"the traces of the curated set cannot be read again: {error}"[:200]
        return
    if list(found) != due:
        strange = next((name for name in found if name not in set(due)), found[0])
        yield strange, (f"{len(found)} traces of the curated set are imitated, its rows give {len(due)} "
                        f"({len(set(found) - set(due))} are not theirs, {len(set(due) - set(found))} are left out)")
