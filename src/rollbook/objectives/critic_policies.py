"""Objectives with a critic or a decoupled anchor: PPO, PPO-ptx, decoupled PPO (AReaL), VAPO, SAO; GLM-5's two losses.

Suffix: T action tokens. rho = exp(logp - anchor), r = exp(logp - behavior), c = exp(anchor - behavior). Log-probabilities in
nats. Losses are -J per token, unreduced; "gradient" is d loss / d logp before the token's weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rollbook.objectives.aggregate import UNSTATED_AGGREGATE, Aggregate, check_aggregate
from rollbook.objectives.checks import check_at_least, check_bounds, check_cap, check_choice, check_not_negative
from rollbook.objectives.core import ActionTokens, ExtraTerm, Objective, TokenLoss, Unstated, read
from rollbook.objectives.correction import pop, token_tis
from rollbook.objectives.credit.rules import INSTRUCT_GPT, NORMALIZED, SAO, UNNAMED, VAPO, Credit
from rollbook.objectives.errors import ObjectiveError
from rollbook.objectives.kinds import check_kinds
from rollbook.objectives.ratios import (
    check_dual,
    clipped_surrogate,
    dual_clipped_surrogate,
    inside_open,
    only,
    ratio,
    weighted,
    weighted_logp,
)
from rollbook.objectives.terms import PositiveNll, Ptx

_PTX_AGGREGATE = Unstated(what="ptx_aggregate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ppo(Objective):
    """PPO as InstructGPT uses it (2203.02155 App. C, 1707.06347): min(rho A, clip(rho, 1-low, 1+high) A).

    Gradient -rho A, or 0 iff (A>0, rho>1+high) or (A<0, rho<1-low); at equality it is kept. `dual` (artifacts: 3; None: off)
    also zeroes it for A<0, rho>dual. The KL is in the reward (k1, beta 0.02). The reduction is not printed.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"logp_T", "advantage_T", "anchor_T"})
    low: float = 0.2
    high: float = 0.2
    dual: float | None = None
    credit: Credit | Unstated = INSTRUCT_GPT
    aggregate: Aggregate | Unstated = UNSTATED_AGGREGATE

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds(type(self).__name__, low=self.low, high=self.high)
        if self.dual is not None:
            check_dual(self.dual, self.high)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        advantage_T, anchor_T = read(tokens, self, "advantage_T", "anchor_T")
        ratio_T = ratio(tokens.logp_T, anchor_T)
        if self.dual is None:
            return clipped_surrogate(ratio_T, advantage_T, low=self.low, high=self.high)
        return dual_clipped_surrogate(ratio_T, advantage_T, low=self.low, high=self.high, dual=self.dual)


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoPtx(Ppo):
    """PPO-ptx (2203.02155 section 3.5): PPO plus `ptx_coefficient` * pretraining NLL, a term over its own data.

    Gradient as `Ppo`; the pretraining term's is -ptx_coefficient on each of its tokens. 27.8 is printed; the unit the two losses
    are averaged over is not, so the number does not carry over by itself.
    """

    ptx_coefficient: float = 27.8
    ptx_aggregate: Aggregate | Unstated = _PTX_AGGREGATE

    def __post_init__(self) -> None:
        Ppo.__post_init__(self)
        check_not_negative("PpoPtx", ptx_coefficient=self.ptx_coefficient)
        check_aggregate("PpoPtx", "ptx_aggregate", self.ptx_aggregate)

    @property
    def extra_terms(self) -> tuple[ExtraTerm, ...]:
        return (Ptx(coefficient=self.ptx_coefficient, aggregate=self.ptx_aggregate),)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoupledPpo(Objective):
    """Decoupled PPO (2110.00641; AReaL 2505.24298 section 5): w min(u A, clip(u) A), u = exp(logp - anchor), w = sg[c].

    The clip is centred on the anchor (the parameters right before this update step), the weight corrects to the policy that
    sampled each token. Gradient -w u A, where w u = exp(logp - behavior), or 0 where u is clipped. `weight_rule`: "none" leaves w
    alone, "cap" takes min(w, weight_cap), "mask" zeroes w > weight_cap; a masked token stays in the denominator.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"logp_T", "advantage_T", "anchor_T", "behavior_T"})
    low: float = 0.2
    high: float = 0.2
    weight_rule: Literal["none", "cap", "mask"]
    weight_cap: float | None = None
    credit: Credit | Unstated = UNNAMED
    aggregate: Aggregate | Unstated = "token_mean"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("DecoupledPpo", low=self.low, high=self.high)
        check_choice("DecoupledPpo", "weight_rule", self.weight_rule, ("none", "cap", "mask"))
        if (self.weight_rule == "none") != (self.weight_cap is None):
            raise ObjectiveError(
                'DecoupledPpo.weight_cap goes with weight_rule "cap" or "mask"',
                got=f"weight_rule = {self.weight_rule!r}, weight_cap = {self.weight_cap}",
                why="a bound without its rule, or a rule without its bound, would be ignored",
                fix='set both, or weight_rule = "none" and no weight_cap',
            )
        if self.weight_cap is not None:
            check_cap("DecoupledPpo", weight_cap=self.weight_cap)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        advantage_T, anchor_T, behavior_T = read(tokens, self, "advantage_T", "anchor_T", "behavior_T")
        weight_T = self.weight(anchor_T, behavior_T)
        loss = clipped_surrogate(ratio(tokens.logp_T, anchor_T), advantage_T, low=self.low, high=self.high)
        return weighted(weight_T, loss)

    def weight(self, anchor_T: Tensor, behavior_T: Tensor) -> Tensor:
        """w per token, without gradient."""
        cap = torch.inf if self.weight_cap is None else self.weight_cap
        if self.weight_rule == "cap":
            return token_tis(anchor_T, behavior_T, cap=cap)
        weight_T = token_tis(anchor_T, behavior_T, cap=torch.inf)
        return only(weight_T <= cap, weight_T)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vapo(Objective):
    """VAPO (2504.05118): PPO with clip-higher, token mean, length-adaptive GAE for the actor, and NLL on correct answers.

    Gradient as `Ppo`; the NLL term's is -mu / (tokens of correct sequences) on each of those tokens, and none if nothing is
    correct. Critic targets use lambda 1, never the adaptive one.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"logp_T", "advantage_T", "anchor_T"})
    low: float = 0.2
    high: float = 0.28
    mu: float = 0.1
    credit: Credit | Unstated = VAPO
    aggregate: Aggregate | Unstated = "token_mean"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("Vapo", low=self.low, high=self.high)
        check_not_negative("Vapo", mu=self.mu)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        advantage_T, anchor_T = read(tokens, self, "advantage_T", "anchor_T")
        return clipped_surrogate(ratio(tokens.logp_T, anchor_T), advantage_T, low=self.low, high=self.high)

    @property
    def extra_terms(self) -> tuple[ExtraTerm, ...]:
        return (PositiveNll(coefficient=self.mu),) if self.mu else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sao(Objective):
    """SAO's direct double-sided importance masking (2607.07508 Eq. 1-3): sg[f] A logp, f = r if 1-low < r < 1+high else 0.

    r = exp(logp - behavior): no recomputed anchor. The mask is strict and ignores the sign of A. Gradient -f A. The paper draws
    no stop-gradient on f; without one the gradient would be f A (1 + logp) and flip for every token with p < 0.37. Printed
    bounds: mathematics low 0.3, high 5.0; coding low 0.8, high 3.0 (what a bound is to the last bit: `ratios`). The denominator
    after masking is not stated.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"logp_T", "advantage_T", "behavior_T"})
    low: float
    high: float
    credit: Credit | Unstated = SAO
    aggregate: Aggregate | Unstated = UNSTATED_AGGREGATE

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("Sao", low=self.low, high=self.high)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        advantage_T, behavior_T = read(tokens, self, "advantage_T", "behavior_T")
        return masked_importance(tokens.logp_T, behavior_T, advantage_T, low=self.low, high=self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Glm5Agentic(Objective):
    """GLM-5 agentic RL (2602.15763 section 4): SAO's f(r) with bounds that the report does not print.

    Gradient -f A. After each push of weights the optimizer is reset: the stage's `optimizer_reset`.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"logp_T", "advantage_T", "behavior_T"})
    low: float
    high: float
    credit: Credit | Unstated = UNNAMED
    aggregate: Aggregate | Unstated = UNSTATED_AGGREGATE

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("Glm5Agentic", low=self.low, high=self.high)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        advantage_T, behavior_T = read(tokens, self, "advantage_T", "behavior_T")
        return masked_importance(tokens.logp_T, behavior_T, advantage_T, low=self.low, high=self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Glm5Reasoning(Objective):
    """GLM-5 reasoning RL (2602.15763 section 3): pop(c) min(rho A, clip(rho) A), pop(c) = c if 1/beta <= c <= beta else 0.

    c = exp(anchor - behavior), without gradient, outside the clip. Gradient -pop(c) rho A or 0 where clipped. No KL. The
    reduction is not captured.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"logp_T", "advantage_T", "anchor_T", "behavior_T"})
    low: float = 0.2
    high: float = 0.28
    beta: float = 2.0
    credit: Credit | Unstated = NORMALIZED
    aggregate: Aggregate | Unstated = UNSTATED_AGGREGATE

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("Glm5Reasoning", low=self.low, high=self.high)
        check_at_least("Glm5Reasoning", 1, beta=self.beta)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        advantage_T, anchor_T, behavior_T = read(tokens, self, "advantage_T", "anchor_T", "behavior_T")
        loss = clipped_surrogate(ratio(tokens.logp_T, anchor_T), advantage_T, low=self.low, high=self.high)
        return weighted(pop(anchor_T, behavior_T, beta=self.beta), loss)


def masked_importance(logp_T: Tensor, behavior_T: Tensor, advantage_T: Tensor, *, low: float, high: float) -> TokenLoss:
    """-sg[f] A logp with f = r inside the open interval, else 0, whatever the sign of A."""
    ratio_T = ratio(logp_T, behavior_T)
    inside_T = inside_open(ratio_T, low=low, high=high)
    f_T = only(inside_T, ratio_T)
    return TokenLoss(weighted_logp(f_T * advantage_T, logp_T), ~inside_T)
