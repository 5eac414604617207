"""Sampling by inverse cumulative distribution: one uniform per token, drawn from a generator keyed by the attempt.

Legend: B rows, V vocabulary, C candidates that a row may be drawn from.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rollbook.records import Request

FIRST_LOOK, WIDER = 256, 8       # candidates that are looked at first, and by how much more when they do not suffice


def uniforms(seed: int, key: str, count: int) -> np.ndarray:
    """`count` uniforms in [0, 1) that depend on the run's seed, the attempt's key and the position, and on nothing else."""
    words = np.frombuffer(hashlib.sha256(f"{seed}\0{key}".encode()).digest()[:16], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=words)).random(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The ids that a row may be drawn from, ascending; the first `count_B` of a row are its own, the rest is padding.

    `log_mass_B` is the log of the probability that they hold together (nats).
    """

    id_BC: Tensor
    logits_BC: Tensor
    count_B: Tensor
    log_mass_B: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The sampled ids and their log-probs at sampling temperature, over the support that was sampled from (None: all ids)."""

    token_B: Tensor
    logp_B: Tensor
    kept: Kept | None


def draw(logits_BV: Tensor, uniform_B: Tensor, request: Request) -> Drawn:
    """One token per row; temperature 0 takes the most likely token and reports its log-prob at temperature 1."""
    logits = logits_BV if request.temperature in (0.0, 1.0) else logits_BV / request.temperature
    kept = support(logits, request) if request.top_k or request.top_p < 1.0 or request.min_p > 0.0 else None
    if kept is not None:
        logits = kept.logits_BC
    top_B = logits.max(dim=-1, keepdim=True)
    mass_BC = (logits - top_B.values).exp_()
    cumulative_BC = mass_BC.cumsum(-1)
    total_B = cumulative_BC[:, -1]
    if request.temperature == 0.0:
        place = top_B.indices[:, 0]
    else:
        aim = (uniform_B * total_B.double()).to(total_B.dtype).clamp(max=torch.nextafter(total_B, torch.zeros(())))
        place = torch.searchsorted(cumulative_BC, aim[:, None], right=True)[:, 0]
    logp = torch.log(mass_BC.gather(1, place[:, None])[:, 0] / total_B)
    token = place if kept is None else kept.id_BC.gather(1, place[:, None])[:, 0]
    return Drawn(token_B=token, logp_B=logp, kept=kept)


def support(logits_BV: Tensor, request: Request) -> Kept:
    """The allowed ids under top-k, then top-p, then min-p, of logits at sampling temperature; the most likely is always in.

    The ids stay in ascending order, so that two nearly equal ones cannot change places under a uniform.
    """
    vocab = logits_BV.shape[1]
    total_B1 = logits_BV.logsumexp(-1, keepdim=True)
    width = min(request.top_k or FIRST_LOOK, vocab)
    while True:
        best = logits_BV.topk(width, dim=-1)
        keep_BC = _kept(torch.exp(best.values - total_B1), request)
        if request.top_k or width == vocab or not bool(keep_BC[:, -1].any()):
            break
        width = min(width * WIDER, vocab)
    count_B = keep_BC.sum(-1)
    widest = int(count_B.max())
    id_BC = best.indices.masked_fill(~keep_BC, vocab).sort(-1).values[:, :widest]
    beyond_BC = torch.arange(widest) >= count_B[:, None]
    id_BC = id_BC.masked_fill(beyond_BC, 0)
    inside_BC = logits_BV.gather(1, id_BC).masked_fill(beyond_BC, float("-inf"))
    return Kept(id_BC=id_BC, logits_BC=inside_BC, count_B=count_B, log_mass_B=inside_BC.logsumexp(-1) - total_B1[:, 0])


def _kept(probability_BC: Tensor, request: Request) -> Tensor:
    """Which of the descending probabilities top-p and min-p keep; a run from the front."""
    keep_BC = torch.ones_like(probability_BC, dtype=torch.bool)
    if request.top_p < 1.0:
        keep_BC &= probability_BC.cumsum(-1) - probability_BC < request.top_p
    if request.min_p > 0.0:
        keep_BC &= probability_BC >= request.min_p * probability_BC[:, :1]
    keep_BC[:, 0] = True
    return keep_BC
