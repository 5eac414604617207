"""Replay: every training stage of a run computed again from what the run stored, and compared record by record."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from rollbook.audit import stored
from rollbook.audit.replay_beside import Beside, Trained, diverging
from rollbook.audit.replay_modules import Trainee, critic, equip, trainee
from rollbook.audit.replay_report import Progress, ReplayReport, StageReplayed, beginning, prepared
from rollbook.audit.replay_steps import PolicyStep, new_learner, policy_step, sft_step
from rollbook.audit.ruler import TOLERANCES, Ruler
from rollbook.ledger import Event, Ledger, environment_manifest
from rollbook.ledger.sameness import Unlike, unlike
from rollbook.models.load import Policy, load_policy, placed
from rollbook.models.runtime import named, nearest, usable_cores
from rollbook.models.shape import load_shaped
from rollbook.models.tokenizer import load_tokenizer
from rollbook.models.weights import published_hash, read_tensors, weight_hash
from rollbook.records import (
    Batch,
    Credit,
    Demonstration,
    LedgerError,
    PolicyVersion,
    SftReport,
    StageEnd,
    Update,
)
from rollbook.records.graph import CURATED, START, inputs
from rollbook.records.recipe import Distill, PolicyGradient, Preference, RewardModel, Sft
from rollbook.training.policy import PolicyLearner

TRAINING = (Sft, PolicyGradient, RewardModel, Preference, Distill)


def replay_run(path: str | os.PathLike[str], *, only: Sequence[str] = (), threads: int | None = None,
               progress: Progress | None = None) -> ReplayReport:
    """Computes the run's training stages again (`only` these, from the checkpoints they began with) and compares.

    On the machine, threads and torch of the run the same bits are asked for, elsewhere numbers within `TOLERANCES`.
    """
    ledger = Ledger.open(Path(path), write=False)
    ledger.verify().require("a replay")
    return Replay(ledger, only, threads, progress).report()


def weights_of(path: Path, version: PolicyVersion, progress: Progress | None = None) -> Policy:
    """The policy that a stage published after one of its steps, computed again from what the run stored, bit for bit."""
    return Replay(Ledger.open(path, write=False), (version.stage,), None, progress).until(version)


class Replay(Beside):
    """Goes once through the log; holds one set of weights, its optimizer, and the trajectories of one batch."""

    def __init__(self, ledger: Ledger, only: Sequence[str], threads: int | None, progress: Progress | None):
        super().__init__()
        self.ledger, self.progress = ledger, progress
        recipe, self.first = beginning(ledger)
        self.settings = recipe.settings
        training = {name: stage for name, stage in recipe.settings.stages.items() if isinstance(stage, TRAINING)}
        strange = sorted(set(only) - training.keys())
        if strange:
            raise LedgerError("the run has no training stage of this name", got=", ".join(strange),
                              fix=f"one of: {', '.join(training)}")
        self.stages = {name: stage for name, stage in training.items() if not only or name in only}
        self.read = {source for stage in self.stages.values() for source in (*inputs(stage).values(), CURATED)}
        self.asked = threads
        self.dtype, self.threads = prepared(ledger, recipe, self.first, threads)
        self.policy = placed(load_policy(recipe.settings.model), nearest(recipe.settings.run.device))
        here = {**named(self.policy.decoder.device, self.dtype), **environment_manifest(), "threads": self.threads}
        self.unlike = unlike(ledger.manifest, here)
        self.ruler = Ruler(exact=not any(one.moves_update for one in self.unlike), tolerance=TOLERANCES[_name(self.dtype)])
        self.decoder, self.tokenizer = self.policy.decoder, self.policy.tokenizer
        self.versions: dict[str, PolicyVersion] = {}
        self.ends: dict[str, PolicyVersion] = {}
        self.checkpoints: dict[str, str] = {}
        self.tables: dict[str, Event] = {}
        self.credits: dict[str, Credit] = {}
        self.batches: dict[str, Batch] = {}
        self.shown: dict[str, Demonstration] = {}
        self.resident: str | None = None
        self.learner: PolicyLearner | None = None
        self.trainee: Trainee | None = None
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

    def until(self, version: PolicyVersion) -> Policy:
        """The policy as it was when this version was published; refuses where the bits cannot be had or do not come out."""
        self.resident = self.first.id
        for event in self.ledger.events():
            self._take_event(event)
            if self.ruler.found or event.id == version.id:
                break
        now = weight_hash(self.decoder.named_parameters())
        if now != version.weights:
            apart = "; ".join(f"{one.what}: {one.there} there, {one.here} here" for one in self.unlike if one.moves_update)
            first = f" ({self.ruler.found[0]})" if self.ruler.found else ""
            raise LedgerError(f"the weights of version {version.index} did not come out again",
                              got=f"{now[:12]} for {version.weights[:12]}{first}",
                              why=apart or "`rollbook replay` names the first difference",
                              fix="evaluate where the run was made, or the end of a stage, whose weights are kept")
        return replace(self.policy, decoder=self.decoder)

    def _take_event(self, event: Event) -> None:
        match event.kind:
            case "TraceTable" | "RecordTable":
                if str(event.body["name"]).partition("/")[0] in self.stages or _elements(event) in self.read:
                    self.tables[str(event.body["name"])] = event
            case "Credit":
                credit: Credit = event.record()
                self.credits[credit.scope] = credit
            case "Batch":
                self.batches[event.id] = event.record()
            case "SftReport":
                self._sft(event.id, event.record())
            case "ModuleUpdate":
                self._module(event.id, event.record())
            case "ModuleVersion":
                self._module_version(event.id, event.record())
            case "Merged":
                self._merged(event.id, event.record())
            case "Update":
                self._update(event.id, event.record())
            case "PolicyVersion":
                self._version(event.record())
            case "StageEnd":
                self._end(event.id, event.record())
            case _:
                pass

    def _begin(self, name: str) -> Trained:
        """The stage's settings, its weights resident and its optimizer new when this is its first step."""
        stage = self.stages[name]
        if self.now != name:
            place = list(self.stages).index(name) + 1
            if self.progress is not None:
                self.progress.stage(name, place, len(self.stages), stage.steps)
            self._load(self.first if stage.policy == START else self.ends[stage.policy])
            self.learner = self.trainee = None
            if isinstance(stage, (RewardModel, Preference, Distill)):
                self.trainee = trainee(stage, self._held(stage))
            else:
                self.learner = new_learner(self.decoder, stage, dtype=self.dtype)
                if isinstance(stage, PolicyGradient):
                    held = self._held(stage)
                    equip(self.learner, stage, held)
                    self.trainee = critic(stage, held)
                    self.valued, self.last = [], None
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
            load_shaped(self.decoder, read_tensors(folder))
        elif version.id == self.first.id:
            load_shaped(self.decoder, dict(load_policy(self.settings.model).decoder.named_parameters()))
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
        if not self.shown:
            self.shown = stored.demonstrations(self.ledger, [self.tables.get(f"{name}/demonstrations")
                                                             for name in (report.stage, *stage.data)])
        lost = [name for name in report.demonstrations if name not in self.shown]
        self.ruler.text("demonstrations", len(report.demonstrations), stage.batch, "the recipe's batch")
        if lost:
            self.ruler.say("demonstrations", lost[0], "absent", f"{len(lost)} are not in the run")
            return
        with diverging(self.ruler):
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
        step = PolicyStep(batch_id=update.batch, batch=batch, credit=credit, table=self.tables.get(scope), update=update,
                          critic=self._critic(), shown=self._beside(stage, batch))
        self.last = step
        with diverging(self.ruler):
            policy_step(self.ruler, self.ledger, self.learner, stage, step)
        self.tables = {key: event for key, event in self.tables.items() if key == scope or _elements(event) in self.read}
        self.window.append(update.batch)
        number = scope.rpartition("/")[2]
        self._moved(int(number) if number.isdigit() else self.updates + 1)

    def _beside(self, stage: PolicyGradient, batch: Batch) -> tuple[Demonstration, ...]:
        """The pretraining data of a minibatch; how many the recipe asks for, each as an earlier stage left it."""
        given = stage.pretraining
        self.ruler.text("batch.pretraining", len(batch.pretraining), 0 if given is None else given.batch, "the recipe's batch")
        if given is not None and not self.shown:
            self.shown = stored.demonstrations(self.ledger, [self.tables.get(f"{name}/demonstrations") for name in given.data])
        lost = [name for name in batch.pretraining if name not in self.shown]
        if lost:
            self.ruler.say("batch.pretraining", lost[0], "absent", f"{len(lost)} demonstrations are not in the run")
        return tuple(self.shown[name] for name in batch.pretraining if name in self.shown)

    def _use_threads(self, wanted: int) -> None:
        """A run that was resumed with other threads goes on with them here."""
        if self.asked is None and wanted != torch.get_num_threads() and wanted <= usable_cores():
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
        optimizer = (self.learner or self._trainee()).optimizer
        self.ruler.at(version.stage, f"version {version.index}", version.id)
        self.ruler.hash("weights", version.weights, weight_hash(self.decoder.named_parameters()))
        self.ruler.hash("published", version.published, published_hash(self.decoder, self.dtype))
        self.ruler.hash("optimizer", version.optimizer, optimizer.digest())
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
        if not self.passed and not self.ruler.found and end.started != end.ended:
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
        own = self.trainee if self.learner is None else None
        weights = weight_hash(self.decoder.named_parameters()) if own is None else own.weights()
        self.done.append(StageReplayed(stage=self.now, updates=self.updates, weights=weights, ended=ended))
        self.now, self.learner, self.trainee, self.began, self.shown = None, None, None, {}, {}
        self.tables = {key: event for key, event in self.tables.items() if _elements(event) in self.read}


def _elements(event: Event) -> str | None:
    """The stage whose demonstrations or rankings a table holds, None for another table."""
    name, _, rest = str(event.body["name"]).partition("/")
    return name if rest in ("demonstrations", "rankings") else None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


__all__ = ["Replay", "ReplayReport", "StageReplayed", "beginning", "prepared", "replay_run"]
