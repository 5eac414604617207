"""The kinds of stage of a pipeline as a recipe writes them, and the settings that several kinds share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rollbook.records.asynchrony import Asynchrony
from rollbook.records.codec import SPARSE
from rollbook.records.curriculum import Curriculum
from rollbook.records.demonstrating import Conversations, Lessons, Principle, RejectionSampling, Revise, Sft
from rollbook.records.optimizers import OptimizerSettings
from rollbook.records.sampling import SamplingSettings

Plain = str | bool | int | float | None
Inner = Plain | Mapping[str, Plain | Mapping[str, Plain]]       # an objective's credit rule, a rule inside that
Routing = Literal["free", "replayed", "sampled"]
Nested = Inner | Mapping[str, Inner | Mapping[str, Inner]]      # an objective, one in a correction, that beside a bonus


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Held-out evaluation of the policy that stage `policy` ended with (`start` is the initial model).

    With `scorer`, a stage's reward model, what its pick among the `trials` answers to a task is worth is reported too.
    """

    policy: str
    sampling: SamplingSettings
    trials: int
    seed: int
    compare_to: str | None = None
    reward: str | None = None
    scorer: str | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """Keeps those of `tasks` that the policy solves between `low` and `high` times of `samples`, both inclusive."""

    policy: str
    candidates: int
    samples: int
    low: int
    high: int
    sampling: SamplingSettings
    reward: str | None = None
    tasks: str = field(default="train", metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Critic:
    """The value model of a policy stage. It keeps its own clock, optimizer and frozen parameters.

    `start` names the stage whose reward model it begins as; None is the policy's body with a new head of `head_layers` layers. In
    the first `warmup` steps only the critic learns (value pre-training); then it takes `updates` optimizer steps on every
    minibatch. `loss`: factor (V - return)^2, or the larger of that and the same with V held within `clip` of what it was.
    """

    start: str | None
    head_layers: Literal[1, 2]
    warmup: int
    updates: int
    loss: Literal["squared", "clipped"]
    factor: float
    clip: float | None
    optimizer: OptimizerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretraining:
    """Data whose likelihood a policy stage keeps up (PPO-ptx): `batch` demonstrations beside every optimizer step's batch.

    They come from the stages in `data`, by weight; passed over again, each pass in an order of its own, where they run out.
    """

    data: Mapping[str, float]
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradient:
    """Reinforcement learning of one policy. `tasks` names the stage whose selection is used, `train`, or `family:NAME`.

    Each step issues waves of `prompts` x `per_task` attempts until `groups` groups are informative or `max_waves` is reached.
    `probe` held-out problems are evaluated every `probe_every` steps (0: never) for the curve in the report. `reward` names one
    of the recipe's `rewards`; without it the default one judges. With `asynchrony` sampling goes on while the learner trains, and
    no token older than `max_policy_age` versions is trained on; without it the age is 0.

    `filter` drops groups whose rewards, or whose accuracies (DAPO), are all equal. `reference` names the stage of the frozen
    policy of a KL term, None the one the stage starts from. `max_tokens` is a shorter budget than the recipe's, for a stage of
    length. With a `curriculum` tasks are drawn by how often they are passed; without one each in its turn. `teachers` maps a
    family of tasks, or `*`, to the stage that teaches it. `routing`: every minibatch chooses its experts
    anew, or takes those of the policy that the step began with (replayed, R2) or of the engine (sampled, R3: Keep Routing).
    `sampling_mask` (Keep Sampling Mask): log-probs are over the ids that a token was drawn from, which may be a part of all.
    `pretraining` goes with `PpoPtx`. The stage ends with a moving average of its weights, of decay `ema`, where one is given.
    `optimizer_reset`: whether the policy's moments are forgotten whenever weights were published (Kimi k1.5, GLM-5); the learning
    rate's schedule counts on. `observation_loss` trains on what tools and users wrote too: a fault, there to be measured.
    `subagents_learn`: what subagents sampled is trained with the advantage of the attempt that called them (K2.5 freezes them).
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
    reward: str | None = None
    asynchrony: Asynchrony | None = None
    routing: Routing = "free"
    filter: Literal["reward", "accuracy", "none"] = "reward"
    reference: str | None = None
    critic: Critic | None = None
    teachers: Mapping[str, str] = field(default_factory=dict)
    curriculum: Curriculum | None = field(default=None, metadata=SPARSE)
    max_tokens: int | None = field(default=None, metadata=SPARSE)
    pretraining: Pretraining | None = field(default=None, metadata=SPARSE)
    ema: float | None = field(default=None, metadata=SPARSE)
    optimizer_reset: Literal["never", "publication"] = field(default="never", metadata=SPARSE)
    observation_loss: bool = field(default=False, metadata=SPARSE)
    subagents_learn: bool = field(default=False, metadata=SPARSE)
    sampling_mask: bool = field(default=False, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """A hidden scoring rule that stands in for a labeller: the weighted sum of what the judge and the trace say of an answer.

    `rule` weighs `accuracy`, `format` (1 where the format is kept) and `tokens` (the answer's share of its budget). `noise` is
    the scale of the Gumbel noise added to every score, so that P(a is ranked above b) = sigmoid((a - b) / noise); 0 is no noise.
    With `grades` the noisy score is rounded to a multiple of it: a labeller who grades, and to whom answers can be equal. Equal
    answers are no pair; without grades, noise alone ranks them.
    """

    rule: Mapping[str, float]
    noise: float
    seed: int
    grades: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """Labels from a model: the policy that stage `policy` ended with chooses between two answers by every one of the
    `principles`, in both orders; the mean of its normalised probabilities is the label (RL-CAI, RLAIF).
    """

    policy: str
    principles: Mapping[str, Principle]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparisons:
    """`per_task` answers to each of `prompts` tasks by `policy`, ranked by `labeler`; the last `apart` share trains nothing.

    A label of `Feedback` is of a pair: `per_task` is 2, and the scores differ by the log-odds of its probability.
    """

    policy: str
    tasks: str
    prompts: int
    per_task: int
    sampling: SamplingSettings
    labeler: Oracle | Feedback
    apart: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModel:
    """A scalar head on the body of `policy`, trained on the rankings of the stages in `data` (name to weight in the mixture).

    All answers to a prompt are one element; `batch` counts prompts. `loss`: every pair of different rank (InstructGPT), the same
    less a margin by how far apart the labeller put them (Llama 2; `margins` from the widest gap of scores to the narrowest, cut
    evenly), correct against wrong (Qwen2.5-Math), or every pair against the probability of the label (RLAIF).
    """

    policy: str
    data: Mapping[str, float]
    loss: Literal["ranked", "margin", "listwise", "soft_label"]
    head_layers: Literal[1, 2]
    steps: int
    batch: int
    optimizer: OptimizerSettings
    max_batch_tokens: int
    margins: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dpo:
    """Direct preference optimisation (2305.18290); `normalize` divides each response's log-ratio by its length in tokens."""

    beta: float
    normalize: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Dpo:
    """Llama 3's DPO (2407.21783 section 4.1.4): formatting tokens masked on both sides, plus NLL of the chosen response."""

    beta: float
    nll_coefficient: float
    nll_reduction: Literal["sum", "mean"]
    nll_on: Literal["all", "unmasked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merging:
    """The Online Merging Optimizer: each step's update is merged with what `policy` learnt since the stage `base`."""

    rule: Literal["dare", "ties"]
    base: str
    alpha: float
    keep: float
    seed: int
    consensus: Literal["weighted", "unweighted"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """Preference optimisation of `policy` on the best and the worst answer of every ranking of `data`; `batch` counts pairs.

    `reference` names the stage of the frozen policy, None the one the stage starts from. `data` of correct and wrong answers with
    `by = "correct"` pairs a correct with a wrong one instead.
    """

    policy: str
    data: Mapping[str, float]
    loss: Dpo | Llama3Dpo
    by: Literal["score", "correct"]
    steps: int
    batch: int
    optimizer: OptimizerSettings
    max_batch_tokens: int
    reference: str | None = None
    merging: Merging | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A policy made of others: their weighted `average`, `base` plus weighted differences to it, or a moving average in the order
    of names with the given `decay`.
    """

    policies: Mapping[str, float]
    method: Literal["average", "task_vector", "moving_average"]
    base: str | None = None
    decay: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune:
    """`policy` with fewer `layers`, counted from 0, and `intermediate` neurons in each feed-forward (None: all that it has).

    Nothing is trained: a later stage distils the larger policy into it.
    """

    policy: str
    layers: tuple[int, ...]
    intermediate: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HardTargets:
    """Tokens to imitate beside a teacher's distribution: `batch` demonstrations of the stages in `data` beside every step.

    Their share of the loss goes linearly from `first` at the first step to `last` at the last, the rest is the KL's: hard and
    soft targets with a moving balance, as Llama 4 Maverick's codistillation is described. No source prints the balance.
    """

    data: Mapping[str, float]
    batch: int
    first: float
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Distill:
    """Full-vocabulary on-policy distillation: at every token that `policy` samples, the exact KL to the teacher's distribution.

    `teachers` maps a family of tasks, or `*`, to the stage that teaches it. `direction`: KL(student || teacher) is "reverse".
    Each step asks `prompts` tasks `per_task` times; the loss is the mean over the sampled tokens.
    """

    policy: str
    tasks: str
    teachers: Mapping[str, str]
    direction: Literal["reverse", "forward"]
    steps: int
    prompts: int
    per_task: int
    sampling: SamplingSettings
    optimizer: OptimizerSettings
    max_batch_tokens: int
    checkpoint_every: int
    hard: HardTargets | None = field(default=None, metadata=SPARSE)


Stage = (Evaluate | Sft | PassRate | PolicyGradient | RejectionSampling | Comparisons | RewardModel | Preference | Merge
         | Distill | Revise | Lessons | Prune | Conversations)
