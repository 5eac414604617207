"""The kinds of stage that make demonstrations, and the one that learns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from rollbook.records.codec import SPARSE
from rollbook.records.episode import Dialect
from rollbook.records.optimizers import OptimizerSettings
from rollbook.records.sampling import SamplingSettings

Taught = Literal["critique", "revision", "choice"]
TAUGHT: tuple[Taught, ...] = get_args(Taught)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Which tokens of a demonstration only say again what stands before them, and carry no loss.

    A unit of up to `period` tokens that comes again and again without a break is a span; of one of at least `span` tokens the
    first `copies` units are learnt, what follows is not. Qwen3-Coder-Next masks repetitive tokens and does not say how
    (evidence: midtraining_packing); this rule is ours (I).

    Example: Repeats(period=8, copies=2, span=24)
    """

    period: int
    copies: int
    span: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sft:
    """Supervised fine-tuning on reasoning traces, with a share of general chat kept.

    `traces` maps the style of a trace that programs write for `tasks` to its weight in the mixture, `data` a stage whose
    demonstrations are learnt from (rejection sampling, critique and revision), or `curated`, the traces of the run's curated set,
    to its weight; with both, all weights are one mixture. `steps` x `batch` demonstrations are shown in all; where `data` holds
    fewer they are shown again, each pass in an order of its own. The policy the stage starts from answers the general part.
    As `text` (continued pre-training) every demonstration is a document without a chat template, of which all tokens are learnt,
    the problem's too; a share `fim` of the documents has its middle moved to the end (fill in the middle, 2207.14255). `repeats`
    says what carries no loss for repeating.
    """

    policy: str
    traces: Mapping[str, float] = field(default_factory=dict)
    steps: int
    batch: int
    general_share: float
    optimizer: OptimizerSettings
    max_batch_tokens: int
    data: Mapping[str, float] = field(default_factory=dict)
    form: Literal["chat", "text"] = field(default="chat", metadata=SPARSE)
    tasks: str = field(default="train", metadata=SPARSE)
    fim: float = field(default=0.0, metadata=SPARSE)
    repeats: Repeats | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectionSampling:
    """`samples` answers to each of `prompts` tasks by `policy`, of which `keep` become demonstrations for a later `Sft`.

    `keep`: all that were judged, the correct ones, or the one a reward model (`scorer`, a stage) rates highest; of the correct
    ones at most `per_task`, the shortest first.
    """

    policy: str
    tasks: str
    prompts: int
    samples: int
    keep: Literal["all", "correct", "best"]
    per_task: int
    sampling: SamplingSettings
    scorer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Principle:
    """What is criticised, how it is revised, and how two responses are compared by it.

    Example: Principle(critique="Say what is harmful.", revision="Rewrite it without harm.", choice="Which is less harmful?")
    """

    critique: str
    revision: str
    choice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revise:
    """One answer of `policy` to each of `prompts` tasks, which the policy itself criticises and revises `rounds` times.

    Every round draws one of the `principles`; the last revision is the demonstration of its prompt (Constitutional AI,
    2212.08073). `max_tokens` bounds a critique and a revision.
    """

    policy: str
    tasks: str
    prompts: int
    rounds: int
    principles: Mapping[str, Principle]
    sampling: SamplingSettings
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """Demonstrations that a program writes of criticising, revising and choosing by the `principles`: `answers` of `policy` to
    each of `prompts` tasks, whose verdicts say which is right and which is better. A wrong one is revised to a trace of `style`.

    They teach a model from scratch what larger models are prompted to do; a later `Sft` learns them. `teach` says which of the
    three are written: a loss is a mean over tokens, of which a choice has one and a revision dozens.
    """

    policy: str
    tasks: str
    prompts: int
    principles: Mapping[str, Principle]
    style: str
    sampling: SamplingSettings
    answers: int = field(default=2, metadata=SPARSE)
    teach: tuple[Taught, ...] = field(default=TAUGHT, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """Conversations of a file (.json, .jsonl, .parquet), rendered as `policy` is asked at serving time, with tools in `dialect`.

    `form`: `demonstrations` for an `Sft`, or `pairs` of a chosen and a rejected answer for a `Preference` or a `RewardModel`, of
    which the last `apart` share trains nothing. Of one longer than `max_tokens` nothing is learnt (`drop`), only the turns, or of
    an answer the tokens, that fit (`cut`), or the run does not begin (`refuse`). `sha256` is the file's, written down when a run
    starts.

    Example: Conversations(policy="start", path="chats.jsonl", form="demonstrations", dialect="hermes", max_tokens=2048,
        too_long="drop")
    """

    policy: str
    path: str
    form: Literal["demonstrations", "pairs"]
    dialect: Dialect
    max_tokens: int
    too_long: Literal["drop", "cut", "refuse"]
    apart: float = 0.0
    sha256: str | None = field(default=None, metadata=SPARSE)
