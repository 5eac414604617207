"""Suites of abilities that a run does not train: which it asks itself while it trains, and what was answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rollbook.records.decisions import Interval

Ability = Literal["instructions", "format", "chat", "tools"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteSettings:
    """What a run asks its policy of abilities that it does not train: before the first stage, after every stage that moved the
    policy, and after every `every` steps of a supervised or policy-gradient stage (0: never within one).

    `tasks` of every suite, with answers of at most `max_tokens`, drawn with `seed`; greedy, one answer each.

    Example: SuiteSettings(abilities=("chat", "tools"), every=10, tasks=64, max_tokens=96, seed=7)
    """

    abilities: tuple[Ability, ...]
    every: int
    tasks: int
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AbilityReport:
    """One suite asked along a run: of the policy after `step` steps of a stage, or (None) of the one that the stage ended with.

    `protocol` and `result` are the ids of what the evaluation folder below RUN/abilities holds, `weights` the hash of the weights
    that answered, `value` the share of right answers.

    Example: AbilityReport(stage="rl", step=10, ability="chat", protocol="EvaluationProtocol:1", result="EvaluationResult:1",
        weights="cd..", value=Interval(...))
    """

    SCHEMA: ClassVar[int] = 1
    stage: str
    step: int | None
    ability: Ability
    protocol: str
    result: str
    weights: str
    value: Interval
