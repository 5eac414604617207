"""Lessons written again: every one is what a program makes of the stage's answers and their verdicts, and none is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rollbook.audit.detector import Row
from rollbook.audit.index import RunIndex
from rollbook.audit.plan import Order
from rollbook.audit.schedule import pool
from rollbook.records import Demonstration
from rollbook.records.recipe import Lessons
from rollbook.rewards.judges.lessons import Told, lessons, told
from rollbook.tasks import TaskError, solution

TEACH = "write the lessons that the answers and their verdicts give, all of them and nothing else"
Asked = tuple[str, str, str]        # for what, what is asked, what is to be said


@dataclass(slots=True)
class Taught:
    """Holds the answers of the stages that write lessons, until their lessons come and the stage is over."""

    answers: dict[str, dict[str, list[Told]]] = field(default_factory=dict)
    due: dict[str, list[Asked]] = field(default_factory=dict)
    shown: dict[str, int] = field(default_factory=dict)

    def row(self, run: RunIndex, row: Row) -> None:
        """Notes an answer of such a stage."""
        name = run.table or ""
        if _stage(run, name) is not None and (one := told(row.trace, row.verdict)) is not None:
            self.answers.setdefault(name, {}).setdefault(row.trace.task, []).append(one)

    def demonstrated(self, run: RunIndex, name: str, record: Demonstration) -> Iterator[tuple[str, str]]:
        """Whether a demonstration is the lesson that is due in its place."""
        stage = _stage(run, name)
        if stage is None:
            return
        if name not in self.due:
            self.due[name] = list(_lessons(run, stage, self.answers.pop(name, {})))
        place, due = self.shown.get(name, 0), self.due[name]
        self.shown[name] = place + 1
        given = (record.task, record.messages[0].content, record.messages[-1].content)
        if place >= len(due) or given != due[place]:
            yield f"lesson {place + 1} of {name} is not the one that its answers and their verdicts give", TEACH

    def over(self, run: RunIndex, name: str) -> Iterator[tuple[str, str]]:
        """Whether all lessons were written."""
        due, shown = self.due.pop(name, []), self.shown.pop(name, 0)
        if _stage(run, name) is not None and (not shown or shown < len(due)):
            yield f"{name} wrote {shown} lessons, its answers give {len(due) or 'some'}", TEACH


def _stage(run: RunIndex, name: str) -> Lessons | None:
    stage = run.recipe.settings.stages.get(name) if run.recipe is not None else None
    return stage if isinstance(stage, Lessons) else None


def _lessons(run: RunIndex, stage: Lessons, answers: dict[str, list[Told]]) -> Iterator[Asked]:
    """The lessons of a stage in their order, with the names they go by."""
    assert run.recipe is not None
    seed = run.recipe.settings.run.seed
    principles = [one for _, one in sorted(stage.principles.items())]
    held = pool(run, stage.tasks)
    for name in Order(held, seed).take(0, min(stage.prompts, len(held))):
        task = run.tasks[name]
        try:
            right = solution(task, stage.style, seed)
        except TaskError:
            continue
        for one in lessons(task.prompt[-1].content, answers.get(name, ()), right, principles, seed=seed,
                           teach=stage.teach):
            yield f"lesson:{one.kind}:{name}", one.question, one.answer
