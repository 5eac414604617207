"""Off-policy corrections: a weight per token, without gradient, that multiplies the policy term.

Suffixes: T tokens, S sequences. c = exp(anchor - behavior): engine mismatch plus version lag. Bounds are `low`, `high`:
the interval 1-low .. 1+high on the ratio; a single upper cap is `cap`. A correction multiplies *outside* the clip. Never
use one with an objective whose ratio is already to `behavior` (SAO, MOPD, ratio_to="behavior"): it would count twice.
What a band rejects gets weight 0 and stays in the denominator, unless the step's denominator is made without it: for whole
sequences by `sequence_weight`'s `keep_S` and `count_dropped`, for single tokens by giving it the kept tokens of each sequence as
`length_S`. No source says which. An infinite log-probability of an anchor or a behavior policy is refused: both met the sampled
token. NaN gives weight NaN: what was not measured is not outside a band.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rollbook.objectives.checks import (
    check_at_least,
    check_bounds,
    check_cap,
    check_float,
    check_limit,
    check_no_infinity,
    check_same_floats,
    check_same_shape,
    check_sequence_ids,
)
from rollbook.objectives.ratios import exp_guarded, inside_closed, only, ratio


def token_tis(anchor_T: Tensor, behavior_T: Tensor, *, cap: float) -> Tensor:
    """min(c, cap): truncated importance sampling per token. cap = inf is the plain importance weight."""
    check_cap("token_tis", cap=cap)
    return _mismatch(anchor_T, behavior_T).clamp(max=cap)


def icepop(anchor_T: Tensor, behavior_T: Tensor, *, low: float, high: float) -> Tensor:
    """c 1[1-low <= c <= 1+high], closed: IcePop's [alpha, beta] is low = 1 - alpha, high = beta - 1."""
    check_bounds("icepop", low=low, high=high)
    c_T = _mismatch(anchor_T, behavior_T)
    return only(inside_closed(c_T, low=low, high=high), c_T)


def pop(anchor_T: Tensor, behavior_T: Tensor, *, beta: float) -> Tensor:
    """c 1[1/beta <= c <= beta], closed: GLM-5's gate. As `icepop`, without the rounding of 1 - (1 - 1/beta)."""
    check_at_least("pop", 1, beta=beta)
    c_T = _mismatch(anchor_T, behavior_T)
    return only((c_T >= 1 / beta) & (c_T <= beta), c_T)


def sequence_tis(anchor_T: Tensor, behavior_T: Tensor, seq_T: Tensor, *, cap: float) -> Tensor:
    """min(prod_t c_t, cap), the same for all tokens of a sequence. Whole sequences only."""
    check_cap("sequence_tis", cap=cap)
    check_no_infinity("sequence_tis", anchor_T=anchor_T, behavior_T=behavior_T)
    return exp_guarded(_total_S(anchor_T, behavior_T, seq_T)).clamp(max=cap)[seq_T]


def sequence_mis(anchor_T: Tensor, behavior_T: Tensor, seq_T: Tensor, *, cap: float) -> Tensor:
    """prod_t c_t where that is <= cap, else 0. Whole sequences only."""
    check_cap("sequence_mis", cap=cap)
    check_no_infinity("sequence_mis", anchor_T=anchor_T, behavior_T=behavior_T)
    product_S = exp_guarded(_total_S(anchor_T, behavior_T, seq_T))
    return only(product_S <= cap, product_S)[seq_T]


def geometric_band(anchor_T: Tensor, behavior_T: Tensor, seq_T: Tensor, *, low: float, high: float) -> Tensor:
    """1 where 1-low <= exp(mean_t log c) <= 1+high, else 0: rejects, does not weigh. Whole sequences only."""
    check_bounds("geometric_band", low=low, high=high)
    check_no_infinity("geometric_band", anchor_T=anchor_T, behavior_T=behavior_T)
    mean_S = _total_S(anchor_T, behavior_T, seq_T) / _count_S(seq_T, anchor_T.dtype).clamp(min=1)
    inside_S = inside_closed(exp_guarded(mean_S), low=low, high=high).to(mean_S.dtype)
    return torch.where(mean_S.isnan(), mean_S, inside_S)[seq_T]


def sequence_mask(logp_T: Tensor, behavior_T: Tensor, advantage_T: Tensor, seq_T: Tensor, *, delta: float) -> Tensor:
    """DeepSeek V3.2's off-policy sequence mask: 0 iff A < 0 and (1/L) sum_t (behavior - logp) > delta, else 1.

    `behavior_T` must be what the engine reported at sampling, so that lag and mismatch both count. A sequence with A >= 0 is
    never masked. Only the policy term is multiplied; its denominator and the KL term stay. Whole sequences only. Where the policy
    can no longer produce a token (logp = -inf) the drift is infinite.
    """
    check_limit("sequence_mask", delta=delta)
    check_same_floats("sequence_mask", logp_T=logp_T, advantage_T=advantage_T)
    check_no_infinity("sequence_mask", behavior_T=behavior_T)
    drift_S = _total_S(behavior_T, logp_T, seq_T) / _count_S(seq_T, logp_T.dtype).clamp(min=1)
    kept_T = (~((advantage_T < 0) & (drift_S[seq_T] > delta))).to(logp_T.dtype)
    return torch.where((advantage_T < 0) & drift_S[seq_T].isnan(), drift_S[seq_T], kept_T)


def _mismatch(anchor_T: Tensor, behavior_T: Tensor) -> Tensor:
    check_same_floats("correction", anchor_T=anchor_T, behavior_T=behavior_T)
    check_no_infinity("correction", anchor_T=anchor_T, behavior_T=behavior_T)
    return ratio(anchor_T.detach(), behavior_T.detach())


def _total_S(upper_T: Tensor, lower_T: Tensor, seq_T: Tensor) -> Tensor:
    check_same_shape("correction", upper_T=upper_T, lower_T=lower_T, seq_T=seq_T)
    check_float("correction", upper_T=upper_T, lower_T=lower_T)
    check_sequence_ids(seq_T)
    log_T = (upper_T - lower_T).detach()
    return log_T.new_zeros(_sequences(seq_T)).index_add(0, seq_T, log_T)


def _count_S(seq_T: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.bincount(seq_T, minlength=_sequences(seq_T)).to(dtype)


def _sequences(seq_T: Tensor) -> int:
    return int(seq_T.max()) + 1 if seq_T.numel() else 0
