"""What a stage issues, held against its recipe: which tasks in which order, how many attempts, how many waves, what is selected.

A policy may look better because it was asked easier tasks, or asked until it was lucky; here every dispatch is one that the
recipe and its seed foretell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rollbook.audit.index import RunIndex
from rollbook.audit.plan import Order
from rollbook.records import Dispatch, Selection, StageEnd
from rollbook.records.graph import family_of
from rollbook.records.recipe import Comparisons, Distill, Lessons, PassRate, PolicyGradient, RejectionSampling, Revise, Stage

Fault = tuple[str, str, str]        # record, evidence, remedy
ORDER = "issue tasks in the order that recipe and seed give, every one of them"
SIZES = "issue what the recipe says, or change the recipe"
SELECT = "keep the tasks whose pass counts lie within the recipe's bounds, all of them and no other"


@dataclass(frozen=True, slots=True)
class Once:
    """A stage that samples in one go: `samples` attempts at each of the first `tasks` of a pool."""

    source: str
    tasks: int
    samples: int


@dataclass(slots=True)
class Issuing:
    """Where a policy stage stands: the next place in its order, its step, the waves of that step."""

    order: Order
    place: int = 0
    step: int = 0
    waves: int = 0
    astray: bool = False        # the order was left once: what follows is not reported again


@dataclass(slots=True)
class Flowing:
    """Where a stage stands that samples while it trains: the places in its order it may have come to, what it issued before."""

    order: Order
    places: set[int] = field(default_factory=lambda: {0})
    issued: set[str] = field(default_factory=set)
    groups: int = 0
    astray: bool = False


@dataclass(slots=True)
class Schedule:
    """Follows the dispatches of every stage that samples; what a curriculum chooses is drawn again elsewhere.

    A stage that samples while it trains issues as many as its throttle allows, in the seeded order all the same.
    """

    stages: dict[str, Issuing] = field(default_factory=dict)
    flowing: dict[str, Flowing] = field(default_factory=dict)
    candidates: dict[str, tuple[str, ...]] = field(default_factory=dict)
    followed: int = 0

    def dispatched(self, run: RunIndex, identity: str, record: Dispatch) -> Iterator[Fault]:
        """What is wrong with a dispatch by the recipe."""
        name = record.scope.partition("/")[0]
        stage = run.recipe.settings.stages.get(name) if run.recipe is not None else None
        once = None if stage is None else sampled_once(stage)
        if once is not None and record.scope == name:
            self.candidates[name] = record.tasks
            self.followed += 1
            yield from self._candidates(run, identity, record, once)
        elif isinstance(stage, PolicyGradient) and stage.asynchrony is None and record.scope.count("/") == 2:
            self.followed += 1
            yield from self._wave(run, identity, record, stage)
        elif isinstance(stage, PolicyGradient) and stage.asynchrony is not None and record.scope.startswith(f"{name}/g/"):
            self.followed += 1
            yield from self._group(run, identity, record, stage)
        elif isinstance(stage, Distill) and record.scope.count("/") == 1:
            self.followed += 1
            yield from self._lesson(run, identity, record, stage)

    def selected(self, run: RunIndex, identity: str, record: Selection) -> Iterator[Fault]:
        """What is wrong with a selection by its recipe's bounds; its counts are held against verdicts elsewhere."""
        stage = run.recipe.settings.stages.get(record.stage) if run.recipe is not None else None
        if not isinstance(stage, PassRate):
            return
        asked = self.candidates.get(record.stage, ())
        due = [task for task in asked if stage.low <= record.pass_counts.get(task, -1) <= stage.high]
        if list(record.kept) != due:
            kept, wanted = set(record.kept), set(due)
            yield (identity, f"{record.stage} keeps {len(record.kept)} tasks; {len(due)} of {len(asked)} candidates were solved "
                   f"{stage.low} to {stage.high} times ({len(kept - wanted)} kept outside the bounds, {len(wanted - kept)} left "
                   "out)", SELECT)
        rejected = {"too_easy": 0, "too_hard": 0, "unscored": 0}
        for task in asked:
            passes = record.pass_counts.get(task)
            reason = ("unscored" if passes is None else "too_hard" if passes < stage.low else "too_easy" if passes > stage.high
                      else None)
            if reason is not None:
                rejected[reason] += 1
        if record.samples != stage.samples or {**rejected, **record.rejected} != rejected:
            yield (identity, f"{record.stage} reports {record.samples} samples and the rejections {dict(record.rejected)}; the "
                   f"recipe has {stage.samples}, the pass counts give {rejected}", SELECT)

    def stepped(self, run: RunIndex, name: str, accepted: Counter[int]) -> Iterator[str]:
        """Whether a step issued too many waves or too few, from the accepted groups of each; evidence in words."""
        stage, state = run.recipe.settings.stages.get(name) if run.recipe is not None else None, self.stages.get(name)
        if not isinstance(stage, PolicyGradient) or stage.asynchrony is not None or state is None:
            return
        held = [sum(accepted[wave] for wave in range(count)) for count in range(state.waves + 1)]
        for wave in range(1, state.waves):
            if held[wave] >= stage.groups:
                yield (f"wave {wave} of step {state.step} of {name} was issued although the waves before it had {held[wave]} "
                       f"informative groups of the {stage.groups} that the recipe waits for")
        if state.waves > stage.max_waves or (state.waves < stage.max_waves and held[state.waves] < stage.groups):
            yield (f"step {state.step} of {name} ended after {state.waves} waves with {held[state.waves]} informative groups; "
                   f"the recipe goes on to {stage.groups} groups or {stage.max_waves} waves")

    def _candidates(self, run: RunIndex, identity: str, record: Dispatch, asked: Once) -> Iterator[Fault]:
        held = pool(run, asked.source)
        due = Order(held, _seed(run)).take(0, min(asked.tasks, len(held)))
        if list(record.tasks) != due:
            yield (identity, f"{record.scope} was issued {len(record.tasks)} tasks: {_apart(record.tasks, due)}", ORDER)
        if record.samples != asked.samples:
            yield (identity, f"{record.samples} attempts at each task of {record.scope} were issued, the recipe says "
                   f"{asked.samples}", SIZES)

    def _wave(self, run: RunIndex, identity: str, record: Dispatch, stage: PolicyGradient) -> Iterator[Fault]:
        name, step, wave = record.scope.split("/")
        state = self.stages.get(name)
        if state is None:
            state = self.stages[name] = Issuing(Order(drawn(run, stage.tasks), _seed(run)))
        due = (state.step, state.waves) if step == f"{state.step:06d}" else (state.step + 1, 0)
        if (step, wave) != (f"{due[0]:06d}", f"{due[1]}"):
            yield (identity, f"{record.scope} was issued where step {due[0]}, wave {due[1]} is due", ORDER)
        state.step, state.waves = due[0], due[1] + 1
        if record.samples != stage.per_task or len(record.tasks) != stage.prompts:
            yield (identity, f"{record.scope} issues {record.samples} attempts at each of {len(record.tasks)} tasks, the recipe "
                   f"says {stage.per_task} at each of {stage.prompts}", SIZES)
        due_tasks = state.order.take(state.place, len(record.tasks))
        state.place += len(record.tasks)
        if stage.curriculum is None and list(record.tasks) != due_tasks and not state.astray:
            state.astray = True
            yield (identity, f"the tasks of {record.scope} are not the next ones of the seeded order: "
                   f"{_apart(record.tasks, due_tasks)}", ORDER)

    def _group(self, run: RunIndex, identity: str, record: Dispatch, stage: PolicyGradient) -> Iterator[Fault]:
        """One group of a stage that samples while it trains: the next task, or one that was issued before and grew too old."""
        name = record.scope.partition("/")[0]
        state = self.flowing.get(name)
        if state is None:
            state = self.flowing[name] = Flowing(Order(drawn(run, stage.tasks), _seed(run)))
        if record.scope != f"{name}/g/{state.groups:06d}":
            yield (identity, f"{record.scope} was issued where group {state.groups} is due", ORDER)
        state.groups += 1
        if record.samples != stage.per_task or len(record.tasks) != 1:
            yield (identity, f"{record.scope} issues {record.samples} attempts at each of {len(record.tasks)} tasks, the recipe "
                   f"says {stage.per_task} at one", SIZES)
        task = record.tasks[0]
        again = stage.asynchrony is not None and stage.asynchrony.late == "redispatch" and task in state.issued
        found = {place + 1 for place in state.places if state.order.take(place, 1) == [task]} | (state.places if again else set())
        state.issued.add(task)
        if not found and stage.curriculum is None and not state.astray:
            state.astray = True
            yield (identity, f"the task of {record.scope} is not the next one of the seeded order: "
                   f"{_apart(record.tasks, state.order.take(max(state.places), 1))}", ORDER)
        state.places = found or state.places

    def _lesson(self, run: RunIndex, identity: str, record: Dispatch, stage: Distill) -> Iterator[Fault]:
        """One step of a distillation: the next tasks of the seeded order, each as often as the recipe says."""
        name, step = record.scope.split("/")
        state = self.stages.get(name)
        if state is None:
            state = self.stages[name] = Issuing(Order(drawn(run, stage.tasks), _seed(run)))
        state.step += 1
        due = state.order.take(state.place, stage.prompts)
        state.place += stage.prompts
        if step != f"{state.step:06d}" or record.samples != stage.per_task or list(record.tasks) != due:
            yield (identity, f"{record.scope} issues {record.samples} attempts at each of {len(record.tasks)} tasks; step "
                   f"{state.step} is {stage.per_task} at each of the next {stage.prompts} of the seeded order", ORDER)

    def over(self, run: RunIndex, end: StageEnd) -> Iterator[tuple[str, str]]:
        """Whether a distillation went on as long as the recipe says."""
        stage = run.recipe.settings.stages.get(end.stage) if run.recipe is not None else None
        taken = self.stages[end.stage].step if end.stage in self.stages else 0
        if isinstance(stage, Distill) and taken != stage.steps:
            yield f"{end.stage} ended after {taken} steps, the recipe says {stage.steps}", "train as long as the recipe says"


