"""Stage 3: splits. Does one problem stand on both sides, and did training and evaluation keep to theirs?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rollbook.audit.detector import Detector, Row, StoredStep
from rollbook.audit.index import RunIndex
from rollbook.audit.plan import excuse
from rollbook.audit.sources import TaskTables, foreign, raw_of, use_of
from rollbook.records import Demonstration, EvalReport, EvaluationProtocol, Selection, SplitManifest
from rollbook.tasks import Likeness
from rollbook.tasks.decontamination import near_duplicates, told_by_start
from rollbook.tasks.splits import units_digest
from rollbook.tasks.units import split_unit

LIKENESS = Likeness(ngram=13, jaccard=0.8, boilerplate=0.05)
APART = "split by the problem itself, and train again"


class SplitsDetector(Detector):
    """Finds every task's unit again from its raw text, compares the manifest, and watches on which side each task is used."""

    stage, name = 3, "splits"
    absent = "the run holds no split"

    def __init__(self) -> None:
        super().__init__()
        self.tables = TaskTables()
        self.manifests: dict[str, SplitManifest] = {}
        self.reports: dict[str, bool] = {}          # report -> whether it says that both sides share a generator
        self.used = 0
        self.outside = False                        # an evaluation by itself: what was trained on is another run's affair
        self.first: str | None = None               # the first trajectory
        self.mistaken: set[tuple[str, str]] = set()

    def record(self, run: RunIndex, identity: str, record: object) -> None:
        if not foreign(run):
            self.tables.take(run, identity, record)
        match record:
            case SplitManifest():
                self.manifests[identity] = record
                if self.first is not None:
                    self.fail(identity, f"it was recorded after {self.first} was sampled", "record the split before anything is "
                              "sampled")
            case EvalReport():
                self.reports[identity] = record.in_family
                self._side(identity, "evaluated", [task for task in record.outcomes if not self._may(task, "evaluation")])
            case Selection():
                self._side(identity, "selected for training", [task for task in record.kept if not self.tables.trains(task)])
            case EvaluationProtocol():
                self.outside = True
            case Demonstration() if record.task in run.tasks or record.task.startswith("Task:"):
                self.used += 1
                self._side(identity, "demonstrated", [] if self.tables.trains(record.task) else [record.task])
            case _:
                pass

    def row(self, run: RunIndex, row: Row) -> None:
        self.first = self.first or row.id
        if not self.tables.tables:
            return
        self.used += 1
        use, task = use_of(run, run.table or ""), row.trace.task
        if not self._may(task, use) and (use, task) not in self.mistaken:
            self.mistaken.add((use, task))
            self._side(row.id, f"sampled for {use}", [task])

    def step(self, run: RunIndex, step: StoredStep) -> None:
        """What the optimizer was given, whatever its trajectories were called."""
        held = [run.recent.get(trace) for trace in step.batch.traces]
        self._side(step.batch_id, "trained on", [one[0].task for one in held if one is not None and self.tables.tables
                                                 and not self.tables.trains(one[0].task)])

    def finish(self, run: RunIndex) -> None:
        if not self.tables.tables:
            if self.first is not None and run.recipe is not None:
                self.fail(self.first, "it was sampled for a task, and no table holds the run's tasks",
                          "record both sides of the split")
            elif self.manifests:
                self.note("the run keeps no tasks, so that its split cannot be checked")
            return
        train, heldout = self.tables.train, self.tables.heldout
        if self.outside and run.recipe is None and not (train or self.manifests):
            self.note("an evaluation by itself has one side; the run of its policy shows the other")
            return
        if not self.manifests and (self.used or run.complete):
            self.fail("SplitManifest", f"{len(train)} and {len(heldout)} tasks were used without a manifest of their split",
                      "record the split before anything is sampled")
        units = {task: self._unit(run, task) for task in (*train, *heldout)}
        self._both_sides(run, units)
        self._look_alikes(run, units)
        self._drawn(run)
        family = self._in_family(run)
        for identity, manifest in self.manifests.items():
            self._manifest(run, identity, manifest, units)
            if manifest.in_family != family:
                self.fail(identity, f"in_family is {manifest.in_family}, and the sides share {'a' if family else 'no'} generator",
                          "declare an in-family evaluation: its gain says nothing about other problems")
        for identity, said in self.reports.items():
            if said != family:
                self.fail(identity, f"the report says in_family {said}, and the sides share {'a' if family else 'no'} generator",
                          "take the claim from the split's manifest")
        if self.manifests:
            self.checked(len(units) + self.used)
            if family:
                self.note("the evaluation is in-family: both sides come from one generator")

    def _may(self, task: str, use: str) -> bool:
        return self.tables.held(task) if use == "evaluation" else self.tables.trains(task)

    def _side(self, record: str, what: str, tasks: Sequence[str]) -> None:
        if tasks and self.tables.tables:
            places = self.tables.places.get(tasks[0])
            where = f"stands in {', '.join(places)}" if places else "stands in no table of tasks"
            self.fail(record, f"{tasks[0]} was {what} and {where}" + (f" ({len(tasks)} such tasks)" if len(tasks) > 1 else ""),
                      "train on the training side and evaluate on the other; what came of this run measures memory")

    def _unit(self, run: RunIndex, task: str) -> str:
        """The unit as the raw text gives it; the task's own word where only its source could know."""
        contract, raw = run.tasks[task], raw_of(run, task)
        found = None if raw is None else split_unit(raw)
        if found is not None and found != contract.canonical:
            self.fail(task, f"its split unit is {contract.canonical!r}, and the raw task says {found!r}",
                      "derive the unit from the problem, not from its seed or wording")
        return contract.canonical if found is None else found

    def _both_sides(self, run: RunIndex, units: dict[str, str]) -> None:
        """The same unit, the same raw task or the same draw of a generator on both sides."""
        marks: dict[tuple[str, ...], str] = {}
        for task in self.tables.heldout:
            marks.update(dict.fromkeys(_marks(run, task, units[task]), task))
        for task in self.tables.train:
            shared = next((mark for mark in _marks(run, task, units[task]) if mark in marks), None)
            if shared is not None:
                self.fail(task, f"it shares the {shared[0]} {' '.join(shared[1:])!r} with the held-out {marks[shared]}", APART)

    def _look_alikes(self, run: RunIndex, units: dict[str, str]) -> None:
        """Near-duplicates across the sides, among tasks whose unit their text does not give."""
        texts: dict[str, dict[str, str]] = {"train": {}, "heldout": {}}
        for side, tasks in (("train", self.tables.train), ("heldout", self.tables.heldout)):
            for task in tasks:
                raw = raw_of(run, task)
                if raw is not None and split_unit(raw) is None:
                    texts[side][task] = raw.content
        held = {**texts["train"], **texts["heldout"]}
        if told_by_start(list(held.values()), [run.tasks[task].initial_state for task in held]):
            self.note(f"{len(held)} tasks are asked in the same words: where each starts tells them apart, and their own units")
            return
        if held:
            self.note(f"{len(texts['train']) + len(texts['heldout'])} of {len(units)} tasks were compared by likeness: "
                      "their text does not give their unit")
        names = list(texts["train"]), list(texts["heldout"])
        for one, other, score in near_duplicates(list(texts["train"].values()), list(texts["heldout"].values()), LIKENESS):
            self.fail(names[0][one], f"it is a near-duplicate ({score:.2f}) of the held-out {names[1][other]}", APART)

    def _drawn(self, run: RunIndex) -> None:
        """Each task once in its table, and the sides as recipe and seed split them: the held-out side was not chosen."""
        for name, tasks in self.tables.tables.items():
            if len(set(tasks)) < len(tasks):
                twice = next(task for task, count in Counter(tasks).items() if count > 1)
                self.fail(twice, f"it stands {tasks.count(twice)} times in {name}: it weighs more than others", APART)
        due = run.generated
        if isinstance(due, str):
            return
        for name, tasks, wanted in (("train", self.tables.train, due.train), ("heldout", self.tables.heldout, due.heldout)):
            if tuple(tasks) == wanted or f"tasks/{name}" not in self.tables.tables:
                continue
            missing = [task for task in wanted if task not in set(tasks)]
            found = f"{len(missing)} of {len(wanted)} tasks of the {name} side" if missing else f"the order of the {name} side"
            if (why := excuse(run.ledger.manifest)) is not None:
                self.note(f"split again, {found} comes out otherwise: {why}")
            else:
                self.fail(next((task for task in tasks if task not in set(wanted)), tasks[0] if tasks else name),
                          f"{found} are not as the recipe's seed splits: {len(tasks)} tasks stand in the table",
                          "split by the recipe's seed, and keep to it")

    def _in_family(self, run: RunIndex) -> bool:
        sides = [{_source(run, task) for task in tasks} for tasks in (self.tables.train, self.tables.heldout)]
        return bool((sides[0] & sides[1]) - {""})

    def _manifest(self, run: RunIndex, identity: str, manifest: SplitManifest, units: dict[str, str]) -> None:
        for side, tasks in (("train", self.tables.train), ("heldout", self.tables.heldout)):
            own = {units[task] for task in tasks}
            if tuple(manifest.counts.get(side, ())) != (len(tasks), len(own)):
                self.fail(identity, f"it counts {manifest.counts.get(side)} tasks and units on the {side} side, and there are "
                          f"{(len(tasks), len(own))}", "write the manifest from the tables")
            elif manifest.units.get(side) != units_digest(own):
                self.fail(identity, f"its hash of the {side} side's units is not that of the units in the tables",
                          "write the manifest from the tables")
        due = run.generated
        if not isinstance(due, str) and manifest.unit != due.unit:
            self.fail(identity, f"it calls the split unit a {manifest.unit}, the recipe's split keeps the {due.unit} apart",
                      "write the manifest from the split")
        families = {run.tasks[task].family for task in units}
        if set(manifest.generators) != families:
            self.fail(identity, f"it names the generators {', '.join(manifest.generators)}, and the tasks come from "
                      f"{', '.join(sorted(families))}", "write the manifest from the tables")


def _marks(run: RunIndex, task: str, unit: str) -> list[tuple[str, ...]]:
    """What no other side may share with a task."""
    raw, found = raw_of(run, task), [("split unit", unit), ("raw task", run.tasks[task].raw), ("task", task)]
    if raw is not None and {"generator", "seed", "index"} <= set(raw.lineage):
        found.append(("draw", raw.source, raw.lineage["seed"], raw.lineage["index"]))
    return found


def _source(run: RunIndex, task: str) -> str:
    """The generator or repository a task comes from, its source where it names neither; empty where the raw task is not kept."""
    raw = raw_of(run, task)
    if raw is None:
        return ""
    return raw.lineage.get("generator") or raw.lineage.get("repository") or raw.source
