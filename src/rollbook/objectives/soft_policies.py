"""Other trust rules on the same ratio: GSPO and GSPO-token (per sequence), SAPO (smooth), CISPO (capped weight).

Suffixes: T action tokens, S sequences. rho = exp(logp - anchor), s = its geometric mean over a sequence. Log-probabilities in
nats. Losses are -J per token, unreduced; "gradient" is d loss / d logp before the token's weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from rollbook.objectives.aggregate import Aggregate
from rollbook.objectives.checks import check_bounds, check_positive
from rollbook.objectives.core import ActionTokens, Objective, Scope, TokenLoss, Unstated, advantage_S, read
from rollbook.objectives.credit.rules import NORMALIZED, Credit
from rollbook.objectives.kinds import check_kinds
from rollbook.objectives.ratios import clipped_surrogate, exp_guarded, ratio, sequence_ratio, weighted_logp


@dataclass(frozen=True, slots=True, kw_only=True)
class Gspo(Objective):
    """GSPO (2507.18071 section 4): min(s A, clip(s, 1-low, 1+high) A), s = exp((1/L) sum_t (logp - anchor)), mean over sequences.

    Gradient -s A, the same for every token of a sequence (their weight is 1/(N L)), or 0 for all of them where s is clipped.
    One advantage per sequence. For compacted trajectories the sequence is the segment.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"logp_T", "advantage_T", "anchor_T"})
    scope: ClassVar[Scope] = "sequence"
    low: float = 3e-4
    high: float = 4e-4
    credit: Credit | Unstated = NORMALIZED
    aggregate: Aggregate | Unstated = "sequence_mean"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("Gspo", low=self.low, high=self.high)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        (anchor_T,) = read(tokens, self, "anchor_T")
        tokens.require_whole(self)
        ratio_S = sequence_ratio(tokens.logp_T, anchor_T, tokens)
        loss = clipped_surrogate(ratio_S, advantage_S(tokens, self), low=self.low, high=self.high)
        return TokenLoss(loss.loss_T[tokens.seq_T], loss.clipped_T[tokens.seq_T])


@dataclass(frozen=True, slots=True, kw_only=True)
class GspoToken(Objective):
    """GSPO-token (2507.18071 section 5): as GSPO with s_t = sg[s] pi/sg[pi], so each token may have its own advantage.

    Value s, derivative s on its own token only. Gradient -s A_t, or 0 where s is clipped for A_t's sign. With one advantage per
    sequence, value and gradient equal GSPO's.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"logp_T", "advantage_T", "anchor_T"})
    scope: ClassVar[Scope] = "sequence"
    low: float = 3e-4
    high: float = 4e-4
    credit: Credit | Unstated = NORMALIZED
    aggregate: Aggregate | Unstated = "sequence_mean"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("GspoToken", low=self.low, high=self.high)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        advantage_T, anchor_T = read(tokens, self, "advantage_T", "anchor_T")
        tokens.require_whole(self)
        ratio_S = sequence_ratio(tokens.logp_T, anchor_T, tokens).detach()
        impossible_T = tokens.logp_T == -torch.inf  # s is 0; -inf - -inf is not
        unit_T = torch.where(impossible_T, torch.zeros_like(anchor_T), tokens.logp_T - tokens.logp_T.detach())
        carrier_T = ratio_S[tokens.seq_T] * exp_guarded(unit_T)
        return clipped_surrogate(carrier_T, advantage_T, low=self.low, high=self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sapo(Objective):
    """SAPO (2511.20347 section 3): (4/tau) sigmoid(tau (rho - 1)) A, tau by the sign of A; mean over a sequence, then over all.

    With p = sigmoid(tau (rho - 1)): gradient -4 p (1-p) rho A; -A at rho = 1 for any tau. rho keeps its gradient; nothing is
    clipped.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"logp_T", "advantage_T", "anchor_T"})
    tau_positive: float = 1.0
    tau_negative: float = 1.05
    credit: Credit | Unstated = NORMALIZED
    aggregate: Aggregate | Unstated = "sequence_mean"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_positive("Sapo", tau_positive=self.tau_positive, tau_negative=self.tau_negative)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        advantage_T, anchor_T = read(tokens, self, "advantage_T", "anchor_T")
        ratio_T = ratio(tokens.logp_T, anchor_T)
        tau_T = torch.where(advantage_T > 0, ratio_T.new_tensor(self.tau_positive), ratio_T.new_tensor(self.tau_negative))
        loss_T = -(4 / tau_T) * torch.sigmoid(tau_T * (ratio_T - 1)) * advantage_T
        return TokenLoss(loss_T, torch.zeros_like(advantage_T, dtype=torch.bool))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cispo(Objective):
    """CISPO (MiniMax-M1, 2506.13585 Eq. 4-5): sg[clip(rho, 1-low, 1+high)] A logp, token mean within each prompt's group.

    Gradient -clip(rho) A: constant beyond the cap, and for A != 0 never 0 by the clip. It is 0 only where rho is, with low >= 1:
    where logp is -inf, or so far below the anchor that e^x is 0 (some 745 nats in fp64, 104 in fp32). The value contains logp and
    is no monitor. Bounds are 1-low .. 1+high; some artifacts read "epsilon" as the cap itself: a cap of 5 is high = 4. The paper
    uses no lower bound in practice (low >= 1) and prints no `high`. `clipped_T` marks tokens whose weight was capped; they still
    have a gradient.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"logp_T", "advantage_T", "anchor_T"})
    low: float
    high: float
    credit: Credit | Unstated = NORMALIZED
    aggregate: Aggregate | Unstated = "group_token_mean"

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds("Cispo", low=self.low, high=self.high)

    def __call__(self, tokens: ActionTokens) -> TokenLoss:
        advantage_T, anchor_T = read(tokens, self, "advantage_T", "anchor_T")
        ratio_T = ratio(tokens.logp_T, anchor_T)
        capped_T = ratio_T.clamp(1 - self.low, 1 + self.high)
        return TokenLoss(weighted_logp(capped_T * advantage_T, tokens.logp_T), capped_T != ratio_T)
