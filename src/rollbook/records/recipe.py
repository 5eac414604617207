"""What a recipe resolves to: typed settings, and for each value where it comes from. Orchestration sees nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from rollbook.records.codec import SPARSE
from rollbook.records.composition import ComposedReward
from rollbook.records.demonstrating import Conversations, Lessons, Principle, RejectionSampling, Repeats, Revise, Sft
from rollbook.records.episode import Dialect, Reasoning
from rollbook.records.errors import RecipeError
from rollbook.records.optimizers import Lora, Muon, OptimizerSettings
from rollbook.records.ready_made import NamedReward
from rollbook.records.sampling import SamplingSettings
from rollbook.records.stages import (
    Comparisons,
    Critic,
    Distill,
    Dpo,
    Evaluate,
    Feedback,
    HardTargets,
    Llama3Dpo,
    Merge,
    Merging,
    Nested,
    Oracle,
    PassRate,
    Plain,
    PolicyGradient,
    Preference,
    Pretraining,
    Prune,
    RewardModel,
    Stage,
)
from rollbook.records.suites import SuiteSettings

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
class Embedded:
    """Sampling in the learner's own process, from a copy of the published weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm:
    """Sampling by vLLM servers, at most `rows` requests at a time on each.

    `servers` are their addresses; without any, the run starts one with the `python` of vLLM's own environment and the further
    `arguments` of `vllm serve`. `exchange` is a folder that the run and every server read, for weights (None: memory of this
    machine). A request may take `request_s`, a publication `update_s`, a start `start_s`. `check_text`: the text of an answer is
    compared with that of its ids. `shown`: ids that a server lists per token where it has no sampling masks, for top-k and top-p.

    Example: Vllm(servers=("http://127.0.0.1:8000",))
    """

    servers: tuple[str, ...] = ()
    python: str | None = None
    arguments: tuple[str, ...] = ()
    exchange: str | None = None
    rows: int = 64
    request_s: float = 600.0
    update_s: float = 300.0
    start_s: float = 600.0
    check_text: bool = True
    shown: int = 64

    def __post_init__(self) -> None:
        if bool(self.servers) == (self.python is not None):
            raise RecipeError("run.engine names servers, or the python that starts one", got=f"{self.servers}, {self.python}",
                              why="a run that is given both or neither does not know what it samples from",
                              fix="--set 'run.engine={kind: Vllm, python: .venv-vllm/bin/python}'")
        if strange := [one for one in self.servers if not one.startswith(("http://", "https://"))]:
            raise RecipeError("a server is an http or https address", got=strange[0], fix="for example http://127.0.0.1:8000")


Engine = Embedded | Vllm


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Policies are trained in the run's own process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fsdp2:
    """Policy-gradient stages are trained by `ranks` processes of this machine, each with its rows of the weights and of the
    optimizer's state (FSDP2). A call of all ranks may take `patience_s` before it counts as stuck.

    Example: Fsdp2(ranks=2)
    """

    ranks: int
    patience_s: float = 1800.0


