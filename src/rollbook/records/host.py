"""A run that another program makes, recorded from outside: who it is, what it does not show, and what it showed of its steps."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rollbook.records.codec import content_id
from rollbook.records.errors import RecordError
from rollbook.records.recipe import Plain
from rollbook.records.tasks import Message

STAGES = ("acquisition", "normalisation", "splits", "environment", "cold start", "request", "events", "reward", "admission",
          "credit", "update", "publication", "evaluation", "gate")


def ids_hash(token_ids: Sequence[int]) -> str:
    """SHA-256 over the ids as int32, little-endian, shortened to 128 bits."""
    return hashlib.sha256(array("i", token_ids).tobytes()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRun:
    """The host of this run, from its first event on. `unseen` maps a stage of the chain to the reason why nothing of it can be
    checked here, `partly` to what is missing of a stage that can. `settings` are the host's own numbers.

    Example: HostRun(host="trl.GRPOTrainer", version="1.16.0", adapter="rollbook.adapters.trl/1",
        unseen={"splits": "the trainer is handed a data set, not how it was split"}, partly={"events": "no log-probs"},
        settings={"beta": 0.0})
    """

    SCHEMA: ClassVar[int] = 1
    host: str
    version: str
    adapter: str
    unseen: Mapping[str, str]
    partly: Mapping[str, str]
    settings: Mapping[str, Plain]

    def __post_init__(self) -> None:
        unknown = sorted({*self.unseen, *self.partly} - set(STAGES))
        if unknown:
            raise RecordError("no stage of the chain has this name", got=", ".join(unknown), fix=f"stages: {', '.join(STAGES)}")
        both = sorted(set(self.unseen) & set(self.partly))
        if both:
            raise RecordError("a stage is either unseen or seen in part", got=", ".join(both))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTask:
    """A task as a host showed it: its prompt, and the answer it is judged against (None where the host gave none).

    Example: HostTask(family="sums", prompt="4 + 3 =", reference="7")
    """

    SCHEMA: ClassVar[int] = 1
    family: str
    prompt: str | tuple[Message, ...]
    reference: str | None

    @property
    def id(self) -> str:
        return content_id(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUpdate:
    """Stage 11 as a host showed it: one optimizer step. What the host did not give is None; `not_finite` names what was NaN.

    `traces` are the trajectories it trained. `sequences` hashes the ids (prompt and completion) of every sequence that the host's
    loss was given, in its order (`ids_hash`); `unmatched` counts those that are no recorded trajectory. `tensors` is the hash of
    a safetensors blob with `length`, the tokens in the loss of each sequence, and `advantage` per sequence or per such token; for
    supervised and preference steps token_ids, length and `trained`, which of them are in the loss. `averaged_over` is the number
    of steps that the host averaged `loss` and `metrics` over.

    Example: HostUpdate(index=3, traces=("Trace:1",), sequences=("5d..",), unmatched=0, tensors="6b..", loss=-0.01, grad_norm=0.8,
        learning_rate=1e-5, metrics={"kl": 0.0}, not_finite=(), averaged_over=1, weights_before="ab..", weights_after="cd..")
    """

    SCHEMA: ClassVar[int] = 1
    index: int
    traces: tuple[str, ...]
    sequences: tuple[str, ...]
    unmatched: int
    tensors: str | None
    loss: float | None
    grad_norm: float | None
    learning_rate: float | None
    metrics: Mapping[str, float]
    not_finite: tuple[str, ...]
    averaged_over: int | None
    weights_before: str | None
    weights_after: str | None
    observed: Mapping[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return content_id(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCheckpoint:
    """Files of weights that a host saved after `index` optimizer steps: SHA-256 by name within their folder.

    Example: HostCheckpoint(index=40, folder="checkpoint-40", files={"model.safetensors": "9c.."})
    """

    SCHEMA: ClassVar[int] = 1
    index: int
    folder: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvaluation:
    """Numbers that a host reported of an evaluation after `index` optimizer steps; it shows no outcome per task.

    Example: HostEvaluation(name="eval", index=40, metrics={"eval_reward": 0.4}, not_finite=("eval_kl",))
    """

    SCHEMA: ClassVar[int] = 1
    name: str
    index: int
    metrics: Mapping[str, float]
    not_finite: tuple[str, ...]
