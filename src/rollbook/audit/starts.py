"""Which published weights a stage starts from, as recipe and stage ends say."""

from __future__ import annotations

from rollbook.audit.index import RunIndex
from rollbook.records import PolicyVersion, StageEnd
from rollbook.records.graph import START, begins


class Starts:
    """Follows the ends of stages."""

    def __init__(self) -> None:
        self.ended: dict[str, str] = {}

    def take(self, record: object) -> None:
        if isinstance(record, StageEnd):
            self.ended[record.stage] = record.ended

    def of(self, run: RunIndex, stage: str) -> PolicyVersion | None:
        """The version that a stage begins with, None where the records do not say."""
        settings = run.recipe.settings.stages.get(stage) if run.recipe is not None else None
        if settings is None:
            return None
        source = begins(settings)
        if source == START:
            return run.versions.get(0)
        index = run.version_ids.get(self.ended.get(source, ""))
        return None if index is None else run.versions.get(index)
