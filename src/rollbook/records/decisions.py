"""Stages 13-14 and what people read: evaluation reports, gate decisions, step reports, the audit's findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rollbook.records.codec import SPARSE
from rollbook.records.metrics import checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A point estimate with its interval. `level` is the coverage, `method` its name.

    Example: Interval(estimate=0.41, low=0.37, high=0.45, level=0.95, method="wilson", count=512)
    """

    estimate: float
    low: float
    high: float
    level: float
    method: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolBundle:
    """Everything an evaluation depends on besides the policy; comparisons need equal bundles.

    Example: ProtocolBundle(name="heldout", tasks="9f..", task_count=512, environment="EnvironmentImage:1", verifier="77..",
        template="b2..", temperature=0.7, top_p=1.0, max_tokens=64, trials=1, seed=11, aggregation="mean")
    """

    SCHEMA: ClassVar[int] = 1
    name: str
    tasks: str
    task_count: int
    environment: str
    verifier: str
    template: str
    temperature: float
    top_p: float
    max_tokens: int
    trials: int
    seed: int
    aggregation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """Stage 13: one policy under one protocol. Unscored items are counted, never averaged in.

    `outcomes` gives per task id 1.0/0.0 (or a mean over trials), None for unscored.

    Example: EvalReport(protocol="ProtocolBundle:1", stage="heldout_after", policy="PolicyVersion:4", weights="cd..",
        accuracy=Interval(...), format_rate=0.98, unscored=0, in_family=True, outcomes={"Task:1": 1.0},
        by_family={"chain_sum": 0.4}, mean_tokens=31.5)
    """

    SCHEMA: ClassVar[int] = 1
    protocol: str
    stage: str
    policy: str
    weights: str
    accuracy: Interval
    format_rate: float | None
    unscored: int
    in_family: bool
    outcomes: Mapping[str, float | None]
    by_family: Mapping[str, float]
    mean_tokens: float
    observed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The paired difference of two reports under one protocol (after minus before).

    `changed` names the one thing that differs. `claim` is "gain" only where the interval lies above zero; "none" claims nothing.

    Example: Comparison(before="EvalReport:1", after="EvalReport:2", gain=Interval(...), changed="policy", claim="gain",
        p_value=0.01)
    """

    SCHEMA: ClassVar[int] = 2
    before: str
    after: str
    gain: Interval
    changed: str
    claim: Literal["gain", "loss", "none"]
    p_value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDecision:
    """Stage 14: permission for one exact policy. Without a signed decision there is none.

    `files` maps each file of the policy's checkpoint to its SHA-256. `thresholds` maps a measure to the least value it must have
    (see `evaluation.gate.measure`), `reports` names every evaluation of the policy that was on record, `regression_owners` who
    answers for a task family that got worse. `rollback` is the weight hash to go back to, `incidents` where incidents are
    reported. Times are UTC. `signature` and `public_key` are the hashes of two objects: the bundle that signs
    everything here but itself, and the key it is verified with.

    Example: GateDecision(policy="PolicyVersion:4", weights="cd..", files={"model.safetensors": "9a.."}, decision="allow",
        thresholds={"heldout": 0.4}, reports=("EvalReport:2",), regression_owners={"gcd": "maria"},
        authority_limits=("serve-internal",), canary="1% of traffic for a day", rollback="ab..", incidents="maria@example.org",
        decided="2026-11-29T12:00:00Z", expires="2027-03-01T00:00:00Z", signature="5d..", public_key="e1..")
    """

    SCHEMA: ClassVar[int] = 2
    policy: str
    weights: str
    files: Mapping[str, str]
    decision: Literal["undecided", "refuse", "allow"]
    thresholds: Mapping[str, float]
    reports: tuple[str, ...]
    regression_owners: Mapping[str, str]
    authority_limits: tuple[str, ...]
    canary: str | None
    rollback: str | None
    incidents: str | None
    decided: str | None
    expires: str | None
    signature: str | None
    public_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One policy-improvement step: the ids of what it made and the numbers a person follows.

    Metrics that were not observed are absent from `metrics`.

    Example: StepReport(stage="rl", step=3, policy="PolicyVersion:3", published="PolicyVersion:4", census="Census:1",
        batches=("Batch:1", "Batch:2"), updates=("Update:1", "Update:2"), metrics={"reward/total_mean": 0.41})
    """

    SCHEMA: ClassVar[int] = 1
    stage: str
    step: int
    policy: str
    published: str
    census: str
    batches: tuple[str, ...]
    updates: tuple[str, ...]
    metrics: Mapping[str, float]
    observed: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked(self.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which training tasks a pass-rate stage kept: task ids, how often each was solved, rejections by reason.

    Example: Selection(stage="select", policy="PolicyVersion:2", kept=("Task:1",), pass_counts={"Task:1": 3}, samples=8,
        rejected={"too_easy": 4})
    """

    SCHEMA: ClassVar[int] = 1
    stage: str
    policy: str
    kept: tuple[str, ...]
    pass_counts: Mapping[str, int]
    samples: int
    rejected: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEnd:
    """A stage is complete: the policy it began with and the one it ended with (the same where it trains nothing).

    `checkpoint` is the folder below the run that holds the latter, None for the initial model.

    Example: StageEnd(stage="rl", kind="PolicyGradient", started="PolicyVersion:2", ended="PolicyVersion:42",
        checkpoint="checkpoints/rl")
    """

    SCHEMA: ClassVar[int] = 1
    stage: str
    kind: str
    started: str
    ended: str
    checkpoint: str | None
    observed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The run is over: completed, or diverged with what stopped it."""

    SCHEMA: ClassVar[int] = 1
    status: Literal["completed", "diverged"]
    detail: str
    observed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SftReport:
    """One supervised optimizer step: the demonstrations it saw, loss in nats per policy token, gradient norm.

    `tensors` is the hash of a safetensors blob of what was trained: token_ids of all demonstrations end to end, their lengths,
    and the loss weight of every token, as the learner used it. `repeated` of the policy's tokens were left out for repeating;
    None where the stage has no such rule.
    """

    SCHEMA: ClassVar[int] = 2
    stage: str
    step: int
    demonstrations: tuple[str, ...]
    tensors: str
    tokens: int
    loss_nats: float
    grad_norm: float
    learning_rate: float
    observed: Mapping[str, float] = field(default_factory=dict)
    repeated: int | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One stage's finding."""

    stage: int
    name: str
    result: Literal["pass", "fail", "not_applicable"]
    record: str | None
    evidence: str
    remedy: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Fourteen findings about one run."""

    SCHEMA: ClassVar[int] = 1
    run: str
    rows: tuple[AuditRow, ...]