def sampled_once(stage: Stage) -> Once | None:
    """What a stage that samples in one go asks for; None for the other kinds."""
    match stage:
        case PassRate():
            return Once(stage.tasks, stage.candidates, stage.samples)
        case RejectionSampling():
            return Once(stage.tasks, stage.prompts, stage.samples)
        case Revise():
            return Once(stage.tasks, stage.prompts, 1)
        case Lessons():
            return Once(stage.tasks, stage.prompts, stage.answers)
        case Comparisons():
            return Once(stage.tasks, stage.prompts, stage.per_task)
        case _:
            return None


def pool(run: RunIndex, source: str) -> tuple[str, ...]:
    """The training tasks, those of one family, or those that the stage `source` selected, in the order of the training side."""
    if source == "train":
        return run.train
    if (family := family_of(source)) is not None:
        return tuple(task for task in run.train if run.tasks[task].family == family)
    chosen = run.selections.get(source)
    kept = set(chosen.kept) if chosen is not None else set()
    return tuple(task for task in run.train if task in kept)


def drawn(run: RunIndex, source: str) -> tuple[str, ...]:
    """What one pass over a pool draws: every task as often as its row of the curated set weighs, once where there is none."""
    return tuple(task for task in pool(run, source) for _ in range(run.weights.get(task, 1)))


def _seed(run: RunIndex) -> int:
    return run.recipe.settings.run.seed if run.recipe is not None else 0


def _apart(found: tuple[str, ...], due: list[str]) -> str:
    """Where two lists of tasks differ, in words."""
    same = set(found) == set(due) and len(found) == len(due)
    at = next((i for i, (a, b) in enumerate(zip(found, due, strict=False)) if a != b), min(len(found), len(due)))
    here = f"{found[at][:17]} for {due[at][:17]}" if at < min(len(found), len(due)) else "another number"
    return f"from place {at} on {here}" + (" (the same tasks in another order)" if same else
                                           f" ({len(set(due) - set(found))} of {len(due)} left out)")
