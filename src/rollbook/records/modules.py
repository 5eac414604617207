"""Models beside the policy (reward models, critics), and one optimizer step of any module outside a policy's batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from rollbook.records.codec import content_id
from rollbook.records.decisions import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleUpdate:
    """One optimizer step of the named module of a stage: what it was taken on, and what it did.

    `family` names the update function, `elements` the records it was given (rankings, pairs, batches), `tensors` the hash of
    a safetensors blob of what went into the loss, per token or per answer: see the family's module in `rollbook.training`. `loss`
    maps a term to its value.

    Example: ModuleUpdate(stage="rm", module="reward_model", family="reward_model", step=1, elements=("Ranking:1",),
        tensors="5a..", loss={"ranked": 0.69}, tokens=40, grad_norm=0.8, grad_clipped=False, learning_rate=1e-4,
        weights_before="ab..", weights_after="cd..")
    """

    SCHEMA: ClassVar[int] = 1
    stage: str
    module: str
    family: str
    step: int
    elements: tuple[str, ...]
    tensors: str
    loss: Mapping[str, float]
    tokens: int
    grad_norm: float
    grad_clipped: bool
    learning_rate: float
    weights_before: str
    weights_after: str
    observed: Mapping[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return content_id(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleVersion:
    """A trained module that later stages use: its weights, the checkpoint that holds them, what they were trained on.

    `began` names the policy version its body started from, `window` the updates in order, `frozen` the hash of the parameters
    that were not to move, None where all moved. `template` is what it reads prompts in.

    Example: ModuleVersion(stage="rm", module="reward_model", weights="cd..", began="PolicyVersion:2", window=("ModuleUpdate:1",),
        optimizer="ef..", checkpoint="checkpoints/rm.reward_model", frozen=None, tokenizer="77..", template="9c..")
    """

    SCHEMA: ClassVar[int] = 1
    stage: str
    module: str
    weights: str
    began: str
    window: tuple[str, ...]
    optimizer: str | None
    checkpoint: str
    frozen: str | None
    tokenizer: str
    template: str

    @property
    def id(self) -> str:
        return content_id(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How a reward model ranks the answers that it was not trained on, against its labels and against the truth behind them.

    Counts are of pairs of different score; a pair that the model scores equal counts half.

    Example: Agreement(stage="rm", module="ModuleVersion:1", rankings=40, pairs=212, with_labels=170.0, known=212,
        with_truth=196.0)
    """

    SCHEMA: ClassVar[int] = 1
    stage: str
    module: str
    rankings: int
    pairs: int
    with_labels: float
    known: int
    with_truth: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOf:
    """What the pick of a reward model among n answers of a policy is worth on the held-out side, by n.

    `picked` is the expected accuracy of its pick, `possible` the chance that one of n is right (pass@n), both exact over draws
    of n answers; n = 1 is the policy alone. `gain` is that of the largest n over one answer, paired by task. `ratings` are the
    model's, by trace.

    Example: BestOf(stage="best_eval", report="EvalReport:1", scorer="ModuleVersion:1", ratings={"Trace:1": 0.3},
        picked={"1": 0.4, "4": 0.6}, possible={"1": 0.4, "4": 0.7}, gain=Interval(...))
    """

    SCHEMA: ClassVar[int] = 1
    stage: str
    report: str
    scorer: str
    ratings: Mapping[str, float]
    picked: Mapping[str, float]
    possible: Mapping[str, float]
    gain: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Curation:
    """Which sampled answers a rejection-sampling stage made into demonstrations; `rejected` counts the others by reason.

    `ratings` are the reward model's, by trace, empty where none was asked.

    Example: Curation(stage="rs", policy="PolicyVersion:2", kept=("Trace:1",), rejected={"wrong": 5, "surplus": 2}, scorer=None,
        ratings={})
    """

    SCHEMA: ClassVar[int] = 1
    stage: str
    policy: str
    kept: tuple[str, ...]
    rejected: Mapping[str, int]
    scorer: str | None
    ratings: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The conversations that a stage took from a file, whose bytes are kept as the blob `sha256`: how many rows there were and
    became something to learn, and by reason the names of those that did not or only in part.

    Example: Collected(stage="chats", policy="PolicyVersion:0", sha256="9f..", suffix=".jsonl", rows=120, kept=117,
        left={"longer than max_tokens": ("row 4", "row 9", "row 88")})
    """

    SCHEMA: ClassVar[int] = 1
    stage: str
    policy: str
    sha256: str
    suffix: str
    rows: int
    kept: int
    left: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A policy that was made of others, and how: `parts` maps a version's id to its weight, in the order they were taken.

    `average_in_training` is a policy stage's moving average, of the given decay, up to the version it names; `pruned` is one
    version with layers and neurons left out.

    Example: Merged(stage="soup", weights="cd..", method="average", parts={"PolicyVersion:3": 0.5, ...}, base=None, decay=None)
    """

    SCHEMA: ClassVar[int] = 1
    stage: str
    weights: str
    method: str
    parts: Mapping[str, float]
    base: str | None
    decay: float | None
