"""A run in progress: its parts, where its weights stand, and the two ways it can be interrupted."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import torch

from rollbook.ledger import Ledger
from rollbook.models.decoder import Decoder
from rollbook.models.load import Policy, load_policy
from rollbook.models.shape import load_shaped
from rollbook.models.weights import read_tensors, save_checkpoint
from rollbook.orchestration.publish import Publisher
from rollbook.orchestration.surroundings import Surroundings, rollouts_of
from rollbook.records import (
    Composition,
    EnvironmentImage,
    Judge,
    LedgerError,
    PolicyVersion,
    ResolvedRecipe,
    StageEnd,
    Stopped,
    Task,
    TaskId,
    VerifierStamp,
)
from rollbook.records.recipe import SamplingSettings, Settings
from rollbook.rollouts.engines.kinds import Engine
from rollbook.rollouts.solve import Rollouts
from rollbook.tasks import Split
from rollbook.training.policy import frozen_copy

if TYPE_CHECKING:
    from rollbook.orchestration.along import Along
    from rollbook.orchestration.judges import Judging

T = TypeVar("T")


class Progress(Protocol):
    """What a run tells while it goes on."""

    def stage(self, name: str, index: int, total: int, steps: int) -> None: ...

    def step(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def note(self, text: str) -> None: ...


class JudgeWithStamp(Judge, Protocol):
    """A judge that can be named in a protocol and closed."""

    digest: str
    stamp: VerifierStamp
    composition: Composition

    def close(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class Session:
    """Everything a stage needs. `judges` holds the judges of the named rewards in use (`judges.judging` makes them).

    `versions` maps a stage to the policy it ended with, `checkpoints` a version id to its folder
    below the run (the initial policy has none), `resident` is the id of the version the decoder holds now."""

    recipe: ResolvedRecipe
    ledger: Ledger
    policy: Policy
    engine: Engine
    judge: JudgeWithStamp
    sides: Split
    tasks: Mapping[TaskId, Task]
    image: EnvironmentImage
    publisher: Publisher
    progress: Progress
    dtype: torch.dtype
    versions: dict[str, PolicyVersion]
    selections: dict[str, tuple[str, ...]] = field(default_factory=dict)
    judges: dict[str, Judging] = field(default_factory=dict)
    checkpoints: dict[str, str] = field(default_factory=dict)
    resident: str | None = None
    around: Surroundings | None = None
    along: Along | None = None
    stop: bool = False
    began: float = field(default_factory=time.monotonic)

    @property
    def settings(self) -> Settings:
        return self.recipe.settings

    @property
    def root(self) -> Path:
        return self.ledger.root

    def rollouts(self, sampling: SamplingSettings) -> Rollouts:
        return rollouts_of(self.settings, self.policy, self.engine, self.around, sampling)

    def take(self, stage: str) -> PolicyVersion:
        """Puts the weights that `stage` ended with into decoder and engine; returns their version."""
        version = self.versions[stage]
        self.policy.decoder.requires_grad_(True)                    # whatever an earlier stage has frozen
        if self.resident != version.id:
            load_shaped(self.policy.decoder, self.weights(version))
            self.publisher.rehash()
            self.publisher.load(version.index)
            self.resident = version.id
        return version

    def weights(self, version: PolicyVersion) -> Mapping[str, torch.Tensor]:
        """The master weights of a version that a stage ended with, or of the start."""
        folder = self.checkpoints.get(version.id)
        if folder is not None:
            return read_tensors(self.root / folder)
        return {name: p.detach() for name, p in load_policy(self.settings.model).decoder.named_parameters()}

    def table(self, name: str, of: type[T]) -> list[T]:
        """The records of one table of the run, in order."""
        event = next((one for one in self.ledger.events("RecordTable") if one.body["name"] == name), None)
        if event is None:
            raise LedgerError(f"the run holds no table {name}", got="none", why="the stage that writes it has not ended")
        return [one for one in self.ledger.table_records(event) if isinstance(one, of)]

    def frozen(self, stage: str) -> Decoder:
        """A frozen copy of the weights that `stage` ended with, whatever the decoder holds now."""
        decoder = copy.deepcopy(self.policy.decoder)
        load_shaped(decoder, self.weights(self.versions[stage]))
        return frozen_copy(decoder, self.dtype)

    def finish(self, stage: str, kind: str, started: PolicyVersion, ended: PolicyVersion) -> None:
        """Records the end of a stage; a stage that moved the weights leaves a checkpoint."""
        checkpoint = None
        if ended.id != started.id:
            checkpoint = f"checkpoints/{stage}"
            save_checkpoint(self.root / checkpoint, self.policy.decoder, self.policy.tokenizer)
            self.checkpoints[ended.id] = checkpoint
            self.resident = ended.id
            if self.along is not None:
                self.along.ask(stage, None, ended)
        self.versions[stage] = ended
        self.ledger.append(StageEnd(stage=stage, kind=kind, started=started.id, ended=ended.id, checkpoint=checkpoint))

    def check_stop(self) -> None:
        """Raises `Stopped` at a record boundary when the user has asked to stop."""
        if self.stop:
            raise Stopped("stopped at a record boundary")


class TaskStream(Iterator[Task]):
    """Tasks in an order that depends on seed and position alone: every pass over them is its own permutation.

    A pass holds a task as often as `weights` says, once where it says nothing.
    """

    def __init__(self, tasks: Sequence[Task], *, seed: int, cursor: int, weights: Mapping[TaskId, int] = MappingProxyType({})):
        self.tasks, self.seed, self.cursor = tasks, seed, cursor
        self._drawn = tuple(task for task in tasks for _ in range(weights.get(task.id, 1) if weights else 1))
        self._pass: tuple[int, np.ndarray] | None = None

    def __next__(self) -> Task:
        epoch, place = divmod(self.cursor, len(self._drawn))
        if self._pass is None or self._pass[0] != epoch:
            self._pass = epoch, np.random.default_rng([self.seed, epoch]).permutation(len(self._drawn))
        self.cursor += 1
        return self._drawn[int(self._pass[1][place])]
