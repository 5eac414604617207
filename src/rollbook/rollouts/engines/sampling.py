"""Sampling by inverse cumulative distribution: one uniform per token, drawn from a generator keyed by the attempt.

Legend: B rows, V vocabulary.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rollbook.records import Request


def uniforms(seed: int, key: str, count: int) -> np.ndarray:
    """`count` uniforms in [0, 1) that depend on the run's seed, the attempt's key and the position, and on nothing else."""
    words = np.frombuffer(hashlib.sha256(f"{seed}\0{key}".encode()).digest()[:16], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=words)).random(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The sampled ids and their log-probs at sampling temperature, over the support that was sampled from."""

    token_B: Tensor
    logp_B: Tensor


def draw(logits_BV: Tensor, uniform_B: Tensor, request: Request) -> Drawn:
    """One token per row; temperature 0 takes the most likely token and reports its log-prob at temperature 1."""
    logits = logits_BV if request.temperature in (0.0, 1.0) else logits_BV / request.temperature
    if request.top_k or request.top_p < 1.0 or request.min_p > 0.0:
        logits = logits.masked_fill(~support(logits, request), float("-inf"))
    top_B = logits.max(dim=-1, keepdim=True)
    mass_BV = (logits - top_B.values).exp_()
    cumulative_BV = mass_BV.cumsum(-1)
    total_B = cumulative_BV[:, -1]
    if request.temperature == 0.0:
        token = top_B.indices[:, 0]
    else:
        aim = (uniform_B * total_B.double()).to(total_B.dtype).clamp(max=torch.nextafter(total_B, torch.zeros(())))
        token = torch.searchsorted(cumulative_BV, aim[:, None], right=True)[:, 0]
    logp = torch.log(mass_BV.gather(1, token[:, None])[:, 0] / total_B)
    return Drawn(token_B=token, logp_B=logp)


def support(logits_BV: Tensor, request: Request) -> Tensor:
    """The allowed set under top-k, then top-p, then min-p; the most likely token is always in it."""
    allowed = torch.ones_like(logits_BV, dtype=torch.bool)
    ordered = logits_BV.sort(dim=-1, descending=True)
    probability = ordered.values.softmax(-1)
    keep = torch.ones_like(allowed)
    if request.top_k:
        keep[:, request.top_k:] = False
    if request.top_p < 1.0:
        keep &= probability.cumsum(-1) - probability < request.top_p
    if request.min_p > 0.0:
        keep &= probability >= request.min_p * probability[:, :1]
    keep[:, 0] = True
    return allowed.scatter(1, ordered.indices, keep)
