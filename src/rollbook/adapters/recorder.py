"""A ledger that a plain training loop writes: rollouts, updates, versions, checkpoints, evaluations, as far as it has them."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors.numpy import save

from rollbook.adapters.rollouts import Rollouts
from rollbook.adapters.samples import RewardParts, finite
from rollbook.ledger import Event, Ledger, environment_manifest
from rollbook.ledger.objects import file_digest
from rollbook.records import (
    Acknowledgement,
    AttemptId,
    Composition,
    HostCheckpoint,
    HostEvaluation,
    HostRun,
    HostTask,
    HostUpdate,
    LedgerError,
    PolicyVersion,
    RecordError,
    RunEnd,
    SamplingEnvelope,
    Trace,
    TraceId,
    content_id,
    ids_hash,
)
from rollbook.records.recipe import Plain

KEPT_ATTEMPTS = 200_000      # latest attempts by name, for the updates that train them
UNSEEN = {
    "acquisition": "the host hands over prompts, not where they were acquired and under which licence",
    "normalisation": "the host hands over finished prompts, not the raw tasks that they were made from",
    "splits": "the host shows no held-out side of its tasks",
    "environment": "what judges the completions runs inside the host and was not run a second time",
    "cold start": "the host shows no demonstrations with the owner of every token",
    "update": "the host shows neither its loss as an objective nor the trainer's log-probs, so the loss cannot be recomputed",
    "evaluation": "the host shows no evaluation with an outcome per task",
    "gate": "the host takes no signed decision",
}
UNPUBLISHED = {
    "publication": "the host does not show which weights its sampler held",
    "events": "the host does not show which weights its sampler held, so no token can be given to a published version",
}
EVALUATION = "eval/"         # how the scopes of attempts begin that are sampled for an evaluation
CLOSING = {"HostRun", "HostUpdate", "HostCheckpoint", "HostEvaluation", "PolicyVersion", "Census"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What an update needs of an attempt: its trajectory, the hash of its ids, its own tokens, whether it may be trained."""

    trace: TraceId
    ids: str
    actions: int
    accepted: bool


