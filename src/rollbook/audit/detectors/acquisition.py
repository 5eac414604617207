"""Stage 1: acquisition. Does an evaluation item stand among the training tasks, or was a task never looked at?"""

from __future__ import annotations

from rollbook.audit.curated import curated_faults
from rollbook.audit.detector import Detector, Row
from rollbook.audit.index import RunIndex
from rollbook.audit.plan import excuse
from rollbook.audit.sources import TaskTables, raw_of, use_of
from rollbook.records import Decontamination, Demonstration, Dispatch, EvalReport, Overlap, ProtocolBundle, RawTask
from rollbook.tasks import Likeness, Side, decontaminate, ids_hash
from rollbook.tasks.decontamination import asked

LAXEST = Likeness(ngram=13, jaccard=0.8, boilerplate=0.05)     # what the chain asks for at least
REQUIRED = ("source", "licence", "acquired_at", "content", "language", "domain")
CONTAINED = 8       # words: a shorter text stands in another by accident


class AcquisitionDetector(Detector):
    """Compares training and evaluation tasks again, and every task that was used with what was compared."""

    stage, name = 1, "acquisition"
    absent = "no training task was compared with an evaluation protocol"

    def __init__(self) -> None:
        super().__init__()
        self.tables = TaskTables()
        self.recorded: dict[str, Decontamination] = {}
        self.bundles: dict[str, str] = {}                       # hash of a task list -> the protocol that uses it
        self.evaluated: dict[str, tuple[str, ...]] = {}         # hash of a task list -> the tasks
        self.reported: set[str] = set()
        self.trained: dict[str, str] = {}                       # task -> the first record that used it for training
        self.protected: dict[tuple[str, ...], str] | None = None
        self.sensitive = 0
        self.used: str | None = None                            # the first trajectory or demonstration

    def record(self, run: RunIndex, identity: str, record: object) -> None:
        self.tables.take(run, identity, record)
        match record:
            case RawTask():
                self._raw(identity, record)
            case Decontamination():
                self.recorded[identity] = record
                if self.used is not None:
                    self.fail(identity, f"it was made after {self.used} had used a task", "compare before anything is sampled or "
                              "demonstrated")
            case ProtocolBundle():
                self.bundles[record.tasks] = identity
            case Dispatch() if record.scope.startswith("eval/"):
                self.evaluated[ids_hash(record.tasks)] = record.tasks
            case EvalReport():
                self.reported.add(record.protocol)
            case Demonstration():
                self._demonstration(run, identity, record)
            case _:
                pass

    def row(self, run: RunIndex, row: Row) -> None:
        self.used = self.used or row.id
        if row.trace.task not in self.trained and use_of(run, run.table or "") != "evaluation":
            self.trained[row.trace.task] = row.id

    def finish(self, run: RunIndex) -> None:
        if not self.tables.tables:
            self._nothing(run)
            return
        train = {task for found in self.recorded.values() if ids_hash(self.tables.train) == found.train
                 for task in self.tables.train}
        for identity, found in self.recorded.items():
            self._again(run, identity, found)
        for task, record in self.trained.items():
            if task not in train and self.recorded:
                self.fail(record, f"{task} was trained on and never compared with an evaluation protocol",
                          "compare every training task with every protocol before the first update")
        self._protocols(run)
        for evidence, remedy in curated_faults(run):
            self.fail("CuratedSet", evidence, remedy)
        self._drawn(run)
        if self.recorded:
            self.checked(len(self.trained))
        elif self.trained or self.bundles:
            self.fail("Decontamination", f"{len(self.trained)} tasks were trained on and {len(self.bundles)} protocols used, and "
                      "nothing was compared", "compare every training task with every protocol before the first update")
        if self.sensitive:
            self.note(f"{self.sensitive} raw tasks are flagged as sensitive")

    def _nothing(self, run: RunIndex) -> None:
        """Without tasks nothing can be compared: a fault in a run of ours, a limit of one recorded from outside."""
        used = [*self.trained.values(), *self.bundles.values()]
        if used and run.recipe is not None:
            self.fail(used[0], f"{len(self.trained)} tasks were trained on and {len(self.bundles)} protocols used, and no table "
                      "holds the tasks", "record every task before it is used")
        elif used:
            self.note("the run keeps no tasks, so that nothing can be compared")

    def _raw(self, identity: str, raw: RawTask) -> None:
        blank = [name for name in REQUIRED if not getattr(raw, name).strip()]
        if blank:
            self.fail(identity, f"the raw task states no {', '.join(blank)}", "acquire with source, licence, date and language")
        self.sensitive += bool(raw.sensitive)

    def _demonstration(self, run: RunIndex, identity: str, shown: Demonstration) -> None:
        """A demonstration of a task counts as its use; any other text is compared with the protected tasks itself."""
        self.used = self.used or identity
        if shown.task in run.tasks or shown.task.startswith("Task:"):
            self.trained.setdefault(shown.task, identity)
            return
        if self.protected is None:
            self.protected = {asked(run.tasks[task].prompt): task for task in self.tables.heldout}
        self.checked()
        prompt = asked(message for message in shown.messages if message.role != "assistant")
        whole = asked(shown.messages)
        found = self.protected.get(prompt) or next(
            (task for words, task in self.protected.items() if len(words) >= CONTAINED and _within(words, whole)), None)
        if found is not None:
            self.fail(identity, f"the demonstration for {shown.task!r} shows the evaluation task {found}",
                      "take it out of the demonstrations and train again")

    def _again(self, run: RunIndex, identity: str, recorded: Decontamination) -> None:
        """The recorded comparison made once more from the tables."""
        sides = {ids_hash(tasks): tasks for tasks in [*self.tables.tables.values(), self.tables.heldout]}
        train, protected = ids_hash(self.tables.train), recorded.protected
        if recorded.train != train or protected not in sides or protected == train:
            self.fail(identity, f"it compares {recorded.train_count} training and {recorded.protected_count} protected tasks, "
                      f"which are not the tables of the run ({len(self.tables.train)} and {len(self.tables.heldout)} tasks)",
                      "compare the whole tables, in their order")
            return
        if (recorded.ngram > LAXEST.ngram or recorded.jaccard > LAXEST.jaccard or recorded.boilerplate < LAXEST.boilerplate):
            self.fail(identity, f"thresholds of {recorded.ngram} words, Jaccard {recorded.jaccard:g} and boilerplate "
                      f"{recorded.boilerplate:g} find less than {LAXEST.ngram}, {LAXEST.jaccard:g} and {LAXEST.boilerplate:g}",
                      "compare with the stated thresholds or stricter ones")
        orphans = [task for task in (*self.tables.train, *sides[protected]) if raw_of(run, task) is None]
        if orphans:
            self.fail(orphans[0], f"the raw task of {len(orphans)} tasks is not on record: nothing says where they come from",
                      "record every raw task as it was acquired")
            return
        likeness = Likeness(ngram=recorded.ngram, jaccard=recorded.jaccard, boilerplate=recorded.boilerplate)
        parts = [Side(tasks=tuple(run.tasks[task] for task in names),
                      raws=tuple(raw for task in names if (raw := raw_of(run, task)) is not None))
                 for names in (self.tables.train, sides[protected])]
        again = decontaminate(*parts, protocol=recorded.protocol, likeness=likeness)
        self._compare(identity, recorded, again)
        self.checked(len(self.tables.train))
        if again.skipped:
            self.note(f"{' and '.join(sorted(again.skipped))} do not apply: {next(iter(again.skipped.values()))}")

    def _compare(self, identity: str, recorded: Decontamination, again: Decontamination) -> None:
        for overlap in again.found:
            known = "and is recorded" if overlap in recorded.found else "and the recorded comparison does not say so"
            self.fail(overlap.train, f"this training task resembles the evaluation task {overlap.protected} of protocol "
                      f"{recorded.protocol} ({overlap.method}, {overlap.score:.2f}), {known}",
                      "take the task out of training, or out of the protocol, and run again")
        differing = [name for name in ("train_count", "protected_count", "found", "skipped")
                     if _plain(getattr(recorded, name)) != _plain(getattr(again, name))]
        if differing:
            shown = "; ".join(f"{name} {_short(getattr(recorded, name))}, recomputed {_short(getattr(again, name))}"
                              for name in differing)
            self.fail(identity, f"the comparison made again differs: {shown}", "record what the comparison found")

    def _drawn(self, run: RunIndex) -> None:
        """The raw tasks are those that the recipe's generators draw: none was left out for being hard, none put in."""
        due = run.generated
        if isinstance(due, str):
            return self.note(f"the raw tasks were not drawn again: {due}") if run.recipe is not None else None
        missing, extra = set(due.raw) - run.own.keys(), run.own.keys() - set(due.raw)
        if not missing and not extra:
            return self.note(f"{len(due.raw)} raw tasks drawn again")
        if (why := excuse(run.ledger.manifest)) is not None:
            return self.note(f"drawn again, {len(missing)} raw tasks come out otherwise: {why}")
        return self.fail(min(extra or missing), f"the recipe's generators draw {len(due.raw)} raw tasks; {len(missing)} of them "
                         f"are not on record, and {len(extra)} on record were not drawn", "keep every task that the recipe draws")

    def _protocols(self, run: RunIndex) -> None:
        """Every protocol's tasks must have been on the protected side of a comparison."""
        names = {ids_hash(tasks): tasks for tasks in [*self.tables.tables.values(), self.tables.heldout]}
        covered = {task for found in self.recorded.values() for task in names.get(found.protected, ())}
        for tasks, bundle in self.bundles.items():
            listed = self.evaluated.get(tasks) or names.get(tasks)
            if listed is None and (run.complete or bundle in self.reported):
                self.fail(bundle, "no dispatch and no table holds the tasks that this protocol names",
                          "record the attempts of an evaluation before they are made")
            elif listed is not None and (missing := [task for task in listed if task not in covered]) and self.recorded:
                self.fail(bundle, f"{len(missing)} of its {len(listed)} tasks were never compared with the training tasks, first "
                          f"{missing[0]}", "compare the training tasks with every protocol")
            elif listed is not None:
                self.checked()


def _within(words: tuple[str, ...], text: tuple[str, ...]) -> bool:
    return any(text[i:i + len(words)] == words for i in range(len(text) - len(words) + 1))


def _plain(value: object) -> object:
    """Findings without regard to order, skipped methods without their wording."""
    if isinstance(value, tuple):
        return {(one.train, one.protected, one.method, one.score) for one in value if isinstance(one, Overlap)}
    return set(value) if isinstance(value, dict) else value


def _short(value: object) -> str:
    return f"{len(value)}" if isinstance(value, (tuple, dict)) else str(value)
