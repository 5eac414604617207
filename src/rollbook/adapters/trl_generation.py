"""One generation of a TRL trainer, from the inputs it is given to the tensors it hands to its loss, as rollouts of the chain."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollbook.adapters.recorder import EVALUATION, Recorder, tensor_blob
from rollbook.adapters.rollouts import Rollouts
from rollbook.adapters.samples import Sampled
from rollbook.adapters.trl_facts import credit_rule, prompt_of, reward_parts, sampling_envelope
from rollbook.records import AttemptId, HostTask, RecordError, TraceId, ids_hash

NEEDED = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages")


@dataclass(slots=True)
class Heard:
    """What the reward functions of one generation were given and returned. Rewards are by function, one per completion."""

    rewards: dict[int, list[float | None]] = field(default_factory=dict)
    completion_ids: list[list[int]] | None = None
    texts: list[str] | None = None

    def take(self, given: Mapping[str, Any]) -> None:
        completions = given.get("completions")
        if self.completion_ids is None and given.get("completion_ids") is not None:
            self.completion_ids = [list(map(int, ids)) for ids in given["completion_ids"]]
        if self.texts is None and completions and all(isinstance(one, str) for one in completions):
            self.texts = list(completions)


def listen(function: Callable[..., Any], number: int, heard: Callable[[], Heard]) -> Callable[..., Any]:
    """The reward function, telling what it was given and what it returned; a function of the same kind and name."""

    def told(given: Mapping[str, Any], result: Any) -> list[Any]:
        values = list(result)
        heard().take(given)
        heard().rewards[number] = [None if value is None else float(value) for value in values]
        return values

    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        async def later(**given: Any) -> list[Any]:
            return told(given, await function(**given))
        return functools.update_wrapper(later, function)

    def now(**given: Any) -> list[Any]:
        return told(given, function(**given))
    return functools.update_wrapper(now, function)


@dataclass(slots=True)
class Known:
    """The trajectories of the latest generation as the loss is given them: by the hash of their ids, with their advantage."""

    held: dict[str, list[tuple[TraceId, float | None]]] = field(default_factory=dict)
    found: Counter[tuple[str, float | None]] = field(default_factory=Counter)

    def add(self, name: str, trace: TraceId, advantage: float | None) -> None:
        self.held.setdefault(name, []).append((trace, advantage))

    def find(self, name: str, advantage: float | None) -> TraceId | None:
        """The trajectory with these ids and this advantage; equal ones in turn."""
        same = [trace for trace, own in self.held.get(name, ()) if advantage is None or own is None or own == advantage]
        if not same:
            return None
        self.found[name, advantage] += 1
        return same[(self.found[name, advantage] - 1) % len(same)]


class Generation:
    """Issues the attempts before the trainer samples and commits what came of them, in `known` as the loss is given it."""

    def __init__(self, trainer: Any, recorder: Recorder, inputs: Sequence[Mapping[str, Any]], *, scope: str, policy: str | None,
                 naming: tuple[str, str | None]):
        self.trainer, self.recorder, self.scope = trainer, recorder, scope
        self.heard = Heard()
        self.known = Known()
        family, reference = naming
        tasks = [HostTask(family=family, prompt=prompt_of(one.get("prompt", "")),
                          reference=None if reference is None or one.get(reference) is None else str(one[reference]))
                 for one in inputs]
        per = int(trainer.num_generations if not scope.startswith(EVALUATION) else
                  getattr(trainer, "num_generations_eval", None) or trainer.num_generations)
        grouped = len(tasks) % per == 0 and all(tasks[at] == tasks[at - at % per] for at in range(len(tasks)))
        self.rollouts: Rollouts = recorder.rollouts(scope, reward=reward_parts(trainer))
        chat = bool(inputs) and not isinstance(inputs[0].get("prompt", ""), str)
        envelope = sampling_envelope(trainer, policy=policy, chat=chat)
        self.whole_groups = grouped
        self.attempts = self.rollouts.issue(tasks[::per] if grouped else tasks, per if grouped else 1, envelope)

    def took(self, output: Mapping[str, Any], version: int) -> None:
        """Takes what the trainer made of the generation; refuses an output whose form is not known."""
        missing = [name for name in NEEDED if name not in output]
        if missing:
            raise RecordError("this version of TRL hands other tensors to its loss", got=f"no {', '.join(missing)}",
                              fix="install a version of TRL that docs/adapters.md names")
        rows = _rows(output, self.heard.completion_ids)
        stops = set(map(int, getattr(self.trainer, "eos_token_ids", ()) or ()))
        advantages = output["advantages"].detach().float().cpu()
        sampled = []
        for place, (attempt, row) in enumerate(zip(self.attempts, rows, strict=True)):
            ids = row.completion
            sampled.append(Sampled(
                attempt=attempt, prompt_ids=row.prompt, token_ids=ids, version=version, logps=row.logps, own=row.own,
                text=self.heard.texts[place] if self.heard.texts else self._decoded(ids),
                stop_reason="end_of_turn" if ids and ids[-1] in stops else "length"))
        self.rollouts.sampled(sampled)
        self.rollouts.rewarded(self._rewards())
        masked = [attempt for attempt, row in zip(self.attempts, rows, strict=True) if row.masked]
        self.rollouts.dropped(masked, "truncated", "the trainer masks completions without an end")
        self._credit(advantages)
        self.rollouts.commit()
        for attempt, row, advantage in zip(self.attempts, rows, advantages, strict=True):
            self.known.add(ids_hash((*row.prompt, *row.completion)), self.recorder.trace_of(attempt),
                           float(advantage) if advantage.ndim == 0 else None)

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self.trainer.processing_class.decode(list(ids), skip_special_tokens=True))

    def _rewards(self) -> dict[AttemptId, Mapping[str, float | None] | None]:
        """Parts by name for each attempt; None where no function gave anything, as when it did not run."""
        names = list(self.rollouts.reward.weights) if self.rollouts.reward else []
        columns = {names[number]: values for number, values in self.heard.rewards.items()}
        if not columns:
            return {}
        return {attempt: {name: values[place] for name, values in columns.items()} for place, attempt in enumerate(self.attempts)}

    def _credit(self, advantages: Any) -> None:
        rule = credit_rule(self.trainer)
        if rule is None or advantages.ndim != 1 or not self.whole_groups or self.scope.startswith(EVALUATION):
            return
        mean = "mean of the others" if rule["kind"] == "LeaveOneOut" else "group mean"
        self.rollouts.credited(rule, dict(zip(self.attempts, advantages.tolist(), strict=True)), baseline=mean,
                               normalized_over=str(rule["kind"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    prompt: list[int]
    completion: list[int]
    logps: list[float] | None
    own: list[bool] | None
    masked: bool


def _rows(output: Mapping[str, Any], heard: list[list[int]] | None) -> list[_Row]:
    """The sequences without padding. A masked completion keeps its ids: they are taken from what the reward was given."""
    prompts, _ = _ids(output["prompt_ids"], output["prompt_mask"])
    completions, kept = _ids(output["completion_ids"], output["completion_mask"])
    logps = output.get("sampling_per_token_logps")
    tools = output.get("tool_mask")
    rows = []
    for place, prompt in enumerate(prompts):
        masked = not kept[place].any()
        ids = completions[place] if not masked or heard is None else heard[place]
        width = len(ids)
        rows.append(_Row(
            prompt=prompt, completion=ids, masked=masked and width > 0,
            logps=None if logps is None else logps[place, :width].float().cpu().tolist(),
            own=None if tools is None or masked else [bool(one) for one in tools[place, :width].tolist()]))
    return rows


def _ids(ids: Any, mask: Any) -> tuple[list[list[int]], np.ndarray]:
    table, keep = ids.detach().cpu().numpy(), mask.detach().cpu().numpy().astype(bool)
    return [table[row][keep[row]].tolist() for row in range(len(table))], keep


@dataclass(slots=True)
class Trained:
    """What the loss was given since the last optimizer step."""

    sequences: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    in_loss: list[int] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)

    def online(self, inputs: Mapping[str, Any], known: Known) -> None:
        """Sequences of a policy loss: prompt and completion ids, tokens in the loss, advantages; masked ones are left out."""
        missing = [name for name in NEEDED if name not in inputs]
        if missing:
            raise RecordError("this version of TRL hands other tensors to its loss", got=f"no {', '.join(missing)}")
        prompts, _ = _ids(inputs["prompt_ids"], inputs["prompt_mask"])
        completions, kept = _ids(inputs["completion_ids"], inputs["completion_mask"])
        if inputs.get("tool_mask") is not None:
            kept = kept & inputs["tool_mask"].detach().cpu().numpy().astype(bool)
        advantages = inputs["advantages"].detach().float().cpu().numpy()
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            if not kept[row].any():
                continue
            name = ids_hash((*prompt, *completion))
            self.sequences.append(name)
            self.lengths.append(int(kept[row].sum()))
            per_token = advantages.ndim == 2 and advantages.shape[1] > 1
            given = advantages[row][kept[row]].tolist() if per_token else [float(advantages[row].reshape(-1)[0])]
            self.advantages += given
            trace = known.find(name, None if per_token else given[0])
            self.traces += [] if trace is None else [trace]

    def offline(self, inputs: Mapping[str, Any]) -> None:
        """Sequences of a supervised or preference loss, and which of their tokens are in it."""
        if "input_ids" not in inputs:
            return
        ids = inputs["input_ids"].detach().cpu().numpy()
        held = inputs.get("attention_mask")
        keep = np.ones(ids.shape, bool) if held is None or held.shape != ids.shape else held.cpu().numpy().astype(bool)
        if inputs.get("labels") is not None:
            loss = inputs["labels"].detach().cpu().numpy() != -100
        elif inputs.get("completion_mask") is not None:
            loss = inputs["completion_mask"].detach().cpu().numpy().astype(bool)
        else:
            return
        for row, mask, trained in zip(ids, keep, loss, strict=True):
            own = row[mask].tolist()
            self.sequences.append(ids_hash(own))
            self.lengths.append(len(own))
            self.tokens += own
            self.in_loss += trained[mask].astype(int).tolist()

    def blob(self) -> bytes | None:
        if not self.sequences:
            return None
        length = np.array(self.lengths, np.int32)
        if self.tokens:
            return tensor_blob({"token_ids": np.array(self.tokens, np.int32), "length": length,
                                "trained": np.array(self.in_loss, np.uint8)})
        return tensor_blob({"length": length, "advantage": np.array(self.advantages, np.float32)})

    @property
    def unmatched(self) -> int:
        """Sequences that are no recorded trajectory."""
        return len(self.sequences) - len(self.traces)
