"""Difficulty as a moving property: the rule by which tasks are pooled, and what the pools were at a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from rollbook.records.errors import RecordError

Pool = Literal["unmeasured", "too_easy", "learnable", "too_hard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    """Tasks pooled by how often the policy passes them, measured on the attempts that it trains on and again after `renew` steps.

    A task is learnable while its pass rate lies in `low` .. `high`, both inclusive; with `pass_at` k the rate is the unbiased
    estimate of pass@k. Of the tasks that are drawn, `explore` are unmeasured ones, `easy` and `hard` come from those pools,
    and the rest is learnable; a pool that is empty gives its share to the others. `prioritised` draws learnable tasks in
    proportion to 1 - pass rate (Kimi k1.5), else those that were drawn longest ago come first. Every `report` steps the pools
    are recorded.

    Example: Curriculum(low=0.1, high=0.9, renew=20, explore=0.3, easy=0.0, hard=0.1, pass_at=1, prioritised=False, report=5)
    """

    low: float
    high: float
    renew: int
    explore: float
    easy: float
    hard: float
    report: int
    pass_at: int = 1
    prioritised: bool = False

    def __post_init__(self) -> None:
        shares = (self.explore, self.easy, self.hard)
        if not 0 <= self.low <= self.high <= 1 or min(shares) < 0 or sum(shares) > 1:
            raise RecordError("a curriculum needs 0 <= low <= high <= 1 and shares of 0 or more that sum to at most 1",
                              got=f"low {self.low}, high {self.high}, shares {shares}", fix="lower explore, easy or hard")
        if self.renew < 1 or self.report < 1 or self.pass_at < 1:
            raise RecordError("a curriculum's renew, report and pass_at are at least 1",
                              got=f"{self.renew}, {self.report}, {self.pass_at}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumReport:
    """The pools at a step: how many tasks each holds, how many were measured since the last report, and which moved where.

    `attempts` is what it took since the last report, `informative` the groups of it that had a spread: their quotient is the
    price of a group. `moved` counts changes as `from > to`.

    Example: CurriculumReport(stage="rl", step=5, pools={"unmeasured": 900, "learnable": 60, "too_easy": 30, "too_hard": 10},
        measured=100, moved={"unmeasured > learnable": 60}, attempts=400, informative=55)
    """

    SCHEMA: ClassVar[int] = 1
    stage: str
    step: int
    pools: Mapping[str, int]
    measured: int
    moved: Mapping[str, int]
    attempts: int
    informative: int
