"""Conversations of a file made again from the bytes that the run kept, and held against what it learnt from."""

from __future__ import annotations

from collections.abc import Iterator

from rollbook.audit.index import RunIndex
from rollbook.records import Collected, Demonstration, Ranking, RollbookError, content_id, digest
from rollbook.records.recipe import Conversations
from rollbook.rollouts.conversations import Unreadable
from rollbook.rollouts.given import given

RENDER = "learn from the file as the recipe says: every row once, in order, rendered as at serving time"


class CollectedRows:
    """Follows the demonstrations and rankings of stages that take them from files."""

    def __init__(self) -> None:
        self.shown: dict[str, list[str]] = {}
        self.made: dict[str, int] = {}

    def seen(self, run: RunIndex, identity: str, record: Demonstration | Ranking) -> None:
        """One row that such a stage left."""
        name = (run.table or "").partition("/")[0]
        if isinstance(_stage(run, name), Conversations):
            self.shown.setdefault(name, []).append(identity)

    def collected(self, run: RunIndex, record: Collected) -> Iterator[str]:
        """What is wrong with the rows of a stage, from its file."""
        stage, tokenizer = _stage(run, record.stage), run.tokenizer
        if not isinstance(stage, Conversations) or tokenizer is None:
            yield f"{record.stage} takes no conversations from a file, or the run kept no tokenizer to render them with"
            return
        self.made[record.stage] = record.kept
        if stage.sha256 != record.sha256:
            yield f"{record.stage} read the file {record.sha256[:12]}, the recipe names {str(stage.sha256)[:12]}"
        try:
            data = run.ledger.get(record.sha256)
            due = given(data, record.suffix, stage, tokenizer, digest(data))
        except (RollbookError, Unreadable) as error:
            yield f"the file of {record.stage} cannot be read again: {error}"
            return
        wanted = [content_id(one) for one in (*due.demonstrations, *due.rankings)]
        found = self.shown.get(record.stage, [])
        if found != wanted:
            at = next((at for at, (one, other) in enumerate(zip(found, wanted, strict=False)) if one != other),
                      min(len(found), len(wanted)))
            yield (f"{record.stage} left {len(found)} rows, its file gives {len(wanted)}; they differ from row {at + 1} on "
                   f"({len(set(wanted) - set(found))} left out, {len(set(found) - set(wanted))} not due)")
        if (record.rows, record.kept, dict(record.left)) != (due.rows, len(wanted), due.left):
            yield (f"{record.stage} reports {record.kept} of {record.rows} rows and leaves out {dict(record.left)}; its file "
                   f"gives {len(wanted)} of {due.rows} and {due.left}"[:300])

    def missing(self, run: RunIndex) -> Iterator[str]:
        """Stages of a complete run whose file is not on record."""
        for name, stage in run.recipe.settings.stages.items() if run.recipe is not None and run.complete else ():
            if isinstance(stage, Conversations) and name not in self.made:
                yield f"the file of {name} is not on record"


def _stage(run: RunIndex, name: str) -> object:
    return run.recipe.settings.stages.get(name) if run.recipe is not None else None
