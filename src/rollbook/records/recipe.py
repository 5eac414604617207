"""What a recipe resolves to: typed settings, and for each value where it comes from. Orchestration sees nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

Plain = str | bool | int | float | None
Nested = Plain | Mapping[str, Plain | Mapping[str, Plain]]      # an objective, its credit rule, a rule inside that
Label = Literal["D", "C", "R", "I", "U"]
Scale = Literal["full", "lab", "tiny"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Why a value is what it is. `origin` is the layer that set it: the recipe, its scale overlay, the user.

    D, C and R cite `claim`, I gives `reason` and may name the claim it is drawn from, U has no value. `scaled_from` is the
    true-scale value a smaller one replaces.
    """

    origin: Literal["recipe", "overlay", "user"]
    label: Label | None
    claim: str | None = None
    reason: str | None = None
    scaled_from: Plain = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Machine-facing choices. `threads` 0 means all cores; `dtype` is the compute precision, master weights are fp32.

    `gradient_checkpointing` trades a second forward pass for the memory of activations; the bits of an update stay the same.
    """

    seed: int
    device: str
    threads: int
    dtype: Literal["auto", "float32", "bfloat16"]
    gradient_checkpointing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """A causal language model by built-in name (smollm2-135m-instruct), folder or hub name."""

    path: str
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """A model from scratch over a character tokenizer; `window` is the sliding attention window, `experts` 0 means dense."""

    architecture: Literal["llama", "mistral", "qwen3_moe"]
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    context: int
    window: int | None
    experts: int
    experts_per_token: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One generator of tasks with its parameters and its share of the mixture."""

    generator: str
    weight: float
    parameters: Mapping[str, Plain]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """Task mixture and the two sides of the split, apart by canonical problem."""

    families: Mapping[str, Family]
    train: int
    heldout: int
    seed: int
    system_prompt: str
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """A named composition and its numbers; lengths in tokens, `verify_seconds` is the hard limit of one verification.

    `length_max` and `length_cache` are l_max and l_cache of the soft length penalty.
    """

    composition: Literal["magistral"]
    format_reward: float
    correct_reward: float
    length_penalty: float
    length_max: int
    length_cache: int
    language_reward: float | None
    verify_seconds: float
    verify_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW with linear warm-up over `warmup_steps` optimizer steps, then constant or cosine to zero."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    warmup_steps: int
    schedule: Literal["constant", "cosine"]
    max_grad_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How the policy is sampled; `top_k` 0 and `min_p` 0.0 are off."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Held-out evaluation of the policy that stage `policy` ended with (`start` is the initial model)."""

    policy: str
    sampling: SamplingSettings
    trials: int
    seed: int
    compare_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sft:
    """Supervised fine-tuning on reasoning traces, with a share of general chat kept.

    `traces` maps the style of a programmatically written trace to its weight in the mixture; `steps` x `batch`
    demonstrations are shown in all. The general part is answered by the policy the stage starts from.
    """

    policy: str
    traces: Mapping[str, float]
    steps: int
    batch: int
    general_share: float
    optimizer: OptimizerSettings
    max_batch_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """Keeps training tasks that the policy solves between `low` and `high` times of `samples`, both inclusive."""

    policy: str
    candidates: int
    samples: int
    low: int
    high: int
    sampling: SamplingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradient:
    """Reinforcement learning of one policy. `tasks` names the stage whose selection is used, or `train`.

    Each step issues waves of `prompts` x `per_task` attempts until `groups` groups are informative or `max_waves` is reached.
    `probe` held-out problems are evaluated every `probe_every` steps (0: never) for the curve in the report.
    """

    policy: str
    tasks: str
    objective: Mapping[str, Nested]
    steps: int
    prompts: int
    per_task: int
    groups: int
    max_waves: int
    minibatches: int
    max_policy_age: int
    sampling: SamplingSettings
    optimizer: OptimizerSettings
    max_batch_tokens: int
    probe: int
    probe_every: int
    checkpoint_every: int


Stage = Evaluate | Sft | PassRate | PolicyGradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The typed body of a recipe at one scale."""

    run: RunSettings
    model: Pretrained | Tiny
    tasks: TaskSettings
    reward: RewardSettings
    stages: Mapping[str, Stage]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRecipe:
    """The first artifact of a run: every value in force and where it came from, keyed by its dotted path."""

    SCHEMA: ClassVar[int] = 1
    name: str
    title: str
    subject: str
    scale: Scale
    settings: Settings
    provenance: Mapping[str, Provenance]
