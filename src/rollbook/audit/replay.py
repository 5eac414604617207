"""Replay: every training stage of a run computed again from what the run stored, and compared record by record."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rollbook.audit import stored
from rollbook.audit.replay_steps import PolicyStep, new_learner, policy_step, sft_step
from rollbook.audit.ruler import TOLERANCES, Mismatch, Ruler, Tolerance
from rollbook.ledger import Event, Ledger, environment_manifest
from rollbook.ledger.encoding import record_id
from rollbook.ledger.sameness import Unlike, unlike
from rollbook.models.load import load_policy
from rollbook.models.runtime import prepare
from rollbook.models.tokenizer import load_tokenizer
from rollbook.models.weights import load_into, published_hash, read_tensors, weight_hash
from rollbook.objectives.errors import ObjectiveError
from rollbook.records import (
    Batch,
    Credit,
    Demonstration,
    Diverged,
    LedgerError,
    PolicyVersion,
    ResolvedRecipe,
    SftReport,
    StageEnd,
    Update,
)
from rollbook.records.graph import START
from rollbook.records.recipe import PolicyGradient, Sft
from rollbook.training.policy import PolicyLearner


class Progress(Protocol):
    """What a replay tells while it goes on."""

    def stage(self, name: str, index: int, total: int, steps: int) -> None: ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReplayed:
    """A training stage as far as it was computed again; `weights` hashes what it led to, `ended` is False where it is open."""

    stage: str
    updates: int
    weights: str
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What came out. `exact`: equal bits were asked for; otherwise `tolerance` is what was allowed and `largest` what was seen.

    `same_bits`: every hash and every number came out as recorded, whether or not that was asked for.

    `mismatches` are those of the first update that differs, nothing after it was computed. `unlike` says what is not as it was.

    Example: ReplayReport(run="a", exact=True, same_bits=True, threads=2, dtype="bfloat16", unlike=(), tolerance=None, largest={},
        stages=(StageReplayed(stage="rl", updates=60, weights="ab..", ended=True),), mismatches=(), notes=())
    """

    run: str
    exact: bool
    same_bits: bool
    threads: int
    dtype: str
    unlike: tuple[Unlike, ...]
    tolerance: Tolerance | None
    largest: Mapping[str, float]
    stages: tuple[StageReplayed, ...]
    mismatches: tuple[Mismatch, ...]
    notes: tuple[str, ...]


def replay_run(path: str | os.PathLike[str], *, only: Sequence[str] = (), threads: int | None = None,
               progress: Progress | None = None) -> ReplayReport:
    """Computes the run's training stages again (`only` these, from the checkpoints they began with) and compares.

    On the machine, threads and torch of the run the same bits are asked for, elsewhere numbers within `TOLERANCES`.
    """
    ledger = Ledger.open(Path(path), write=False)
    broken = ledger.verify().fault
    if broken is not None:
        raise LedgerError("this run is damaged", got=broken, why="its content is not what was written",
                          fix="restore it from a copy; a replay of the rest would prove nothing")
    return Replay(ledger, only, threads, progress).report()


