"""Critic-free group methods: GRPO, R1's printed form, Dr.GRPO, DAPO, Magistral, DeepSeek V3.2, RLOO, REINFORCE++.

Suffixes: T action tokens, S sequences. rho = exp(logp - anchor), r = exp(logp - behavior). Log-probabilities in nats, fp32
or fp64. Losses are -J per token, unreduced; "gradient" is d loss / d logp before the token's weight.
Defaults are numbers the paper prints for that class; the others must be given (docs/papers.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch

from rollbook.objectives.aggregate import UNSTATED_AGGREGATE, Aggregate, check_aggregate
from rollbook.objectives.checks import check_bounds, check_choice, check_limit, check_not_negative
from rollbook.objectives.core import ActionTokens, ExtraTerm, Objective, Scope, TokenLoss, Unstated, advantage_S, read, sum_S
from rollbook.objectives.correction import sequence_mask
from rollbook.objectives.credit.rules import (
    CENTERED,
    NORMALIZED,
    ONE_OUT,
    REINFORCE_PLUS_PLUS,
    REINFORCE_PLUS_PLUS_BASELINE,
    STANDARDIZED,
    Credit,
)
from rollbook.objectives.errors import ObjectiveError
from rollbook.objectives.kinds import check_kinds
from rollbook.objectives.ratios import clipped_surrogate, exp_guarded, ratio, weighted, weighted_logp
from rollbook.objectives.terms import Estimator, KlTerm

ANCHORED = frozenset({"logp_T", "advantage_T", "anchor_T"})
_OVERLONG = Unstated(what="overlong_filter")
_KL_AGGREGATE = Unstated(what="kl_aggregate")


def kl_terms(estimator: Estimator, beta: float, aggregate: Aggregate | Unstated) -> tuple[ExtraTerm, ...]:
    """The KL term of a coefficient; none when it is 0."""
    return (KlTerm(estimator=estimator, coefficient=beta, aggregate=aggregate),) if beta else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo(Objective):
    """GRPO (DeepSeekMath, 2402.03300 section 4.1): min(rho A, clip(rho, 1-low, 1+high) A), mean over a sequence, then over all.

    Gradient -rho A, or 0 iff (A>0, rho>1+high) or (A<0, rho<1-low). The KL is its own k3 term, gradient beta (1 - e^-d).
    DeepSeekMath prints beta 0.04 and no clip bounds; R1-Zero prints beta 0.001 and bounds of 10.
    """

    reads: ClassVar[frozenset[str]] = ANCHORED
    low: float
    high: float
    beta: float = 0.04
    credit: Credit | Unstated = NORMALIZED
    aggregate: Aggregate | Unstated = "sequence_mean"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("Grpo", low=self.low, high=self.high)
        check_not_negative("Grpo", beta=self.beta)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        advantage_T, anchor_T = read(tokens, self, "advantage_T", "anchor_T")
        return clipped_surrogate(ratio(tokens.logp_T, anchor_T), advantage_T, low=self.low, high=self.high)

    @property
    def extra_terms(self) -> tuple[ExtraTerm, ...]:
        return kl_terms("k3", self.beta, self.aggregate)


@dataclass(frozen=True, slots=True, kw_only=True)
class R1Printed(Objective):
    """R1's objective as printed (Nature 2025): one ratio pi(o|q)/pi_anchor(o|q) per whole output, no 1/|o|.

        (1/N) sum_i min(R_i A_i, clip(R_i, 1-low, 1+high) A_i),   R_i = exp(sum_t (logp - anchor))

    Gradient -R_i A_i on every token of an unclipped output. The granularity of DeepSeek's implementation is not stated; the
    token reading is `Grpo(low=10, high=10, beta=0.001)`. Each token carries 1/L_i of its sequence's loss. No formula of the KL is
    printed at this level: its estimator and denominator must be given (`sequence_sum`: summed over the output, no 1/|o|).
    """

    reads: ClassVar[frozenset[str]] = ANCHORED
    scope: ClassVar[Scope] = "sequence"
    low: float = 10.0
    high: float = 10.0
    beta: float = 0.001
    kl_estimator: Estimator
    kl_aggregate: Aggregate | Unstated = _KL_AGGREGATE
    credit: Credit | Unstated = NORMALIZED
    aggregate: Aggregate | Unstated = "sequence_sum"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("R1Printed", low=self.low, high=self.high)
        check_not_negative("R1Printed", beta=self.beta)
        check_choice("R1Printed", "kl_estimator", self.kl_estimator, get_args(Estimator))
        check_aggregate("R1Printed", "kl_aggregate", self.kl_aggregate)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        (anchor_T,) = read(tokens, self, "anchor_T")
        tokens.require_whole(self)
        ratio_S = exp_guarded(sum_S(tokens.logp_T - anchor_T, tokens))
        loss = clipped_surrogate(ratio_S, advantage_S(tokens, self), low=self.low, high=self.high)
        share_S = loss.loss_T / tokens.length_S.clamp(min=1)
        return TokenLoss(share_S[tokens.seq_T], loss.clipped_T[tokens.seq_T])

    @property
    def extra_terms(self) -> tuple[ExtraTerm, ...]:
        return kl_terms(self.kl_estimator, self.beta, self.kl_aggregate)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGrpo(Objective):
    """Dr.GRPO (2503.20783 section 3): A = R - mean without std; token losses summed, no per-sequence 1/L.

    Gradient as `Grpo`. The printed formula has no divisor (`sequence_sum`); the released code divides by a constant
    (`fixed_length`), which rescales the step.
    """

    reads: ClassVar[frozenset[str]] = ANCHORED
    low: float = 0.2
    high: float = 0.2
    credit: Credit | Unstated = CENTERED
    aggregate: Aggregate | Unstated = "sequence_sum"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("DrGrpo", low=self.low, high=self.high)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        advantage_T, anchor_T = read(tokens, self, "advantage_T", "anchor_T")
        return clipped_surrogate(ratio(tokens.logp_T, anchor_T), advantage_T, low=self.low, high=self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dapo(Objective):
    """DAPO (2503.14476 Eq. 8-12): asymmetric clip, no KL, token mean within each prompt's group, then over prompts.

    Gradient as `Grpo`. Groups with all or no correct answers never reach it (`select.informative`, keyed on accuracy, not on
    the shaped reward). `overlong_filter` drops truncated sequences: the paper describes it, its best runs reportedly did
    without, so it must be said.
    """

    reads: ClassVar[frozenset[str]] = ANCHORED
    low: float = 0.2
    high: float = 0.28
    overlong_filter: bool | Unstated = _OVERLONG
    credit: Credit | Unstated = NORMALIZED
    aggregate: Aggregate | Unstated = "group_token_mean"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("Dapo", low=self.low, high=self.high)
        if not isinstance(self.overlong_filter, bool) and self.overlong_filter != _OVERLONG:
            got = repr(self.overlong_filter)
            raise ObjectiveError("Dapo.overlong_filter must be True or False", got=got, why="any text is true", fix="say which")

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        advantage_T, anchor_T = read(tokens, self, "advantage_T", "anchor_T")
        return clipped_surrogate(ratio(tokens.logp_T, anchor_T), advantage_T, low=self.low, high=self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Magistral(Objective):
    """Magistral's GRPO (2506.10910 section 2.1): no KL, clip-higher, rewards centred per group, then standardised per minibatch.

    Gradient as `Grpo` in the chosen ratio. `high` was moved between 0.26 and 0.28 (0.3 for Small), `low` is not printed. Under
    in-flight updates the report's "old" is ambiguous: `ratio_to` names the policy the ratio is taken to.
    """

    low: float
    high: float
    ratio_to: Literal["anchor", "behavior"]
    credit: Credit | Unstated = STANDARDIZED
    aggregate: Aggregate | Unstated = "group_token_mean"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("Magistral", low=self.low, high=self.high)
        check_choice("Magistral", "ratio_to", self.ratio_to, ("anchor", "behavior"))

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"logp_T", "advantage_T", f"{self.ratio_to}_T"})

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        advantage_T, other_T = read(tokens, self, "advantage_T", f"{self.ratio_to}_T")
        return clipped_surrogate(ratio(tokens.logp_T, other_T), advantage_T, low=self.low, high=self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeekV32(Objective):
    """DeepSeek V3.2 (2512.02556 section 3.1): the clipped surrogate times the off-policy sequence mask; unbiased KL apart.

        M_i = 0 iff A_i < 0 and (1/L_i) sum_t (behavior - logp) > delta        (only the policy term; L_i and N stay)

    Gradient -M_i rho A or 0 where clipped; KL gradient beta rho d. Not printed: the bounds, `delta` (artifacts 1e-4 and 0.5) and
    `beta` (per domain). A sequence with A >= 0 is never masked.
    """

    reads: ClassVar[frozenset[str]] = ANCHORED | {"behavior_T"}
    scope: ClassVar[Scope] = "sequence"
    low: float
    high: float
    delta: float
    beta: float
    credit: Credit | Unstated = CENTERED
    aggregate: Aggregate | Unstated = "sequence_mean"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("DeepSeekV32", low=self.low, high=self.high)
        check_limit("DeepSeekV32", delta=self.delta)
        check_not_negative("DeepSeekV32", beta=self.beta)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        anchor_T, behavior_T = read(tokens, self, "anchor_T", "behavior_T")
        tokens.require_whole(self)
        advantage_T = advantage_S(tokens, self)[tokens.seq_T]
        plain = clipped_surrogate(ratio(tokens.logp_T, anchor_T), advantage_T, low=self.low, high=self.high)
        mask_T = sequence_mask(tokens.logp_T, behavior_T, advantage_T, tokens.seq_T, delta=self.delta)
        return weighted(mask_T, plain)

    @property
    def extra_terms(self) -> tuple[ExtraTerm, ...]:
        return kl_terms("unbiased", self.beta, self.aggregate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rloo(Objective):
    """RLOO (2402.14740): sequence-level REINFORCE, -A sum_t logp, with the leave-one-out baseline; a KL belongs in the reward.

    Gradient -A on every token, whatever the drift: it has no ratio. The value contains logp and is no monitor.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"logp_T", "advantage_T"})
    credit: Credit | Unstated = ONE_OUT
    aggregate: Aggregate | Unstated = "sequence_sum"

    def __post_init__(self) -> None:
        check_kinds(self)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        (advantage_T,) = read(tokens, self, "advantage_T")
        return TokenLoss(weighted_logp(advantage_T, tokens.logp_T), torch.zeros_like(advantage_T, dtype=torch.bool))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePlusPlus(Objective):
    """REINFORCE++ (2501.03262): PPO's clip without a critic; advantages normalised over the global batch.

    Gradient as `Grpo`. The KL is in the token reward (k1; beta 0.01 and 0.001 are both printed).
    """

    reads: ClassVar[frozenset[str]] = ANCHORED
    low: float = 0.2
    high: float = 0.2
    credit: Credit | Unstated = REINFORCE_PLUS_PLUS
    aggregate: Aggregate | Unstated = UNSTATED_AGGREGATE

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("ReinforcePlusPlus", low=self.low, high=self.high)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        advantage_T, anchor_T = read(tokens, self, "advantage_T", "anchor_T")
        return clipped_surrogate(ratio(tokens.logp_T, anchor_T), advantage_T, low=self.low, high=self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePlusPlusBaseline(Objective):
    """REINFORCE++'s baseline variant (2501.03262): rewards centred per group first, then normalised over the global batch.

    Gradient as `Grpo`. The KL is a k2 term of its own, gradient beta d, and not in the reward; `beta` is not printed.
    """

    reads: ClassVar[frozenset[str]] = ANCHORED
    low: float = 0.2
    high: float = 0.2
    beta: float
    credit: Credit | Unstated = REINFORCE_PLUS_PLUS_BASELINE
    aggregate: Aggregate | Unstated = UNSTATED_AGGREGATE

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("ReinforcePlusPlusBaseline", low=self.low, high=self.high)
        check_not_negative("ReinforcePlusPlusBaseline", beta=self.beta)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        advantage_T, anchor_T = read(tokens, self, "advantage_T", "anchor_T")
        return clipped_surrogate(ratio(tokens.logp_T, anchor_T), advantage_T, low=self.low, high=self.high)

    @property
    def extra_terms(self) -> tuple[ExtraTerm, ...]:
        return kl_terms("k2", self.beta, self.aggregate)
