"""Kimi's objectives: the squared log-ratio of k1.5 and K2, the sign-independent clip with a squared penalty of K2.5.

Suffixes: T action tokens, S sequences. Delta_S = sum_t (logp - anchor), a *sum*; the advantage is r - rbar of the prompt, rbar
including the sample itself. Log-probabilities in nats. Losses are unreduced; "gradient" is d loss / d logp before the weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rollbook.objectives.aggregate import Aggregate
from rollbook.objectives.checks import (
    check_at_least,
    check_bounds,
    check_choice,
    check_not_negative,
    check_number,
    check_positive,
)
from rollbook.objectives.core import ActionTokens, Objective, Scope, TokenLoss, Unstated, advantage_S, read, sum_S
from rollbook.objectives.credit.rules import CENTERED, Credit
from rollbook.objectives.errors import ObjectiveError
from rollbook.objectives.kinds import check_kinds
from rollbook.objectives.ratios import inside_closed, only, ratio

INTERVAL = "the interval log_low .. log_high is on the log-ratio and holds 0"
Scale = Literal["squared", "published_gradient"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiK15(Objective):
    """Kimi k1.5 (2501.12599 section 2.3): mean over sequences of (r - rbar - tau Delta)^2, against the previous iterate (anchor).

    Gradient on every token of the sequence, weight 1/N: scale "squared" -2 tau (A - tau Delta); "published_gradient" divides the
    square by 2 tau, which is the paper's printed direction, -(A - tau Delta). Zero at Delta = A / tau. Each token carries 1/L of
    its sequence's square. tau is not printed. The optimizer is reset at every iterate: the stage's `optimizer_reset`.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"logp_T", "advantage_T", "anchor_T"})
    scope: ClassVar[Scope] = "sequence"
    tau: float
    scale: Scale
    credit: Credit | Unstated = CENTERED
    aggregate: Aggregate | Unstated = "sequence_sum"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_positive(type(self).__name__, tau=self.tau)
        check_choice(type(self).__name__, "scale", self.scale, ("squared", "published_gradient"))

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        return squared_log_ratio(self, tokens, tau=self.tau, scale=self.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiK2(Objective):
    """Kimi K2 (2507.20534 section 3.2.3): the square of k1.5, Delta against the anchor; gradient as `KimiK15`.

    Its token budget, PTX loss and temperature decay are settings of the run; none of their numbers is printed.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"logp_T", "advantage_T", "anchor_T"})
    scope: ClassVar[Scope] = "sequence"
    tau: float
    scale: Scale
    credit: Credit | Unstated = CENTERED
    aggregate: Aggregate | Unstated = "sequence_sum"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_positive(type(self).__name__, tau=self.tau)
        check_choice(type(self).__name__, "scale", self.scale, ("squared", "published_gradient"))

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        return squared_log_ratio(self, tokens, tau=self.tau, scale=self.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiK25(Objective):
    """Kimi K2.5 (2602.02276 section 4.4.2): Clip(rho, alpha, beta) A - tau (log rho)^2, mean over all tokens. No half on tau.

    Gradient -(keep rho A - 2 tau log rho): outside the bounds the first part is 0 *whatever the sign of A*, unlike PPO. A token
    that the policy can produce no more (logp = -inf) is outside; it is refused where its penalty would be infinite.
    `bound_on="log_ratio"` is the prose: tokens with log rho outside log_low .. log_high (log_low <= 0 <= log_high) are masked to
    value 0. `bound_on="ratio"` is the formula: rho is clipped to 1-low .. 1+high and keeps the clipped value. `tau_mask="kept"`
    confines the penalty to kept tokens, "all" does not. `ratio_to` names the paper's "old". tau and the bounds are not printed.
    """

    tau: float
    bound_on: Literal["ratio", "log_ratio"]
    tau_mask: Literal["all", "kept"]
    ratio_to: Literal["anchor", "behavior"]
    low: float | None = None
    high: float | None = None
    log_low: float | None = None
    log_high: float | None = None
    credit: Credit | Unstated = CENTERED
    aggregate: Aggregate | Unstated = "token_mean"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_not_negative("KimiK25", tau=self.tau)
        check_choice("KimiK25", "bound_on", self.bound_on, ("ratio", "log_ratio"))
        check_choice("KimiK25", "tau_mask", self.tau_mask, ("all", "kept"))
        check_choice("KimiK25", "ratio_to", self.ratio_to, ("anchor", "behavior"))
        wanted = ("low", "high") if self.bound_on == "ratio" else ("log_low", "log_high")
        given = tuple(name for name in ("low", "high", "log_low", "log_high") if getattr(self, name) is not None)
        if given != wanted:
            raise ObjectiveError(
                f'KimiK25 with bound_on = "{self.bound_on}" takes {" and ".join(wanted)}',
                got=", ".join(given) or "neither",
                why="the report leaves open whether its bounds are on the ratio or its logarithm; the other pair is unused",
                fix=f"set {wanted[0]} and {wanted[1]} only",
            )
        if self.low is not None and self.high is not None:
            check_bounds("KimiK25", low=self.low, high=self.high)
        if self.log_low is not None and self.log_high is not None:
            check_at_least("KimiK25", 0, log_high=self.log_high)
            check_number("KimiK25", "log_low", self.log_low)
            if not self.log_low <= 0:
                raise ObjectiveError("KimiK25.log_low must be <= 0", got=repr(self.log_low), why=INTERVAL, fix="negate it")

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"logp_T", "advantage_T", f"{self.ratio_to}_T"})

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        policy = self.policy(tokens)
        return TokenLoss(policy.loss_T + self.penalty(tokens, ~policy.clipped_T), policy.clipped_T)

    def policy(self, tokens: ActionTokens) -> TokenLoss:
        """-Clip(rho, alpha, beta) A, the part that an off-policy correction multiplies."""
        advantage_T, other_T = read(tokens, self, "advantage_T", f"{self.ratio_to}_T")
        log_T = tokens.logp_T - other_T
        ratio_T = ratio(tokens.logp_T, other_T)
        if self.low is not None and self.high is not None:
            keep_T = inside_closed(ratio_T, low=self.low, high=self.high)
            outside_T = ratio_T.detach().clamp(1 - self.low, 1 + self.high)
        else:
            assert self.log_low is not None and self.log_high is not None
            keep_T = (log_T >= self.log_low) & (log_T <= self.log_high)
            outside_T = only(keep_T, ratio_T).detach()
        return TokenLoss(-torch.where(keep_T, ratio_T, outside_T) * advantage_T, ~keep_T)

    def penalty(self, tokens: ActionTokens, keep_T: Tensor) -> Tensor:
        """tau (log rho)^2 on the tokens that are charged, exactly 0 with gradient 0 on the others; refuses an infinite one."""
        (other_T,) = read(tokens, self, f"{self.ratio_to}_T")
        charged_T = keep_T if self.tau_mask == "kept" else torch.ones_like(keep_T)
        if self.tau == 0:
            charged_T = torch.zeros_like(keep_T)
        log_T = torch.where(charged_T, tokens.logp_T - other_T, torch.zeros_like(other_T))
        _check_squared("KimiK25", log_T)
        penalty_T = self.tau * log_T.square()
        return penalty_T


def squared_log_ratio(who: Objective, tokens: ActionTokens, *, tau: float, scale: Scale) -> TokenLoss:
    """(A - tau Delta)^2 per sequence, or that over 2 tau; each of its L tokens carries 1/L of it. Refuses an infinite Delta."""
    (anchor_T,) = read(tokens, who, "anchor_T")
    tokens.require_whole(who)
    _check_squared(type(who).__name__, tokens.logp_T - anchor_T)
    delta_S = sum_S(tokens.logp_T - anchor_T, tokens)
    square_S = (advantage_S(tokens, who) - tau * delta_S).square()
    if scale == "published_gradient":
        square_S = square_S / (2 * tau)
    share_S = square_S / tokens.length_S.clamp(min=1)
    return TokenLoss(share_S[tokens.seq_T], torch.zeros_like(tokens.seq_T, dtype=torch.bool))


def _check_squared(who: str, log_T: Tensor) -> None:
    """Refuse the square of an infinite log-ratio; NaN stays NaN."""
    bad_T = log_T.detach().isinf()
    if bool(bad_T.any()):
        raise ObjectiveError(
            f"{who} needs a finite log-ratio on every token that it squares",
            got=f"{log_T.detach()[bad_T].tolist()[0]} at position {bad_T.nonzero().tolist()[0][0]}",
            why="the policy gives that sampled token probability 0: the square has no finite value, and no finite gradient",
            fix="leave the token's sequence out of the batch, or look at why the policy cannot produce it any more",
        )