class Recorder:
    """The record of a host's run; one writer at a time. Use as a context manager, or call `close()`.

    Example:
        with Recorder.create("runs/a", host="my loop", version="1") as recorder:
            with recorder.rollouts("rl/000001", reward=parts) as rollouts:
                attempts = rollouts.issue(tasks, 4, envelope)
                ...
            recorder.update(1, trained=attempts, numbers={"loss": -0.01})
    """

    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        self.index = 0
        self.version: str | None = None
        self._once: set[str] = set()
        self._kept: OrderedDict[AttemptId, _Kept] = OrderedDict()

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, host: str, version: str, publishes: bool,
               unseen: Mapping[str, str] | None = None, partly: Mapping[str, str] | None = None,
               settings: Mapping[str, Plain] | None = None) -> Self:
        """A new run folder. `publishes` says that every version that samples will be named with `published()`.

        `unseen` and `partly` add the loop's own reasons why a stage cannot be checked, wholly or in part.
        """
        hidden = {**UNSEEN, **({} if publishes else UNPUBLISHED), **(unseen or {})}
        run = HostRun(host=host, version=version, adapter="rollbook.adapters/1", unseen=hidden, settings=settings or {},
                      partly={stage: why for stage, why in (partly or {}).items() if stage not in hidden})
        return cls.begin(path, run)

    @classmethod
    def begin(cls, path: str | os.PathLike[str], run: HostRun) -> Self:
        """A new run folder of the host that this record describes."""
        recorder = cls(Ledger.create(path, {**environment_manifest(), "recorded": {"host": run.host, "version": run.version}}))
        try:
            recorder.ledger.append(run)
        except BaseException:
            recorder.close()
            raise
        return recorder

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, after: int | None = None) -> Self:
        """Goes on with a recorded run. What was not finished is declared void; with `after`, also every later optimizer step,
        because the host goes on from its state after that many."""
        ledger = Ledger.open(path)
        try:
            first = next(ledger.events(), None)
            if first is None or first.kind != "HostRun":
                raise LedgerError(f"{path} is not the record of a host's run", got="no event" if first is None else first.kind,
                                  fix="give a folder that Recorder.create made")
            reason = "it was not finished" if after is None else f"the host went on from its state after {after} optimizer steps"
            ledger.rollback(_last_whole(ledger, after), reason)
            recorder = cls(ledger)
            for event in ledger.events():
                recorder._remember(event)
        except BaseException:
            ledger.close()
            raise
        return recorder

    def _remember(self, event: Event) -> None:
        if event.kind in ("HostTask", "SamplingEnvelope", "Composition"):
            self._once.add(event.id)
        elif event.kind == "HostUpdate":
            self.index = int(event.body["index"])
        elif event.kind == "PolicyVersion":
            self.version = event.id

    def once(self, record: HostTask | SamplingEnvelope | Composition) -> str:
        """The id of the record, which is logged the first time."""
        identity = content_id(record)
        if identity not in self._once:
            self.ledger.append(record)
            self._once.add(identity)
        return identity

    def rollouts(self, scope: str, *, reward: RewardParts | None = None) -> Rollouts:
        """The attempts of one place in the loop, `STAGE/NUMBER`; the name must be new in this run."""
        return Rollouts(self, scope, reward)

    def keep(self, traces: Mapping[AttemptId, Trace], ids: Mapping[AttemptId, TraceId], accepted: set[AttemptId]) -> None:
        """Remembers committed trajectories for the updates that train them."""
        for attempt, trace in traces.items():
            self._kept[attempt] = _Kept(trace=ids[attempt], ids=ids_hash(trace.token_ids), actions=trace.action_count,
                                        accepted=attempt in accepted)
        while len(self._kept) > KEPT_ATTEMPTS:
            self._kept.popitem(last=False)

    def trace_of(self, attempt: AttemptId) -> TraceId:
        """The id of a committed trajectory, by the name of its attempt."""
        return self._kept[attempt].trace

    def update(self, index: int, *, trained: Sequence[AttemptId], numbers: Mapping[str, float | None],
               advantages: Mapping[AttemptId, Sequence[float]] | None = None,
               weights: tuple[str | None, str | None] = (None, None), averaged_over: int | None = None) -> str:
        """One optimizer step, `index` counting from 1: what it trained and what the host reports; the id of its record.

        `numbers` may hold loss, grad_norm, learning_rate and others; NaN is named, None is absent. `advantages` gives each
        trained attempt one number per sampled token, or one for all. `weights` are the hashes before and after.
        """
        kept = [self._trainable(attempt) for attempt in trained]
        tensors = self._advantages(trained, kept, advantages) if advantages is not None else None
        return self.updated(host_update(
            index, numbers, traces=tuple(one.trace for one in kept), sequences=tuple(one.ids for one in kept), unmatched=0,
            tensors=None if tensors is None else self.ledger.put(tensors), weights_before=weights[0], weights_after=weights[1],
            averaged_over=averaged_over))

    def updated(self, update: HostUpdate) -> str:
        """Logs an optimizer step, in order."""
        if update.index <= self.index:
            raise RecordError("optimizer steps are recorded once and in order", got=f"{update.index} after {self.index}",
                              fix="open the recording with `after` when the host goes back to an earlier state")
        identity = self.ledger.append(update)
        self.index = update.index
        return identity

    def _trainable(self, attempt: AttemptId) -> _Kept:
        kept = self._kept.get(attempt)
        if kept is None:
            raise RecordError(f"attempt {attempt} cannot have been trained", got="no trajectory of this name among the latest",
                              fix=f"commit its rollouts first; updates reach back {KEPT_ATTEMPTS} attempts")
        if not kept.accepted:
            raise RecordError(f"attempt {attempt} was dropped and yet trained", fix="do not drop what is trained",
                              why="its outcome says that it did not reach the learner")
        return kept

    def _advantages(self, trained: Sequence[AttemptId], kept: Sequence[_Kept],
                    advantages: Mapping[AttemptId, Sequence[float]]) -> bytes:
        """Lengths of the trained sequences and their advantages, one after the other."""
        flat: list[float] = []
        for attempt, one in zip(trained, kept, strict=True):
            given = list(advantages.get(attempt, ()))
            if len(given) not in (1, one.actions):
                raise RecordError(f"attempt {attempt} has another number of advantages than of sampled tokens",
                                  got=f"{len(given)} for {one.actions}", fix="give one per sampled token, or one for all of them")
            flat += given if len(given) == one.actions else given * one.actions
        return tensor_blob({"length": np.array([one.actions for one in kept], np.int32), "advantage": np.array(flat, np.float32)})

    def published(self, index: int, *, weights: str, held: str, healthy: bool, window: Sequence[str] = (),
                  acknowledged: Sequence[Acknowledgement] = ()) -> str:
        """The weights (by hash) after `index` optimizer steps and what a sampler `held` of them, before it samples; `healthy`
        says that they were looked through and are finite, `window` names the updates since the version before."""
        self.version = self.ledger.append(PolicyVersion(
            index=index, stage="host", weights=weights, published=held, parent=self.version, updates=len(window), optimizer=None,
            window=tuple(window), healthy=healthy, acknowledged=tuple(acknowledged), probe=None))
        return self.version

    def checkpoint(self, index: int, folder: str | os.PathLike[str]) -> str:
        """The safetensors files of a folder that the host saved after `index` steps; only names and hashes are recorded."""
        place = Path(folder)
        files = {path.relative_to(place).as_posix(): file_digest(path) for path in sorted(place.rglob("*.safetensors"))}
        if not files:
            raise RecordError("this folder holds no safetensors file", got=place.name,
                              why="weights in other formats are programs that cannot be hashed by content",
                              fix="save the checkpoint as safetensors")
        return self.ledger.append(HostCheckpoint(index=index, folder=place.name, files=files))

    def evaluated(self, name: str, index: int, metrics: Mapping[str, float | None]) -> str:
        """Numbers of an evaluation after `index` steps."""
        kept, lost = finite(metrics)
        return self.ledger.append(HostEvaluation(name=name, index=index, metrics=kept, not_finite=lost))

    def end(self, status: str = "completed", detail: str = "") -> None:
        """The run is over."""
        if status not in ("completed", "diverged"):
            raise RecordError("a run ends completed or diverged", got=repr(status))
        self.ledger.append(RunEnd(status="completed" if status == "completed" else "diverged", detail=detail))

    def close(self) -> None:
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def host_update(index: int, numbers: Mapping[str, float | None], **known: Any) -> HostUpdate:
    """The record of a step from the numbers as the host gave them: NaN is named, None is absent."""
    metrics, lost = finite(numbers)
    loss, norm, rate = (metrics.pop(name, None) for name in ("loss", "grad_norm", "learning_rate"))
    return HostUpdate(index=index, loss=loss, grad_norm=norm, learning_rate=rate, metrics=metrics, not_finite=lost, **known)


def tensor_blob(tensors: Mapping[str, np.ndarray]) -> bytes:
    """A safetensors blob of these arrays; where a number is not finite it stands as it is."""
    return bytes(save({name: np.ascontiguousarray(value) for name, value in tensors.items()}))


def _last_whole(ledger: Ledger, after: int | None) -> int:
    """Sequence number of the last event that stands when the host goes on after `after` optimizer steps (None: where it was).

    Each of the kinds in `CLOSING` leaves the log whole; attempts that were issued for a later step are where it ends.
    """
    whole = steps = 0
    for event in ledger.events():
        if after is not None and event.kind == "HostUpdate" and int(event.body["index"]) > after:
            break
        evaluates = event.kind == "Dispatch" and str(event.body["scope"]).startswith(EVALUATION)
        if after is not None and steps >= after and event.kind == "Dispatch" and not evaluates:
            break
        steps = int(event.body["index"]) if event.kind == "HostUpdate" else steps
        whole = event.seq if event.kind in CLOSING else whole
    return whole