class Replay:
    """Goes once through the log; holds one set of weights, its optimizer, and the trajectories of one batch."""

    def __init__(self, ledger: Ledger, only: Sequence[str], threads: int | None, progress: Progress | None):
        self.ledger, self.progress = ledger, progress
        recipe, self.first = beginning(ledger)
        self.settings = recipe.settings
        training = {name: stage for name, stage in recipe.settings.stages.items() if isinstance(stage, (Sft, PolicyGradient))}
        strange = sorted(set(only) - training.keys())
        if strange:
            raise LedgerError("the run has no training stage of this name", got=", ".join(strange),
                              fix=f"one of: {', '.join(training)}")
        self.stages = {name: stage for name, stage in training.items() if not only or name in only}
        self.asked = threads
        self.dtype, self.threads = prepared(ledger, recipe, self.first, threads)
        self.unlike = unlike(ledger.manifest, {**environment_manifest(), "threads": self.threads})
        self.ruler = Ruler(exact=not any(one.moves_update for one in self.unlike), tolerance=TOLERANCES[_name(self.dtype)])
        policy = load_policy(recipe.settings.model)
        self.decoder, self.tokenizer = policy.decoder, policy.tokenizer
        self.versions: dict[str, PolicyVersion] = {}
        self.ends: dict[str, PolicyVersion] = {}
        self.checkpoints: dict[str, str] = {}
        self.tables: dict[str, Event] = {}
        self.credits: dict[str, Credit] = {}
        self.batches: dict[str, Batch] = {}
        self.shown: dict[str, Demonstration] = {}
        self.resident: str | None = None
        self.learner: PolicyLearner | None = None
        self.now: str | None = None
        self.began: dict[str, Tensor] = {}
        self.window: list[str] = []
        self.updates = self.passed = 0
        self.done: list[StageReplayed] = []
        self.notes: list[str] = []

    def report(self) -> ReplayReport:
        """Everything up to the end of the log, or of the stage where something differs."""
        self.ruler.at(START, START, self.first.id)
        self.ruler.hash("weights", self.first.weights, weight_hash(self.decoder.named_parameters()))
        self.resident = self.first.id
        for event in self.ledger.events():
            self._take_event(event)
            if self.ruler.found and self.now is None:
                break
        if self.now is not None:
            self._leave(ended=False)
        exact = self.ruler.exact
        return ReplayReport(run=self.ledger.root.name, exact=exact, same_bits=not self.ruler.off, threads=self.threads,
                            dtype=_name(self.dtype), unlike=self.unlike, tolerance=None if exact else self.ruler.tolerance,
                            largest=dict(self.ruler.largest), stages=tuple(self.done), mismatches=tuple(self.ruler.found),
                            notes=tuple(self.notes))

    def _take_event(self, event: Event) -> None:
        match event.kind:
            case "TraceTable" | "RecordTable":
                if str(event.body["name"]).partition("/")[0] in self.stages:
                    self.tables[str(event.body["name"])] = event
            case "Credit":
                credit: Credit = event.record()
                self.credits[credit.scope] = credit
            case "Batch":
                self.batches[event.id] = event.record()
            case "SftReport":
                self._sft(event.id, event.record())
            case "Update":
                self._update(event.id, event.record())
            case "PolicyVersion":
                self._version(event.record())
            case "StageEnd":
                self._end(event.id, event.record())
            case _:
                pass

    def _begin(self, name: str) -> Sft | PolicyGradient:
        """The stage's settings, its weights resident and its optimizer new when this is its first step."""
        stage = self.stages[name]
        if self.now != name:
            place = list(self.stages).index(name) + 1
            if self.progress is not None:
                self.progress.stage(name, place, len(self.stages), stage.steps)
            self._load(self.first if stage.policy == START else self.ends[stage.policy])
            self.learner = new_learner(self.decoder, stage, dtype=self.dtype)
            self.began = {} if self.ruler.exact else {n: p.detach().clone() for n, p in self.decoder.named_parameters()}
            self.now, self.updates, self.passed, self.window = name, 0, 0, []
            self.shown = {}
        return stage

    def _load(self, version: PolicyVersion) -> None:
        """Puts the weights of a version into the decoder: as computed, from its checkpoint, or the recipe's model.

        Where bits may differ every stage starts from the recorded weights again, so that differences do not add up over stages.
        """
        folder = self.ledger.root / self.checkpoints.get(version.id, "none")
        if self.resident == version.id and (self.ruler.exact or not folder.is_dir()):
            return
        if folder.is_dir():
            load_into(self.decoder, read_tensors(folder))
        elif version.id == self.first.id:
            load_into(self.decoder, dict(load_policy(self.settings.model).decoder.named_parameters()))
        else:
            raise LedgerError(f"the weights of version {version.index} are not to be had",
                              why="it is neither the start of the run nor the end of a stage with a checkpoint")
        self.ruler.at(version.stage, f"weights of version {version.index}", version.id)
        self.ruler.hash("weights", version.weights, weight_hash(self.decoder.named_parameters()))
        self.resident = version.id

    def _sft(self, identity: str, report: SftReport) -> None:
        if report.stage not in self.stages or self._given_up():
            return
        stage = self._begin(report.stage)
        assert isinstance(stage, Sft) and self.learner is not None
        self.ruler.at(report.stage, f"{report.stage} step {report.step}", identity)
        self.ruler.text("step", report.step, self.updates + 1, "a step is missing or comes twice")
        table = self.tables.get(f"{report.stage}/demonstrations")
        if table is not None and not self.shown:
            self.shown = {record_id(one): one for one in self.ledger.table_records(table)}
        lost = [name for name in report.demonstrations if name not in self.shown]
        self.ruler.text("demonstrations", len(report.demonstrations), stage.batch, "the recipe's batch")
        if lost:
            self.ruler.say("demonstrations", lost[0], "absent", f"{len(lost)} are not in the run")
            return
        with _diverging(self.ruler):
            sft_step(self.ruler, self.learner, stage, [self.shown[name] for name in report.demonstrations], report,
                     stored.tensors(self.ledger, report.tensors))
        self.window.append(identity)
        self._moved(report.step)

    def _update(self, identity: str, update: Update) -> None:
        batch = self.batches.pop(update.batch, None)
        name = (batch.scope if batch is not None else "").rpartition("/")[0].rpartition("/")[0]
        if batch is None or name not in self.stages:
            if batch is None:
                self.ruler.at(self.now or START, f"update {update.index}", identity)
                self.ruler.say("batch", update.batch, "absent", "the update's batch does not stand before it")
            return
        if self._given_up():
            return
        stage = self._begin(name)
        assert isinstance(stage, PolicyGradient) and self.learner is not None
        self._use_threads(batch.threads)
        scope = batch.scope.rpartition("/")[0]
        self.ruler.at(name, batch.scope, identity)
        credit = self.credits.pop(batch.scope, None)
        if credit is None:
            self.ruler.say("credit", "absent", "needed", f"no credit record of {batch.scope} stands before it")
            return
        step = PolicyStep(batch_id=update.batch, batch=batch, credit=credit, table=self.tables.get(scope), update_id=identity,
                          update=update)
        with _diverging(self.ruler):
            policy_step(self.ruler, self.ledger, self.learner, stage, step)
        self.tables = {key: event for key, event in self.tables.items() if key == scope}
        self.window.append(update.batch)
        number = scope.rpartition("/")[2]
        self._moved(int(number) if number.isdigit() else self.updates + 1)

    def _use_threads(self, wanted: int) -> None:
        """A run that was resumed with other threads goes on with them here."""
        if self.asked is None and wanted != torch.get_num_threads() and wanted <= (os.cpu_count() or 1):
            torch.set_num_threads(wanted)
        if wanted != torch.get_num_threads() and self.ruler.exact:
            self.ruler.exact = False
            self.unlike = (*self.unlike, Unlike(what="threads", there=str(wanted), here=str(torch.get_num_threads()),
                                                moves_update=True, moves_run=True))

    def _given_up(self) -> bool:
        """After the first difference nothing more is computed."""
        self.passed += bool(self.ruler.found)
        return bool(self.ruler.found)

    def _moved(self, number: int) -> None:
        self.updates += 1
        self.resident = None
        if self.progress is not None:
            self.progress.step(number, {})

    def _version(self, version: PolicyVersion) -> None:
        self.versions[version.id] = version
        if version.index == 0 or version.stage != self.now or self.ruler.found:
            return
        assert self.learner is not None
        self.ruler.at(version.stage, f"version {version.index}", version.id)
        self.ruler.hash("weights", version.weights, weight_hash(self.decoder.named_parameters()))
        self.ruler.hash("published", version.published, published_hash(self.decoder, self.dtype))
        self.ruler.hash("optimizer", version.optimizer, self.learner.optimizer.digest())
        self.ruler.text("window", version.window, tuple(self.window), "the steps since the version before")
        self.window, self.resident = [], version.id

    def _end(self, identity: str, end: StageEnd) -> None:
        self.ends[end.stage] = self.versions[end.ended]
        if end.checkpoint is not None:
            self.checkpoints[end.ended] = end.checkpoint
        if end.stage not in self.stages:
            return
        self.ruler.at(end.stage, f"end of {end.stage}", identity)
        if self.now != end.stage:
            if end.started != end.ended:
                self.ruler.say("ended", end.ended, end.started, "the stage ended with other weights and recorded no update")
            return
        if not self.passed and not self.ruler.found:
            self.ruler.text("ended", end.ended, self.resident, "the last version that was published")
        if not self.passed and end.checkpoint is not None:
            self._checkpoint(end.checkpoint)
        self._leave(ended=True)

    def _checkpoint(self, folder: str) -> None:
        """The stage's checkpoint, parameter by parameter, and its tokenizer."""
        place = self.ledger.root / folder
        if not place.is_dir():
            self.notes.append(f"{folder} is not in this copy: its weights were compared by hash alone")
            return
        began, named = self.began, dict(self.decoder.named_parameters())
        way = sum(float((named[n].detach().double() - t.double()).square().sum()) for n, t in began.items()) ** 0.5
        self.ruler.weights(read_tensors(place), ((n, p.detach()) for n, p in named.items()), way)
        self.ruler.text("tokenizer", self.tokenizer.digest, load_tokenizer(place).digest)

    def _leave(self, *, ended: bool) -> None:
        assert self.now is not None
        self.done.append(StageReplayed(stage=self.now, updates=self.updates, weights=weight_hash(self.decoder.named_parameters()),
                                       ended=ended))
        self.now, self.learner, self.began, self.shown, self.tables = None, None, {}, {}, {}


