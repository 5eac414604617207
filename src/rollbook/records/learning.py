"""Stages 11-12: the optimizer batch exactly as used, what the update did, and the policy it published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from rollbook.records.codec import SPARSE, content_id
from rollbook.records.recipe import Nested


@dataclass(frozen=True, slots=True, kw_only=True)
class TermSpec:
    """A named term of a step's loss: coefficient, how it is summed, over which tokens."""

    name: str
    coefficient: float
    aggregate: str
    population: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyControl:
    """What a controlled bonus for entropy was at one optimizer step: the controller's `alpha`, the mean entropy (nats) of the
    batch's tokens before the step, and the coefficient of the bonus that these two gave.
    """

    alpha: float
    entropy_nats: float
    coefficient: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Stage 11a: one optimizer step's input. `tensors` is the hash of a safetensors blob with the packed action tokens:
    token_ids, seq, group, length, correct (-1 unknown), behavior, version, anchor / reference / teacher where read, advantage,
    one weight per term and token. `max_length` is the length the aggregate `fixed_length` divides by.

    `plan` lists, for each micro-batch, the indices of its sequences. `pretraining` names the demonstrations that are trained on
    beside it (PPO-ptx): their trained tokens, and the weight of each, are tensors too. `control` is
    there where the objective's bonus for entropy is controlled.

    Example: Batch(scope="rl/000001/0", traces=("Trace:1",), tensors="5a..", objective={"kind": "Magistral", ...},
        terms=(TermSpec(name="policy", coefficient=1.0, aggregate="group_token_mean", population="actions"),),
        plan=((0,),), action_tokens=12, groups=1, max_age=0, max_length=64, threads=2, deterministic=True,
        compute_dtype="bfloat16")
    """

    SCHEMA: ClassVar[int] = 2
    scope: str
    traces: tuple[str, ...]
    tensors: str
    objective: Mapping[str, Nested]
    terms: tuple[TermSpec, ...]
    plan: tuple[tuple[int, ...], ...]
    action_tokens: int
    groups: int
    max_age: int
    max_length: int | None
    threads: int
    deterministic: bool
    compute_dtype: str
    pretraining: tuple[str, ...] = field(default=(), metadata=SPARSE)
    control: EntropyControl | None = field(default=None, metadata=SPARSE)

    @property
    def id(self) -> str:
        return content_id(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Stage 11b: what one optimizer step did. `tensors` holds per action token: current log-prob, entropy, whether the trust rule
    clipped it, and `gradient`, the derivative of the step's loss by the log-prob as it was backpropagated; `pretraining_logp` per
    trained token of the demonstrations beside the batch.

    `loss` maps a term's name to its value. `kl_nats` is the mean k3 estimate against the start policy, None where not measured.
    `mismatch_k3_nats` is mean(e^x - 1 - x), x = trainer's log-prob minus the engine's at sampling weights; None when the
    trainer had already moved.

    Example: Update(batch="Batch:1", index=1, tensors="6b..", loss={"policy": -0.01}, grad_norm=0.8, grad_clipped=False,
        clip_fraction=0.02, ratio_min=0.9, ratio_max=1.2, entropy_nats=0.4, kl_nats=None, mismatch_k3_nats=1e-6,
        learning_rate=1e-5, weights_before="ab..", weights_after="cd..")
    """

    SCHEMA: ClassVar[int] = 2
    batch: str
    index: int
    tensors: str
    loss: Mapping[str, float]
    grad_norm: float
    grad_clipped: bool
    clip_fraction: float | None
    ratio_min: float | None
    ratio_max: float | None
    entropy_nats: float | None
    kl_nats: float | None
    mismatch_k3_nats: float | None
    learning_rate: float
    weights_before: str | None
    weights_after: str | None
    observed: Mapping[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return content_id(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """A consumer confirmed which weights it holds, before it sampled from them."""

    consumer: str
    weights: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Log-probs (nats) of fixed tokens by the consumer and by the trainer, right after publication: of all but the first `given`.

    Example: Probe(token_ids=(1, 7, 9), given=1, consumer=(-1.25, -0.5), trainer=(-1.26, -0.5), dtype="bfloat16")
    """

    token_ids: tuple[int, ...]
    given: int
    consumer: tuple[float, ...]
    trainer: tuple[float, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """Stage 12: weights that consumers may sample from. `index` counts publications within the run, from 0 (the start).

    `weights` hashes the master weights, `published` what a consumer must hold of them (in its compute dtype), `optimizer` the
    optimizer's state (None where there is none). `window` names what was trained since the parent, the batches of a
    policy stage or the `SftReport`s of a supervised one, and `updates` counts them. `probe` compares consumer and trainer
    on fixed tokens.

    Example: PolicyVersion(index=4, stage="rl", weights="cd..", published="ab..", parent="PolicyVersion:3", updates=2,
        optimizer="ef..", window=("Batch:1", "Batch:2"), healthy=True,
        acknowledged=(Acknowledgement(consumer="embedded-0", weights="ab.."),), probe=Probe(...))
    """

    SCHEMA: ClassVar[int] = 3
    index: int
    stage: str
    weights: str
    published: str
    parent: str | None
    updates: int
    optimizer: str | None
    window: tuple[str, ...]
    healthy: bool
    acknowledged: tuple[Acknowledgement, ...]
    probe: Probe | None

    @property
    def id(self) -> str:
        return content_id(self)
