"""The replay of what is trained beside a policy, or made without training: reward models, critics, pairs, merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rollbook.audit import stored
from rollbook.audit.replay_modules import CriticTrainee, Held, Trainee, module_step, module_version
from rollbook.audit.replay_steps import PolicyStep, compared, hold
from rollbook.audit.ruler import Ruler
from rollbook.ledger import Event, Ledger
from rollbook.models.decoder import Decoder
from rollbook.models.load import load_policy
from rollbook.models.tokenizer import ChatTokenizer
from rollbook.models.weights import load_into, read_tensors, weight_hash
from rollbook.objectives.errors import ObjectiveError
from rollbook.records import (
    Batch,
    Credit,
    Diverged,
    LedgerError,
    Merged,
    ModuleUpdate,
    ModuleVersion,
    PolicyVersion,
    Ranking,
    Task,
    TaskId,
    Trace,
    TraceId,
    content_id,
)
from rollbook.records.graph import START
from rollbook.records.recipe import Distill, Merge, PolicyGradient, Preference, Prune, RewardModel, Settings, Sft
from rollbook.training.merging import merged_weights
from rollbook.training.policy import PolicyLearner
from rollbook.training.pruning import pruned_weights
from rollbook.training.value import CriticLearner

Trained = Sft | PolicyGradient | RewardModel | Preference | Distill


class Beside:
    """The part of a replay that is not a policy's own step; `Replay` holds what it works with."""

    ledger: Ledger
    ruler: Ruler
    settings: Settings
    decoder: Decoder
    tokenizer: ChatTokenizer
    dtype: torch.dtype
    stages: dict[str, Trained]
    first: PolicyVersion
    ends: dict[str, PolicyVersion]
    checkpoints: dict[str, str]
    tables: dict[str, Event]
    batches: dict[str, Batch]
    credits: dict[str, Credit]
    learner: PolicyLearner | None
    trainee: Trainee | None
    now: str | None
    window: list[str]
    updates: int
    notes: list[str]

    def __init__(self) -> None:
        self.modules: dict[tuple[str, str], ModuleVersion] = {}
        self.valued: list[str] = []
        self.last: PolicyStep | None = None
        self.families: dict[TaskId, str] = {}

    def _begin(self, name: str) -> Trained:
        raise NotImplementedError

    def _given_up(self) -> bool:
        raise NotImplementedError

    def _moved(self, number: int) -> None:
        raise NotImplementedError

    def _use_threads(self, wanted: int) -> None:
        raise NotImplementedError

    def _trainee(self) -> Trainee:
        assert self.trainee is not None
        return self.trainee

    def _critic(self) -> CriticLearner | None:
        return self.trainee.critic if isinstance(self.trainee, CriticTrainee) else None

    def _held(self, stage: RewardModel | Preference | Distill | PolicyGradient) -> Held:
        """What the stage's module is made of; its rankings are read once."""
        sources = () if isinstance(stage, (PolicyGradient, Distill)) else tuple(stage.data)
        tables = [self.tables[f"{source}/rankings"] for source in sources if f"{source}/rankings" in self.tables]
        rankings = {content_id(one): one for table in tables for one in self.ledger.table_records(table)
                    if isinstance(one, Ranking)}
        hard = stage.hard.data if isinstance(stage, Distill) and stage.hard is not None else ()
        shown = stored.demonstrations(self.ledger, [self.tables.get(f"{source}/demonstrations") for source in hard])
        return Held(decoder=self.decoder, rankings=rankings, demonstrations=shown, weights_of=self._weights_of, dtype=self.dtype,
                    format_ids=frozenset(self.tokenizer.stop_ids), seed=self.settings.run.seed, family=self._family,
                    module_folder=lambda source, module: self.ledger.root / self.modules[source, module].checkpoint,
                    traces_of=self._traces_of, vocabulary=self.tokenizer.digest)

    def _traces_of(self, names: Sequence[str]) -> list[Trace]:
        """Trajectories of the stage in progress by id, read from its latest table."""
        mine = [event for name, event in self.tables.items() if event.kind == "TraceTable" and name.startswith(f"{self.now}/")]
        held = {identity: trace for event in mine[-1:] for identity, (trace, _, _) in self.ledger.rows(event)}
        lost = [name for name in names if name not in held]
        if lost:
            raise LedgerError("a step was taken on trajectories that the run does not hold", got=f"{len(lost)}, first {lost[0]}")
        return [held[TraceId(name)] for name in names]

    def _family(self, task: TaskId) -> str:
        if not self.families:
            self.families = {one.id: one.family for one in self.ledger.records(Task)}
        return self.families[task]

    def _weights_of(self, source: str) -> Mapping[str, Tensor]:
        """The weights that a stage ended with, from its checkpoint; the start's from the model."""
        version = self.first if source == START else self.ends[source]
        folder = self.ledger.root / self.checkpoints.get(version.id, "none")
        if folder.is_dir():
            return read_tensors(folder)
        if version.id == self.first.id:
            return {name: p.detach() for name, p in load_policy(self.settings.model).decoder.named_parameters()}
        raise LedgerError(f"the weights that {source} ended with are not to be had", got=str(folder.name),
                          why="its checkpoint is not in this copy")

    def _module(self, identity: str, update: ModuleUpdate) -> None:
        if update.stage not in self.stages or self._given_up():
            return
        stage = self._begin(update.stage)
        if isinstance(stage, PolicyGradient):
            self._valued(identity, update, stage)
            return
        self.ruler.at(update.stage, f"{update.stage} step {update.step}", identity)
        self.ruler.text("step", update.step, self.updates + 1, "a step is missing or comes twice")
        with diverging(self.ruler):
            module_step(self.ruler, self._trainee(), update, stored.tensors(self.ledger, update.tensors))
        self.window.append(identity)
        self._moved(update.step)

    def _valued(self, identity: str, update: ModuleUpdate, stage: PolicyGradient) -> None:
        """A critic's step on a minibatch: the one just trained on, or one that trains the critic alone."""
        made, learner = self._trainee(), self.learner
        assert isinstance(made, CriticTrainee) and learner is not None
        self.ruler.at(update.stage, f"{update.stage} critic step {update.step}", identity)
        self.ruler.text("step", update.step, made.optimizer.steps + 1, "a step is missing or comes twice")
        batch = self.batches.pop(update.elements[0], None)
        with diverging(self.ruler):
            if batch is not None:
                self._use_threads(batch.threads)
                table = self.tables.get(batch.scope.rpartition("/")[0])
                self.last = PolicyStep(batch_id=update.elements[0], batch=batch, credit=self.credits.pop(batch.scope),
                                       table=table, update=None, critic=made.critic)
                hold(learner, self.last)
                compared(self.ruler, self.ledger, learner, stage, self.last)
            if self.last is not None and self.last.batch_id == update.elements[0]:
                found = stored.members(self.ledger, self.last.table, self.last.batch)
                made.packed = stored.as_stored(self.last.batch, stored.tensors(self.ledger, self.last.batch.tensors), found,
                                               self.last.credit)
            module_step(self.ruler, made, update, stored.tensors(self.ledger, update.tensors))
        self.valued.append(identity)

    def _module_version(self, identity: str, version: ModuleVersion) -> None:
        self.modules[version.stage, version.module] = version
        if version.stage == self.now and not self.ruler.found:
            self.ruler.at(version.stage, f"module of {version.stage}", identity)
            window = self.valued if version.module == "critic" else self.window
            module_version(self.ruler, self._trainee(), version, window)

    def _merged(self, identity: str, merged: Merged) -> None:
        stage = self.settings.stages[merged.stage]
        if isinstance(stage, PolicyGradient) and merged.stage == self.now and not self._given_up():
            self._averaged(identity, merged)
        if not self.ruler.found and isinstance(stage, (Merge, Prune)):
            self._made(identity, merged, stage)

    def _made(self, identity: str, merged: Merged, stage: Merge | Prune) -> None:
        """A policy that was made of others without a step, made again."""
        self.ruler.at(merged.stage, f"merge of {merged.stage}", identity)
        try:
            if isinstance(stage, Prune):
                less = pruned_weights(self._weights_of(stage.policy), layers=stage.layers, intermediate=stage.intermediate)
                self.ruler.hash("weights", merged.weights, weight_hash(less.items()))
                return
            parts = [(self._weights_of(source), weight) for source, weight in sorted(stage.policies.items())]
            base = None if stage.base is None else self._weights_of(stage.base)
        except LedgerError as error:
            self.notes.append(f"{merged.stage} was not merged again: {error.what}")
            return
        self.ruler.hash("weights", merged.weights, weight_hash(merged_weights(stage, parts, base).items()))


    def _averaged(self, identity: str, merged: Merged) -> None:
        """The moving average of the stage in progress in the place of its weights."""
        average = self.learner.average if self.learner is not None else None
        self.ruler.at(merged.stage, f"average of {merged.stage}", identity)
        if average is None:
            self.ruler.say("average", "there", "absent", "the recipe keeps none")
            return
        load_into(self.decoder, {name: p.detach() for name, p in average.module.named_parameters()})
        self.ruler.hash("weights", merged.weights, weight_hash(self.decoder.named_parameters()))
        self.window = [identity]


class diverging:
    """A step that diverges or is refused here and was taken in the run is a difference, not a crash."""

    def __init__(self, ruler: Ruler):
        self.ruler = ruler

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Diverged | ObjectiveError):
            self.ruler.say("update", "a step was taken", "diverged" if isinstance(error, Diverged) else "refused", error.what)
            return True
        return False
