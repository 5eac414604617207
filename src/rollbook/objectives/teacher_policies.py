"""On-policy distillation on the sampled tokens: NVIDIA's and MiMo's MOPD, on-policy distillation, GLM-5's cross-stage loss.

Suffix: T action tokens. r = exp(logp - behavior). The teacher's log-probability of the student's own token makes the advantage,
which is detached and concerns only its own token. Losses are -J per token, unreduced; nats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rollbook.objectives.aggregate import UNSTATED_AGGREGATE, Aggregate
from rollbook.objectives.checks import check_at_least, check_bounds, check_not_negative, check_positive
from rollbook.objectives.core import ActionTokens, Objective, TokenLoss, Unstated, read
from rollbook.objectives.correction import pop
from rollbook.objectives.credit.rules import FROM_TEACHER, UNNAMED, Credit, FromTeacher
from rollbook.objectives.distill import sampled_token_advantage
from rollbook.objectives.errors import ObjectiveError
from rollbook.objectives.kinds import check_kinds
from rollbook.objectives.ratios import clipped_surrogate, inside_closed, only, ratio, weighted, weighted_logp


@dataclass(frozen=True, slots=True, kw_only=True)
class Mopd(Objective):
    """NVIDIA's multi-domain on-policy distillation (Nemotron-Cascade 2, 2603.19220 Eq. 2-4): w a logp.

        a = sg[teacher - logp],   w = sg[r] 1[1-low <= r <= 1+high]  (printed as 0.5 <= r <= 2.0)

    Gradient -w a. A gated token stays in the length of its sequence.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"logp_T", "behavior_T", "teacher_T"})
    low: float = 0.5
    high: float = 1.0
    credit: Credit | Unstated = FROM_TEACHER
    aggregate: Aggregate | Unstated = "sequence_mean"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("Mopd", low=self.low, high=self.high)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        behavior_T, teacher_T = read(tokens, self, "behavior_T", "teacher_T")
        advantage_T = teacher_advantage(tokens.logp_T, teacher_T, coefficient=1.0)
        return gated_logp(tokens.logp_T, behavior_T, advantage_T, low=self.low, high=self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoMopd(Objective):
    """MiMo-V2-Flash's MOPD (2601.02780 Eq. 8): the teacher's advantage plus `alpha` times an outcome advantage, gated.

        a = sg[teacher - logp] + alpha A,   w = sg[r] inside 1-low .. 1+high, else 0

    Gradient -w a. `alpha`, the band and the credit of A are not printed; alpha = 0 reads no advantage (credit `FromTeacher`).
    """

    low: float
    high: float
    alpha: float
    credit: Credit | Unstated = UNNAMED
    aggregate: Aggregate | Unstated = UNSTATED_AGGREGATE

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("MimoMopd", low=self.low, high=self.high)
        check_not_negative("MimoMopd", alpha=self.alpha)
        if self.alpha and isinstance(self.credit, FromTeacher):
            raise ObjectiveError(
                "MimoMopd with alpha > 0 needs the credit of its outcome advantage",
                got="credit = FromTeacher",
                why="A would be 0 everywhere and alpha without effect",
                fix="set objective.credit to a rule over rewards, or alpha = 0",
            )

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"logp_T", "behavior_T", "teacher_T"} | ({"advantage_T"} if self.alpha else set()))

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        behavior_T, teacher_T = read(tokens, self, "behavior_T", "teacher_T")
        advantage_T = teacher_advantage(tokens.logp_T, teacher_T, coefficient=1.0)
        if self.alpha:
            (outcome_T,) = read(tokens, self, "advantage_T")
            advantage_T = advantage_T + self.alpha * outcome_T
        return gated_logp(tokens.logp_T, behavior_T, advantage_T, low=self.low, high=self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPolicyDistill(Objective):
    """On-policy distillation (Thinking Machines; its cookbook has coefficient 1): r A, A = -coefficient (behavior - teacher).

    Gradient -r A; in expectation the reverse-KL gradient of each position given its prefix. A is detached, discount 0. The
    reduction is not stated.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"logp_T", "behavior_T", "teacher_T"})
    coefficient: float = 1.0
    credit: Credit | Unstated = FROM_TEACHER
    aggregate: Aggregate | Unstated = UNSTATED_AGGREGATE

    def __post_init__(self) -> None:
        check_kinds(self)
        check_positive("OnPolicyDistill", coefficient=self.coefficient)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        behavior_T, teacher_T = read(tokens, self, "behavior_T", "teacher_T")
        advantage_T = teacher_advantage(behavior_T, teacher_T, coefficient=self.coefficient)
        return TokenLoss(-ratio(tokens.logp_T, behavior_T) * advantage_T, torch.zeros_like(advantage_T, dtype=torch.bool))


@dataclass(frozen=True, slots=True, kw_only=True)
class Glm5CrossStage(Objective):
    """GLM-5 cross-stage distillation (2602.15763 section 3.5): its reasoning loss with A = sg[teacher - logp], no group.

    Gradient -pop(c) rho A, or 0 where rho is clipped. `teacher_T` comes from the teacher's inference engine. A token that the
    policy cannot produce any more (logp = -inf) has rho A = 0, its limit; a teacher's -inf is refused.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"logp_T", "anchor_T", "behavior_T", "teacher_T"})
    low: float = 0.2
    high: float = 0.28
    beta: float = 2.0
    credit: Credit | Unstated = FROM_TEACHER
    aggregate: Aggregate | Unstated = UNSTATED_AGGREGATE

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("Glm5CrossStage", low=self.low, high=self.high)
        check_at_least("Glm5CrossStage", 1, beta=self.beta)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        anchor_T, behavior_T, teacher_T = read(tokens, self, "anchor_T", "behavior_T", "teacher_T")
        advantage_T = teacher_advantage(tokens.logp_T, teacher_T, coefficient=1.0)
        loss = clipped_surrogate(ratio(tokens.logp_T, anchor_T), advantage_T, low=self.low, high=self.high)
        return weighted(pop(anchor_T, behavior_T, beta=self.beta), loss)


def teacher_advantage(logp_T: Tensor, teacher_T: Tensor, *, coefficient: float) -> Tensor:
    """-coefficient (logp - teacher), detached; 0 where logp is -inf: there rho A has the limit 0. The teacher's is finite."""
    advantage_T = sampled_token_advantage(logp_T, teacher_T, coefficient=coefficient)
    return torch.where(logp_T == -torch.inf, torch.zeros_like(advantage_T), advantage_T)


def gated_logp(logp_T: Tensor, behavior_T: Tensor, advantage_T: Tensor, *, low: float, high: float) -> TokenLoss:
    """-sg[r] a logp inside the closed band, 0 outside."""
    ratio_T = ratio(logp_T, behavior_T)
    inside_T = inside_closed(ratio_T, low=low, high=high)
    weight_T = only(inside_T, ratio_T * advantage_T)
    return TokenLoss(weighted_logp(weight_T, logp_T), ~inside_T)
