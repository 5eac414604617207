"""One function for all objectives' diagnostics; objectives themselves never log.

Suffix: T action tokens. Values are detached tensors; what the tokens do not hold is absent (None), not 0. Diagnostics look at
every log-probability that is there, also where the objective does not read it: an infinite one makes its sums infinite (NaN
where two infinite ones meet), a NaN makes them NaN, and neither touches the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rollbook.objectives.checks import check_float, check_record, check_scored
from rollbook.objectives.core import ActionTokens, TokenLoss
from rollbook.objectives.errors import ObjectiveError
from rollbook.objectives.kl import k3_anyway
from rollbook.objectives.ratios import beyond_guard, ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """Sums over a micro-batch, so that micro-batches and ranks add up: divide by `tokens`.

    `guarded` counts log-ratios beyond the guard of `ratios.exp_guarded`. `mismatch_k3` sums e^x - 1 - x with
    x = anchor - behavior (nats); `weight_sum` and `weight_squares` of c = exp(x) give ESS = sum^2 / squares / tokens.
    """

    tokens: int
    clipped: Tensor
    guarded: Tensor
    ratio_least: Tensor | None
    ratio_most: Tensor | None
    reference_k3: Tensor | None
    mismatch_k3: Tensor | None
    weight_sum: Tensor | None
    weight_squares: Tensor | None


def diagnose(tokens: ActionTokens, loss: TokenLoss) -> Diagnostics:
    """What one micro-batch did, from the same inputs as the loss."""
    check_record("diagnose", "tokens", tokens, ActionTokens)
    check_record("diagnose", "loss", loss, TokenLoss)
    tokens = _detached(tokens)
    logp_T = tokens.logp_T
    some = logp_T.numel() > 0
    guarded = torch.zeros((), dtype=torch.int64, device=logp_T.device)
    for other_T in (tokens.anchor_T, tokens.behavior_T):
        if other_T is not None:
            guarded = guarded + beyond_guard(logp_T - other_T).sum()
    if tokens.reference_T is not None:
        guarded = guarded + beyond_guard(tokens.reference_T - logp_T).sum()
    ratio_T = None if tokens.anchor_T is None or not some else ratio(logp_T, tokens.anchor_T)
    mismatch, weight_T = None, None
    if tokens.anchor_T is not None and tokens.behavior_T is not None:
        mismatch, weight_T = k3_anyway(tokens.behavior_T, tokens.anchor_T).sum(), ratio(tokens.anchor_T, tokens.behavior_T)
    return Diagnostics(
        tokens=logp_T.numel(),
        clipped=loss.clipped_T.sum(),
        guarded=guarded,
        ratio_least=None if ratio_T is None else ratio_T.min(),
        ratio_most=None if ratio_T is None else ratio_T.max(),
        reference_k3=None if tokens.reference_T is None else k3_anyway(logp_T, tokens.reference_T).sum(),
        mismatch_k3=mismatch,
        weight_sum=None if weight_T is None else weight_T.sum(),
        weight_squares=None if weight_T is None else weight_T.square().sum(),
    )


def effective_sample_size(weight_T: Tensor) -> Tensor:
    """(sum w)^2 / sum w^2 / n: 1 for equal weights, 1/n when one weight carries everything, 0 when none carries any.

    Weights are finite and not negative; their scale makes no difference.
    """
    check_float("effective_sample_size", weight_T=weight_T)
    check_scored("effective_sample_size", "weight_T", weight_T)
    if bool((weight_T < 0).any()):
        raise ObjectiveError(
            "effective_sample_size needs weights >= 0",
            got=str(float(weight_T.min())),
            why="it counts how many samples the weights leave; a negative one leaves fewer than none",
            fix="pass importance weights",
        )
    largest = weight_T.max() if weight_T.numel() else weight_T.new_zeros(())
    share_T = weight_T / torch.where(largest > 0, largest, torch.ones_like(largest))  # squares of large weights overflow
    squares = share_T.square().sum()
    return torch.where(squares > 0, share_T.sum().square() / squares / max(weight_T.numel(), 1), torch.zeros_like(squares))


def _detached(tokens: ActionTokens) -> ActionTokens:
    """The same numbers without their graph: an anchor may be the trained log-probabilities themselves."""
    columns = ("logp_T", "anchor_T", "behavior_T", "reference_T")
    return replace(tokens, **{name: value.detach() for name in columns if (value := getattr(tokens, name)) is not None})
