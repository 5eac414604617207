"""Whether the ids that tokens were drawn from are those that top-k, top-p and min-p leave, by the weights that sampled.

Legend: T action tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rollbook.models.support import Support
from rollbook.records import SamplingEnvelope

OTHER_SUPPORT = ("the learner scored over other ids than the envelope says: let the engine report what it drew from, drop the "
                 "updates made of these")
# Probability, a token, of the ids that stand on the wrong side. One at the very edge may, by the rounding of its probability.
ONE = {"float32": 5e-3, "bfloat16": 0.1}        # mean over one trajectory
ALL = {"float32": 2e-4, "bfloat16": 0.02}       # mean over the sample


def misplaced(logp: Iterable[Tensor], support: Support, envelope: SamplingEnvelope) -> Tensor:
    """Per token, the probability of ids that were kept and may not be, or were not and must be.

    `logp` are log-probs of all ids at sampling temperature, a few rows [*, V] each. Engines differ in whether top-p counts the
    probability of all ids or of those that the other rules leave: an id must be in where both say so, out where neither does.
    """
    found, at, begin = [], 0, 0
    for part_TV in logp:
        rows = part_TV.shape[0]
        count_T = support.count_T[at:at + rows]
        end = begin + int(count_T.sum())
        kept_TV = Support(id_N=support.id_N[begin:end], count_T=count_T).mask(part_TV.shape[1])
        may_TV, must_TV = _allowed(part_TV.exp(), envelope)
        wrong_TV = (kept_TV & ~may_TV) | (must_TV & ~kept_TV)
        found.append((part_TV.exp() * wrong_TV).sum(-1))
        at, begin = at + rows, end
    return torch.cat(found)


def _allowed(probability_TV: Tensor, envelope: SamplingEnvelope) -> tuple[Tensor, Tensor]:
    """Which ids may be drawn, and which of them must be among those that are."""
    sorted_TV, order_TV = probability_TV.sort(dim=-1, descending=True, stable=True)
    least_TV = torch.ones_like(sorted_TV, dtype=torch.bool)
    if envelope.top_k:
        least_TV[:, envelope.top_k:] = False
    if envelope.min_p:
        least_TV &= sorted_TV >= envelope.min_p * sorted_TV[:, :1]
    left_TV = sorted_TV * least_TV
    may_TV, must_TV = least_TV.clone(), least_TV
    if envelope.top_p < 1.0:
        may_TV &= sorted_TV.cumsum(-1) - sorted_TV < envelope.top_p
        renewed_TV = left_TV / left_TV.sum(-1, keepdim=True)
        must_TV = must_TV & (renewed_TV.cumsum(-1) - renewed_TV < envelope.top_p)
    may_TV[:, 0] = must_TV[:, 0] = True
    back = torch.zeros_like(least_TV)
    return back.scatter(-1, order_TV, may_TV), back.scatter(-1, order_TV, must_TV)
