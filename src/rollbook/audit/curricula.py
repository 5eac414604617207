"""Curricula drawn again: which tasks the pools gave at every wave, by seed and by what the judge had found until then.

A stage that samples while it trains tells its curriculum of groups in the order in which they ended: that is not foretold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rollbook.audit.detector import Row
from rollbook.audit.index import RunIndex
from rollbook.audit.schedule import pool
from rollbook.records import CurriculumReport, Dispatch, Scored, StepReport, TaskId
from rollbook.records.recipe import PolicyGradient
from rollbook.tasks.curriculum import PoolStream

DRAW = "draw what the curriculum's pools give, by the recipe's rule and seed"
REPORT = "report the pools as they are at the step"


@dataclass(slots=True)
class Curricula:
    """Where every curriculum stands: its pools, the waves of the open step, and how their attempts ended, by wave and group."""

    streams: dict[str, PoolStream] = field(default_factory=dict)
    waves: dict[str, list[tuple[str, Dispatch]]] = field(default_factory=dict)
    ended: dict[str, dict[str, tuple[TaskId, list[float | None]]]] = field(default_factory=dict)
    astray: set[str] = field(default_factory=set)       # stages whose draws were left once: what follows is not reported again
    drawn: int = 0

    def dispatched(self, run: RunIndex, identity: str, record: Dispatch) -> None:
        """Notes a wave."""
        step, _, wave = record.scope.rpartition("/")
        if _stage(run, step) is not None and wave.isdigit():
            self.waves.setdefault(step, []).append((identity, record))

    def row(self, run: RunIndex, row: Row) -> None:
        """Notes how an attempt ended."""
        if _stage(run, run.table or "") is None:
            return
        found = row.verdict.vector.accuracy if isinstance(row.verdict, Scored) else None
        groups = self.ended.setdefault(run.table or "", {})
        groups.setdefault(row.trace.group, (row.trace.task, []))[1].append(found)

    def stepped(self, run: RunIndex, report: StepReport) -> Iterator[tuple[str, str, str]]:
        """Whether the waves of a step are what the pools gave: (record, evidence, remedy)."""
        step = f"{report.stage}/{report.step:06d}"
        stage, waves, ended = _stage(run, step), self.waves.pop(step, []), self.ended.pop(step, {})
        if stage is None or stage.curriculum is None or run.recipe is None:
            return
        if report.stage not in self.streams:
            tasks = [run.tasks[name] for name in pool(run, stage.tasks)]
            if not tasks:
                return
            self.streams[report.stage] = PoolStream(tasks, stage.curriculum, seed=run.recipe.settings.run.seed)
        stream = self.streams[report.stage]
        stream.step = report.step
        for identity, wave in waves:
            due = [next(stream).id for _ in wave.tasks]
            self.drawn += len(due)
            if list(wave.tasks) != due and report.stage not in self.astray:
                self.astray.add(report.stage)
                wrong = sum(one != other for one, other in zip(wave.tasks, due, strict=True))
                yield identity, f"{wrong} of the {len(due)} tasks of {wave.scope} are not those that its curriculum draws", DRAW
            for group, (task, accuracies) in ended.items():
                if group.startswith(f"{wave.scope}/"):
                    stream.observe({task: accuracies})

    def reported(self, identity: str, record: CurriculumReport) -> Iterator[tuple[str, str, str]]:
        """Whether a report of pools is what the verdicts so far make of them."""
        stream = self.streams.get(record.stage)
        if stream is None or record.stage in self.astray:
            return
        due = stream.report(record.stage)
        unlike = [name for name in ("step", "pools", "measured", "moved", "attempts", "informative")
                  if getattr(due, name) != getattr(record, name)]
        if unlike:
            yield (identity, f"the curriculum of {record.stage} reports at step {record.step} "
                   + ", ".join(f"{name} {getattr(record, name)} for {getattr(due, name)}" for name in unlike), REPORT)


def _stage(run: RunIndex, step: str) -> PolicyGradient | None:
    """The stage of a step's scope, where it draws by a curriculum and samples while the learner waits."""
    name, _, number = step.partition("/")
    stage = run.recipe.settings.stages.get(name) if run.recipe is not None else None
    known = isinstance(stage, PolicyGradient) and stage.curriculum is not None and stage.asynchrony is None
    return stage if known and number.isdigit() else None  # type: ignore[return-value]
