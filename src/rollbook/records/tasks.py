"""Stages 1-5 of the chain: where tasks come from, what they are, how they are split, where they run, how they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NewType

from rollbook.records.codec import content_id
from rollbook.records.errors import RecordError

TaskId = NewType("TaskId", str)
Role = Literal["system", "user", "assistant", "tool"]
# "template" is what the chat template writes around messages; "history" are words of the policy, shown to it again in another
# context than the one they were sampled in: neither is ever trained.
Owner = Literal["policy", "system", "user", "tool", "environment", "user_simulator", "subagent", "template", "history"]
Split = Literal["train", "heldout"]
Origin = Literal["unstated", "recipe", "raw", "program", "policy", "tool", "environment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message. `origin` says what its text was made from: a message from `raw` may show what the raw task shows,
    one from `recipe` is the same for every task.

    Example: Message(role="user", content="What is 2+2?", origin="raw")
    """

    role: Role
    content: str
    origin: Origin = "unstated"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTask:
    """Stage 1: a task as it was acquired, before anything touched it.

    Example: RawTask(source="reasoning-gym 0.1.25 chain_sum", licence="Apache-2.0", acquired_at="2026-11-29",
        content="State the final answer ... 4 + 3 =", language="en", domain="arithmetic", sensitive=(),
        lineage={"generator": "chain_sum", "seed": "7", "index": "0"})
    """

    SCHEMA: ClassVar[int] = 1
    source: str
    licence: str
    acquired_at: str
    content: str
    language: str
    domain: str
    sensitive: tuple[str, ...]
    lineage: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one attempt may spend. `max_seconds` is wall time; None means no limit of that kind."""

    max_tokens: int
    max_turns: int = 1
    max_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Stage 2: the contract of one task. `reference` is secret: it reaches verifiers, never the policy.

    `canonical` is the split unit: equal for tasks that are the same problem (commuted operands, another seed).
    `initial_state` names the function that builds the first state from this record; for single-turn tasks the prompt.
    `raw` is the content id of the RawTask.

    Example: Task(raw="RawTask:ab12", family="chain_sum", prompt=(Message(role="user", content="4 + 3 =", origin="raw"),),
        reference="7", canonical="chain_sum:+3+4", predicate="math.equivalent", initial_state="prompt",
        tools=(), budget=Budget(max_tokens=64), termination=("end_of_turn", "length"))
    """

    SCHEMA: ClassVar[int] = 2
    raw: str
    family: str
    prompt: tuple[Message, ...]
    reference: str
    canonical: str
    predicate: str
    initial_state: str
    tools: tuple[str, ...]
    budget: Budget
    termination: tuple[str, ...]

    @property
    def id(self) -> TaskId:
        return TaskId(content_id(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """A training task that resembles a protected one. `score` is 1.0 for equality, the Jaccard index for near-duplicates.

    Example: Overlap(train="Task:1f..", protected="Task:9c..", method="exact", score=1.0)
    """

    train: str
    protected: str
    method: Literal["exact", "ngram", "minhash"]
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decontamination:
    """Stage 1: every training task compared with every task of a registered evaluation protocol.

    `train` and `protected` hash the ordered task ids of the two sides. `boilerplate` is the share of a side's tasks above which
    an n-gram counts as their common template. `skipped` gives the methods that were not applied, with the reason.

    Example: Decontamination(protocol="heldout", protected="9f..", protected_count=512, train="3a..", train_count=4096,
        ngram=13, jaccard=0.8, boilerplate=0.05, found=(), skipped={"minhash": "procedural source: ..."})
    """

    SCHEMA: ClassVar[int] = 1
    protocol: str
    protected: str
    protected_count: int
    train: str
    train_count: int
    ngram: int
    jaccard: float
    boilerplate: float
    found: tuple[Overlap, ...]
    skipped: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitManifest:
    """Stage 3: which canonical problems are on which side, and what keeps the sides apart.

    `units` maps a side to the hash of its sorted split units, `counts` to (tasks, units). `in_family` is true when
    both sides come from one generator: every claim about the held-out side then says so.

    Example: SplitManifest(unit="canonical problem", generators=("chain_sum",), counts={"train": (100, 90)},
        units={"train": "9f.."}, overlap=0, in_family=True)
    """

    SCHEMA: ClassVar[int] = 1
    unit: str
    generators: tuple[str, ...]
    counts: Mapping[str, tuple[int, int]]
    units: Mapping[str, str]
    overlap: int
    in_family: bool

    def __post_init__(self) -> None:
        if self.overlap:
            raise RecordError("a split unit stands on both sides of the split", got=f"{self.overlap} shared units",
                              why="held-out accuracy would measure memory", fix="split by canonical problem, not by seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentImage:
    """Stage 4: everything an observation or verdict may depend on.

    Example: EnvironmentImage(name="single_turn", digest="31ac..", dependencies={"sympy": "1.14.0"}, network="none",
        credentials="none", reset="stateless", hidden_tests=None)
    """

    SCHEMA: ClassVar[int] = 1
    name: str
    digest: str
    dependencies: Mapping[str, str]
    network: Literal["none", "loopback", "open"]
    credentials: Literal["none", "scoped"]
    reset: str
    hidden_tests: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One thing done twice: `first` and `second` are hashes of what came out, under ordinary and under `changed` conditions.

    Example: Trial(kind="clock", changed="clock 400 days ahead", first="3f..", second="3f..", items=16)
    """

    kind: Literal["build", "reset", "clock", "network", "packages"]
    changed: str
    first: str
    second: str
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentProof:
    """Stage 4: an environment built twice, reset twice and re-scored under changed conditions, while it could still be run.

    `judge` is the digest of the judge that was proved; `verdicts` says what it made of the texts: right, wrong, gated, unscored.
    `unproved` gives the trials that could not be made here, with the reason.

    Example: EnvironmentProof(environment="EnvironmentImage:1", judge="c0..", trials=(Trial(...),),
        verdicts={"right": 8, "wrong": 8, "gated": 8}, unproved={})
    """

    SCHEMA: ClassVar[int] = 2
    environment: str
    judge: str
    trials: tuple[Trial, ...]
    verdicts: Mapping[str, int]
    unproved: Mapping[str, str]
    observed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """`length` consecutive tokens of one owner."""

    owner: Owner
    length: int

    def __post_init__(self) -> None:
        if self.length < 0:
            raise RecordError("a span cannot be shorter than nothing", got=str(self.length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """Stage 5: a trajectory to imitate. `owners` partition `token_ids`; only `policy` spans may carry loss weight.

    `messages` are the turns the tokens were rendered from; ownership can be derived from their roles again.

    Example: Demonstration(task="Task:1f..", messages=(Message(role="user", content="4 + 3 ="),
        Message(role="assistant", content="7")), token_ids=(1, 17, 2), owners=(Span(owner="user", length=1),
        Span(owner="policy", length=2)), tokenizer="a1..", template="b2..", author="program:sum_trace/1",
        validation="verified")
    """

    SCHEMA: ClassVar[int] = 2
    task: str
    messages: tuple[Message, ...]
    token_ids: tuple[int, ...]
    owners: tuple[Span, ...]
    tokenizer: str
    template: str
    author: str
    validation: str
    observed: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        covered = sum(span.length for span in self.owners)
        if covered != len(self.token_ids):
            raise RecordError("owner spans must cover the tokens exactly", got=f"{covered} for {len(self.token_ids)} tokens",
                              why="a token without an owner has no loss rule")
