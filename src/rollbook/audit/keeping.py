"""What a stage asks the engine to keep of its sampling, against what its trajectories hold."""

from __future__ import annotations

import numpy as np

from rollbook.records import Kept, RecordError, SamplingEnvelope, Trace
from rollbook.records.recipe import PolicyGradient

REMEDY = "keep what every sampled token was drawn from, and the experts of every position, where the stage asks and nowhere else"


def kept_otherwise(trace: Trace, stage: PolicyGradient, envelope: SamplingEnvelope | None) -> str:
    """In what a trajectory of this stage holds something else than the stage asks to be kept; empty where it does not."""
    kept = Kept() if trace.kept is None else trace.kept
    if not trace.action_count:
        return ""
    if bool(kept.counts) != bool(kept.support):
        return f"it keeps ids without the number of each token's, or the number without the ids: {len(kept.counts)} supports"
    if bool(kept.counts) != stage.sampling_mask:
        return f"what its tokens were drawn from is {'' if kept.counts else 'not '}kept; sampling_mask is {stage.sampling_mask}"
    if bool(kept.routes) != (stage.routing == "sampled"):
        return f"the experts of its positions are {'' if kept.routes else 'not '}kept; routing is {stage.routing}"
    try:
        return _support(trace, kept, envelope) or _routes(trace, kept)
    except (RecordError, OverflowError) as error:
        return str(error)


def _support(trace: Trace, kept: Kept, envelope: SamplingEnvelope | None) -> str:
    if not kept.counts:
        return ""
    token_T = np.array([token for segment in trace.policy_segments for token in segment.token_ids], dtype=np.int64)
    id_N, count_T = np.array(kept.ids, dtype=np.int64), np.array(kept.counts, dtype=np.int64)
    if len(count_T) != len(token_T) or count_T.min() < 1 or sum(kept.counts) != len(id_N):
        return f"it keeps {len(id_N)} ids in {len(count_T)} supports of {sum(kept.counts)} for {len(token_T)} sampled tokens"
    row_N = np.repeat(np.arange(len(count_T)), count_T)
    inside_T = np.zeros(len(token_T), dtype=bool)
    np.logical_or.at(inside_T, row_N, id_N == token_T[row_N])
    if not inside_T.all():
        place = int(np.flatnonzero(~inside_T)[0])
        return f"sampled token {place} ({int(token_T[place])}) is none of the {int(count_T[place])} ids it was drawn from"
    if ((np.diff(id_N) <= 0) & (np.diff(row_N) == 0)).any():
        return "the ids that a token was drawn from are not in ascending order, or stand twice"
    logp_T = np.array([x for segment in trace.policy_segments for x in segment.logps or ()])
    alone_T = (count_T == 1)[:len(logp_T)]
    if len(logp_T) == len(count_T) and np.abs(logp_T[alone_T]).max(initial=0.0) > 1e-6:
        return "a token that was drawn from one id alone has a log-prob other than 0"
    if envelope is not None and envelope.top_k and int(count_T.max()) > envelope.top_k:
        return f"a token was drawn from {int(count_T.max())} ids under top_k {envelope.top_k}"
    return ""


def _routes(trace: Trace, kept: Kept) -> str:
    if not kept.routes:
        return ""
    positions, experts = len(trace.token_ids) - 1, np.array(kept.experts)
    if positions < 1 or len(experts) % positions or experts.min() < 0:
        return f"it keeps {len(experts)} experts for {positions} positions that were read"
    return ""
