"""What an evaluation outside a run is: the frozen protocol, the result with its cost, incidents with a policy in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rollbook.records.codec import SPARSE, content_id
from rollbook.records.decisions import Interval
from rollbook.records.errors import RecordError
from rollbook.records.recipe import EnvironmentReward, EnvironmentSettings, JudgeSettings, Reward, SamplingSettings

Rule = Literal["mean", "pass", "majority", "best"]
INCIDENT_ACTIONS = ("none", "rollback")


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """What the attempts at one task amount to: their mean, pass@k, majority@k, or the best of k by the named selector.

    `k` is 1 for the mean, which is over all scored attempts; `selector` is None except for "best".

    Example: Aggregation(rule="pass", k=4, selector=None)
    """

    rule: Rule
    k: int
    selector: str | None

    def __post_init__(self) -> None:
        if self.k < 1 or (self.rule == "mean" and self.k != 1):
            raise RecordError("an aggregation takes k >= 1 attempts, the mean takes all", got=f"{self.rule}, k = {self.k}")
        if (self.selector is not None) != (self.rule == "best"):
            raise RecordError("best of k names its selector, and only it does", got=f"{self.rule}, selector {self.selector}",
                              why="whoever selects is a part of what is measured")

    def __str__(self) -> str:
        if self.rule == "mean":
            return "mean"
        return f"{self.rule}@{self.k}" + (f" by {self.selector}" if self.selector is not None else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationProtocol:
    """Everything an evaluation depends on besides the policy, frozen; two results are comparable where all of it is equal.

    `tasks` hashes the ordered task ids. `environment` is an image's id, `verifier` the judge's digest, `extraction` says how an
    answer is read from a response. `max_seconds` None is no limit. Seeds and names fix every uniform: two policies face the same.
    `world` is the environment that attempts are episodes in, None where every task is a single turn; `context` the tokens that a
    prompt and all turns may fill there. `judges` are the models asked in words that the reward names.

    Example: EvaluationProtocol(name="heldout", tasks="9f..", task_count=512, environment="EnvironmentImage:1", verifier="77..",
        reward=RewardSettings(...), template="b2..", system_prompt="...", scaffold="single_turn/1", tools=(),
        sampling=SamplingSettings(...), seed=11, trials=4, max_tokens=64, max_turns=1, max_seconds=None,
        aggregation=Aggregation(...), extraction="magistral/1: ...", in_family=True)
    """

    SCHEMA: ClassVar[int] = 1
    name: str
    tasks: str
    task_count: int
    environment: str
    verifier: str
    reward: Reward
    template: str
    system_prompt: str
    scaffold: str
    tools: tuple[str, ...]
    sampling: SamplingSettings
    seed: int
    trials: int
    max_tokens: int
    max_turns: int
    max_seconds: float | None
    aggregation: Aggregation
    extraction: str
    in_family: bool
    world: EnvironmentSettings | None = field(default=None, metadata=SPARSE)
    context: int | None = field(default=None, metadata=SPARSE)
    judges: Mapping[str, JudgeSettings] | None = field(default=None, metadata=SPARSE)

    def __post_init__(self) -> None:
        if (self.world is None) != (self.context is None) or (self.world is None and isinstance(self.reward, EnvironmentReward)):
            raise RecordError("episodes come with their environment and its context, and only they are graded by it",
                              got=f"world {None if self.world is None else self.world.name}, context {self.context}, "
                                  f"reward {type(self.reward).__name__}", why="one without the other cannot be evaluated again")
        if min(self.trials, self.task_count, self.max_tokens, self.max_turns) < 1:
            raise RecordError("a protocol has tasks, trials and a budget", got=f"{self.task_count} tasks, {self.trials} trials, "
                              f"{self.max_tokens} tokens, {self.max_turns} turns", why="of nothing there is no result")
        if self.aggregation.k > self.trials:
            raise RecordError(f"{self.aggregation} needs at least {self.aggregation.k} trials", got=str(self.trials),
                              why="k attempts cannot be drawn from fewer", fix="raise the trials, or lower k")

    @property
    def id(self) -> str:
        return content_id(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """What an evaluation cost: tokens sampled and read, attempts at tasks, attempts of environments (resets).

    Example: Spend(tokens=9100, prompt_tokens=40200, attempts=512, environment_attempts=512)
    """

    tokens: int
    prompt_tokens: int
    attempts: int
    environment_attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """One policy under one `EvaluationProtocol`. `outcomes` gives the aggregated value of each task, None where too few of its
    attempts were scored: those are counted in `unscored_tasks` and never averaged in.

    `policy` is what was asked for, `weights` what was evaluated (None where an endpoint does not show its weights). `observed`
    holds what depends on the machine: `seconds` of sampling and judging.

    Example: EvaluationResult(protocol="EvaluationProtocol:1", policy="run:rl", weights="cd..", value=Interval(...),
        unscored_tasks=0, unscored_attempts=3, outcomes={"Task:1": 1.0}, by_family={"gcd": 0.4}, spend=Spend(...))
    """

    SCHEMA: ClassVar[int] = 1
    protocol: str
    policy: str
    weights: str | None
    value: Interval
    unscored_tasks: int
    unscored_attempts: int
    outcomes: Mapping[str, float | None]
    by_family: Mapping[str, float]
    spend: Spend
    observed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbilityChange:
    """One ability before and after a stage of a run, paired over the same tasks: the two evaluations, their shares of right
    answers, and what may be said of the difference.

    Example: AbilityChange(ability="chat", before="start", after="rl", share_before=0.41, share_after=0.22, gain=Interval(...),
        p_value=0.003, claim="loss")
    """

    ability: str
    before: str
    after: str
    share_before: float
    share_after: float
    gain: Interval
    p_value: float | None
    claim: Literal["gain", "loss", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a run kept, gained and lost of abilities that it did not train; `run` is its genesis hash.

    `left_out` gives the suites that were not measured, with the reason.
    """

    SCHEMA: ClassVar[int] = 1
    run: str
    changes: tuple[AbilityChange, ...]
    left_out: Mapping[str, str]

    @property
    def losses(self) -> tuple[AbilityChange, ...]:
        """The changes that lie below chance."""
        return tuple(one for one in self.changes if one.claim == "loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something that went wrong with a policy in use, recorded against its weight hash. `rollback` takes its permission back.

    Example: Incident(weights="cd..", what="answers in the wrong language", severity="major", reporter="maria", action="rollback",
        reported="2026-11-30T08:00:00Z")
    """

    SCHEMA: ClassVar[int] = 1
    weights: str
    what: str
    severity: Literal["minor", "major", "critical"]
    reporter: str
    action: Literal["none", "rollback"]
    reported: str
