"""Stages 9-10: which attempts reach the learner, and how much of the reward each sequence is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rollbook.records.codec import SPARSE
from rollbook.records.errors import RecordError
from rollbook.records.recipe import Plain
from rollbook.records.reward import Scored
from rollbook.records.rollout import AttemptId, Trace

OutcomeCode = Literal["accepted", "uniform", "truncated", "timed_out", "duplicate", "invalid", "resampled", "stale",
                      "failed", "unscored", "group_incomplete", "surplus", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The one final outcome of an attempt.

    Example: Outcome(attempt="rl/000001/0/Task:1f/2", family="chain_sum", code="uniform", detail="all rewards 1.0")
    """

    SCHEMA: ClassVar[int] = 1
    attempt: AttemptId
    family: str
    code: OutcomeCode
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """A scored trajectory that was admitted."""

    trace: Trace
    verdict: Scored


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Stage 9: issued = accepted + rejected + in flight, for each task family; the law is checked where it is built.

    `outcomes` maps family -> outcome code -> count.

    Example: Census(scope="rl/000001", issued={"chain_sum": 8}, outcomes={"chain_sum": {"accepted": 8}}, in_flight={})
    """

    SCHEMA: ClassVar[int] = 1
    scope: str
    issued: Mapping[str, int]
    outcomes: Mapping[str, Mapping[str, int]]
    in_flight: Mapping[str, int]

    def __post_init__(self) -> None:
        for family in {*self.issued, *self.outcomes, *self.in_flight}:
            ended = sum(self.outcomes.get(family, {}).values())
            if self.issued.get(family, 0) != ended + self.in_flight.get(family, 0):
                raise RecordError(f"the census of {self.scope} does not close for family {family}",
                                  got=f"issued {self.issued.get(family, 0)}, ended {ended}, "
                                      f"in flight {self.in_flight.get(family, 0)}",
                                  why="an attempt was lost or counted twice")

    def count(self, code: str) -> int:
        return sum(codes.get(code, 0) for codes in self.outcomes.values())

    @property
    def total(self) -> int:
        return sum(self.issued.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """Stage 10: the rule and its result, one advantage per sequence, in the order of `traces`.

    `rule` is the settings record of the objective's credit, encoded. `group_of` gives each sequence's group id. `misfit_penalty`
    is taken from the advantage of exactly the tokens of calls that could not be made (`Trace.misfit_tokens`). A rule that gives
    credit `per` token (with a critic, a KL in the reward, a teacher) leaves `advantage` empty: its advantages stand in the
    batch's tensors, beside the values and KL that they were made of.

    Example: Credit(scope="rl/000001/0", rule={"kind": "MinibatchStandardized", "eps": 1e-6, "ddof": 0}, traces=("Trace:1",),
        group_of=("g1",), reward=(1.0,), advantage=(0.7,), gamma=1.0, lam=1.0, baseline="group mean", normalized_over="minibatch")
    """

    SCHEMA: ClassVar[int] = 1
    scope: str
    rule: Mapping[str, Plain]
    traces: tuple[str, ...]
    group_of: tuple[str, ...]
    reward: tuple[float, ...]
    advantage: tuple[float, ...]
    gamma: float | None
    lam: float | None
    baseline: str
    normalized_over: str
    misfit_penalty: float = field(default=0.0, metadata=SPARSE)
    per: Literal["sequence", "token"] = field(default="sequence", metadata=SPARSE)

    def __post_init__(self) -> None:
        if (self.per == "token") != (not self.advantage and bool(self.traces)):
            raise RecordError("credit per token has no advantage per sequence, credit per sequence has one for each",
                              got=f"per {self.per}, {len(self.advantage)} advantages")
        sizes = {len(self.traces), len(self.group_of), len(self.reward)} | ({len(self.advantage)} if self.advantage else set())
        if len(sizes) != 1:
            raise RecordError("credit needs one group, reward and advantage per trace", got=str(sorted(sizes)))