class _diverging:
    """A step that diverges or is refused here and was taken in the run is a difference, not a crash."""

    def __init__(self, ruler: Ruler):
        self.ruler = ruler

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Diverged | ObjectiveError):
            self.ruler.say("update", "a step was taken", "diverged" if isinstance(error, Diverged) else "refused", error.what)
            return True
        return False


def beginning(ledger: Ledger) -> tuple[ResolvedRecipe, PolicyVersion]:
    """The recipe and the first version; refuses a run that had none yet, and a run whose program is not on record."""
    recipe, first = next(iter(ledger.records(ResolvedRecipe)), None), next(iter(ledger.records(PolicyVersion)), None)
    if recipe is None or first is None:
        raise LedgerError("nothing of this run can be computed again", got=str(ledger.root.name),
                          why="it holds no recipe or no published policy", fix="replay a run that has begun to train")
    return recipe, first


def prepared(ledger: Ledger, recipe: ResolvedRecipe, first: PolicyVersion, threads: int | None) -> tuple[torch.dtype, int]:
    """Sets the process up as the run's was, as far as this machine can; compute dtype and threads."""
    recorded = ledger.manifest.get("threads")
    wanted = threads or (recorded if isinstance(recorded, int) else recipe.settings.run.threads)
    dtype: Any = first.probe.dtype if first.probe is not None else recipe.settings.run.dtype
    own = min(wanted, os.cpu_count() or 1)
    settings = dataclasses.replace(recipe.settings.run, threads=own, dtype=dtype)
    return prepare(settings), torch.get_num_threads()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


__all__ = ["Replay", "ReplayReport", "StageReplayed", "beginning", "prepared", "replay_run"]