Learner = Alone | Fsdp2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Machine-facing choices. `threads` 0 means all cores; `dtype` is the compute precision, master weights are fp32.

    `gradient_checkpointing` trades a second forward pass for the memory of activations; the bits of an update stay the same.
    `engine` is what every stage samples with, `learner` where policy-gradient stages train.
    """

    seed: int
    device: str
    threads: int
    dtype: Literal["auto", "float32", "bfloat16"]
    gradient_checkpointing: bool = False
    engine: Engine = field(default=Embedded(), metadata=SPARSE)
    learner: Learner = field(default=Alone(), metadata=SPARSE)


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
    """Task mixture and the two sides of the split, apart by canonical problem.

    `curated` is the folder of a set that `rollbook curate` made, whose own sides are kept, instead of families; `curated_hash`
    is the hash that its tasks must have, written down when a run starts.
    """

    train: int
    heldout: int
    seed: int
    system_prompt: str
    max_tokens: int
    families: Mapping[str, Family] = field(default_factory=dict)
    curated: str | None = field(default=None, metadata=SPARSE)
    curated_hash: str | None = field(default=None, metadata=SPARSE)


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
class EnvironmentReward:
    """What an environment's own verifier is worth: `correct_reward` times the accuracy that it gives to a final state, and
    `format_reward` where no call was malformed."""

    format_reward: float
    correct_reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """A model that is asked in words. `model` is a local one (built-in name or folder), or a name behind an OpenAI-compatible
    `server`. A `rubric` grades each response by `criteria` (text -> weight) from `low` to `high`; `pairwise` is the mean
    probability of beating the other responses of the prompt, both orders asked.

    Example: JudgeSettings(form="rubric", model="smollm2-135m-instruct", criteria={"The answer is correct.": 1.0})
    """

    form: Literal["rubric", "pairwise"]
    model: str
    server: str | None = None
    context: int = 2048
    method: Literal["text", "logprobs"] = "logprobs"
    with_reference: bool = False
    criteria: Mapping[str, float] = field(default_factory=dict)
    low: int = 1
    high: int = 5


Reward = RewardSettings | ComposedReward | NamedReward | EnvironmentReward


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """An outside program that works in the environment with its own loop and prompts, in place of the turn loop.

    `command` is started for every attempt and finds the policy at an OpenAI-compatible address and the environment's tools at
    another; see `rollbook.serve.commands.Command`. `answer`: whether what it prints is the policy's answer (`stdout`), or the
    state that its calls left is all (`none`). `name` says which program, with its version. `parallel` attempts run at a time.

    Example: AgentSettings(name="mini-swe-agent 2.4.6", command=("mini", "--task", "{task}"), answer="none")
    """

    name: str
    command: tuple[str, ...]
    answer: Literal["none", "stdout"]
    variables: Mapping[str, str] = field(default_factory=dict)
    parallel: int = 8

    def __post_init__(self) -> None:
        if not self.name or not self.command or self.parallel < 1:
            raise RecipeError("environment.agent needs a name, a command and at least one attempt at a time",
                              got=f"name {self.name!r}, {len(self.command)} words, parallel {self.parallel}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSettings:
    """Where tasks come from and are solved, instead of a single turn. `definition` is package.module:Class, `tools` the permitted
    ones (empty: all; `no_tools`: none). Of a whole episode: `tasks.max_tokens` tokens of the policy, `max_turns` turns,
    `max_calls`, `max_seconds`.

    `announce`: tools are described in the system message. `compact_at` tokens of context: what happens then is `compaction`.
    `misfit_penalty` is taken from the advantage of exactly the tokens of calls that could not be made. With an `agent` an outside
    program works there, and its contexts are trained as they are.
    """

    name: str
    definition: str
    parameters: Mapping[str, Any]
    tools: tuple[str, ...]
    dialect: Dialect
    reasoning: Reasoning
    announce: bool
    max_turns: int
    turn_tokens: int | None = None
    max_calls: int | None = None
    max_seconds: float | None = None
    call_seconds: float = 30.0
    reply_characters: int = 20_000
    compaction: Literal["none", "summary", "discard"] = "none"
    compact_at: int = 0
    summary_tokens: int = 256
    keep_turns: int = 1
    subagents: int = 0
    subagent_tokens: int = 256
    misfit_penalty: float = 0.0
    no_tools: bool = field(default=False, metadata=SPARSE)
    agent: AgentSettings | None = field(default=None, metadata=SPARSE)

    def __post_init__(self) -> None:
        if self.no_tools and self.tools:
            raise RecipeError("environment.no_tools permits no tool, environment.tools some", got=", ".join(self.tools),
                              why="both cannot hold", fix="set tools to [], or no_tools to false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The typed body of a recipe at one scale. `reward` judges every stage that does not choose one of `rewards` by its name.

    `judges` are models asked in words, which parts of rewards are measured by as `judge:NAME`. `suites` are asked along the run.
    """

    run: RunSettings
    model: Pretrained | Tiny
    tasks: TaskSettings
    reward: Reward
    stages: Mapping[str, Stage]
    rewards: Mapping[str, Reward] = field(default_factory=dict)
    judges: Mapping[str, JudgeSettings] = field(default_factory=dict, metadata=SPARSE)
    environment: EnvironmentSettings | None = field(default=None, metadata=SPARSE)
    suites: SuiteSettings | None = field(default=None, metadata=SPARSE)


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

    @property
    def assumed(self) -> str | None:
        """What every picture of a run says where the user supplied values that no source gives; None where nothing was."""
        count = sum(about.origin == "user" and about.label == "I" for about in self.provenance.values())
        return f"{count} value{'' if count == 1 else 's'} assumed by the user (label I, not the source's)" if count else None


__all__ = [
    "AgentSettings",
    "Alone",
    "Comparisons",
    "ComposedReward",
    "Conversations",
    "Critic",
    "Distill",
    "Dpo",
    "Embedded",
    "Engine",
    "EnvironmentReward",
    "EnvironmentSettings",
    "Evaluate",
    "Family",
    "Feedback",
    "Fsdp2",
    "HardTargets",
    "Label",
    "Learner",
    "Lessons",
    "Llama3Dpo",
    "Lora",
    "Merge",
    "Merging",
    "Muon",
    "NamedReward",
    "Nested",
    "OptimizerSettings",
    "Oracle",
    "PassRate",
    "Plain",
    "PolicyGradient",
    "Preference",
    "Pretrained",
    "Pretraining",
    "Principle",
    "Provenance",
    "Prune",
    "RejectionSampling",
    "Repeats",
    "ResolvedRecipe",
    "Revise",
    "Reward",
    "RewardModel",
    "RewardSettings",
    "RunSettings",
    "SamplingSettings",
    "Scale",
    "Settings",
    "Sft",
    "Stage",
    "SuiteSettings",
    "TaskSettings",
    "Tiny",
    "Vllm",
]
