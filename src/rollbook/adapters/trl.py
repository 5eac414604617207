"""Recording a TRL trainer: `record(trainer, out)` before `trainer.train()`.

Hooks, in the order of preference: the public callbacks of `transformers.Trainer`, the public reward functions and `compute_loss`
of the trainer object, and one private method, which `_watch_generation` alone touches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from transformers import TrainerCallback

from rollbook.adapters.recorder import EVALUATION, Recorder, host_update
from rollbook.adapters.trl_facts import ONLINE, host_run, sharded, trainer_name, trl_version
from rollbook.adapters.trl_generation import Generation, Heard, Known, Trained, listen
from rollbook.adapters.weights import weight_hash
from rollbook.ledger import Ledger
from rollbook.records import HostRun, HostUpdate, LedgerError, PolicyVersion, RecordError, content_id


def record(trainer: Any, out: str | os.PathLike[str], *, family: str = "host", reference: str | None = None,
           hash_weights: bool = True) -> Recording:
    """Records what the trainer does from now on into the run folder `out`; call it before `trainer.train()`.

    `reference` names the data set's column with the reference answer, `family` what the tasks are called. `hash_weights=False`
    spares one pass over the weights per optimizer step; then no stage that needs them can be checked. A folder that holds the
    record of this trainer goes on when training resumes from a checkpoint. Errors of recording are raised in the training loop.

    Example: record(trainer, "runs/grpo", reference="answer"); trainer.train()
    """
    trainer_name(trainer)
    trl_version()
    recording = Recording(trainer, Path(out), naming=(family, reference), hash_weights=hash_weights and not sharded(trainer))
    trainer.add_callback(recording)
    return recording


def _watch_generation(trainer: Any, around: Callable[[Callable[[Any], Any], Any], Any]) -> Callable[[], None]:
    """Sends each generation through `around(generate, inputs)`; the way to undo it.

    The only use of a private method: TRL (1.16 was read) shows prompt ids, log-probs and advantages of a whole generation in
    order, and the moment before its first token, nowhere else.
    """
    name = "_generate_and_score_completions"
    generate = getattr(trainer, name, None)
    if not callable(generate):
        raise RecordError(f"{type(trainer).__name__} of TRL {trl_version()} has no method {name}",
                          why="it is where prompts, completions and advantages can be seen together",
                          fix="install a version of TRL that docs/adapters.md names")
    setattr(trainer, name, lambda inputs: around(generate, inputs))
    return lambda: trainer.__dict__.pop(name, None) and None


class Recording(TrainerCallback):
    """The recording of one trainer. `close()` gives the folder free when training ended by an exception."""

    def __init__(self, trainer: Any, out: Path, *, naming: tuple[str, str | None], hash_weights: bool):
        self.trainer, self.out, self.naming, self.hash_weights = trainer, out, naming, hash_weights
        self.active = bool(getattr(trainer.accelerator, "is_main_process", True))
        self.online = trainer_name(trainer) in ONLINE
        self.recorder: Recorder | None = None
        self.weights: str | None = None
        self.trained = Trained()
        self.known = Known()
        self.heard = Heard()
        self.pending: HostUpdate | None = None
        self.healthy = False                # the weights after the pending step are finite
        self.logged = 0
        self._place, self._count = "", 0
        self._undo: list[Callable[[], Any]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.active:
            return
        self.close()
        self.recorder = self._open(int(state.global_step))
        self.logged = int(state.global_step)
        try:
            self._hook()
            if self.hash_weights:
                self._publish(int(state.global_step), window=())
        except BaseException:
            self.close()
            raise

    def _open(self, step: int) -> Recorder:
        """A new record, or the one in the folder when the trainer resumes from a checkpoint."""
        run = host_run(self.trainer, hashes=self.hash_weights, reference=self.naming[1])
        if not (self.out / "manifest.json").exists():
            return Recorder.begin(self.out, run)
        if step == 0 and next(Ledger.open(self.out, write=False).events("HostUpdate"), None) is not None:
            raise LedgerError("this folder holds the record of a training that has begun", got="a trainer at step 0",
                              why="its steps would be taken for new ones",
                              fix="choose another folder, or train(resume_from_checkpoint=...)")
        recorder = Recorder.open(self.out, after=step)
        hosts = [content_id(one) for one in recorder.ledger.records(HostRun)]
        if hosts[-1] != content_id(run):
            recorder.ledger.append(run)
        return recorder

    def _hook(self) -> None:
        """Puts the listeners in; `close` takes them out."""
        trainer = self.trainer
        loss = trainer.compute_loss

        def compute_loss(model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            if trainer.model.training:
                self.trained.online(inputs, self.known) if self.online else self.trained.offline(inputs)
            return loss(model, inputs, *rest, **named)

        trainer.compute_loss = compute_loss
        self._undo.append(lambda: trainer.__dict__.pop("compute_loss", None))
        if not self.online:
            return
        self._undo.append(_watch_generation(trainer, self._generation))
        for number, function in enumerate(list(trainer.reward_funcs)):
            if hasattr(function, "register_forward_hook"):
                self._undo.append(function.register_forward_hook(partial(self._scored, number)).remove)
            else:
                trainer.reward_funcs[number] = listen(function, number, lambda: self.heard)
                self._undo.append(partial(trainer.reward_funcs.__setitem__, number, function))

    def _scored(self, number: int, _module: Any, _given: Any, output: Any) -> None:
        """A reward model has scored the completions."""
        self.heard.rewards[number] = [float(value) for value in output.logits[:, 0].detach().float().cpu()]

    def _generation(self, generate: Callable[[Any], Any], inputs: Any) -> Any:
        """One generation with its rewards: issued before it, committed after it; an exception ends its attempts as failed."""
        assert self.recorder is not None
        step, training = int(self.trainer.state.global_step), bool(self.trainer.model.training)
        place = f"rl/{step + 1:06d}" if training else f"{EVALUATION}host/{step:06d}"
        self._count = self._count + 1 if place == self._place else 0
        self._place = place
        self._flush()
        generation = Generation(self.trainer, self.recorder, inputs, scope=f"{place}/{self._count}", policy=self.weights,
                                naming=self.naming)
        self.heard = generation.heard
        with generation.rollouts:
            output = generate(inputs)
            generation.took(output, step)
        if training:
            self.known = generation.known
        return output

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has moved: what was trained, from which weights to which."""
        if self.recorder is None:
            return
        self._flush()
        trained, self.trained = self.trained, Trained()
        before, after = self.weights, None
        if self.hash_weights:
            after, self.healthy = weight_hash(self.trainer.model.named_parameters())
            self.weights = after
        tensors = trained.blob()
        self.pending = host_update(
            int(state.global_step), {}, traces=tuple(trained.traces), sequences=tuple(trained.sequences),
            unmatched=trained.unmatched, tensors=None if tensors is None else self.recorder.ledger.put(tensors),
            averaged_over=None, weights_before=before, weights_after=after)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """The numbers that the trainer reports of the step that has just ended."""
        pending = self.pending
        if self.recorder is None or pending is None or pending.index != int(state.global_step) or "loss" not in (logs or {}):
            return
        numbers = {name: float(value) for name, value in (logs or {}).items() if isinstance(value, (int, float))}
        self.pending = host_update(pending.index, numbers, traces=pending.traces, sequences=pending.sequences,
                                   unmatched=pending.unmatched, tensors=pending.tensors, weights_before=pending.weights_before,
                                   weights_after=pending.weights_after, averaged_over=pending.index - self.logged)
        self.logged = pending.index
        self._flush()

    def _flush(self) -> None:
        """Logs the step that has ended, and the version that it made."""
        pending, self.pending = self.pending, None
        if pending is None or self.recorder is None:
            return
        identity = self.recorder.updated(pending)
        if pending.weights_after is not None:
            self.recorder.published(pending.index, weights=pending.weights_after, held=pending.weights_after,
                                    healthy=self.healthy, window=(identity,))

    def _publish(self, step: int, window: tuple[str, ...]) -> None:
        """The version that training starts from; one that a resumed run has on record must have the same weights."""
        assert self.recorder is not None
        self.weights, healthy = weight_hash(self.trainer.model.named_parameters())
        known = {version.index: version.weights for version in self.recorder.ledger.records(PolicyVersion)}
        if step not in known:
            self.recorder.published(step, weights=self.weights, held=self.weights, healthy=healthy, window=window)
        elif known[step] != self.weights:
            raise LedgerError(f"the trainer resumes from other weights than were recorded after step {step}",
                              got=f"{self.weights[:12]} for {known[step][:12]}",
                              why="the checkpoint was changed, or is another run's", fix="record into a new folder")

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._flush()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._flush()
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.recorder is not None and any(folder.rglob("*.safetensors")):
            self.recorder.checkpoint(int(state.global_step), folder)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self._flush()
        if self.recorder is not None and metrics:
            numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}
            self.recorder.evaluated("eval", int(state.global_step), numbers)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._flush()
        if self.recorder is not None:
            self.recorder.end()
        self.close()

    def close(self) -> None:
        """Takes the listeners out of the trainer and gives the run folder free."""
        while self._undo:
            self._undo.pop()()
        self.known, self.trained, self.pending = Known(), Trained(), None
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
