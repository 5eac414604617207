"""Sampling by inverse cumulative distribution: one uniform per token, drawn from a generator keyed by the attempt.

Legend: B rows, V vocabulary, C candidates that a row may be drawn from.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rollbook.models.native.ops import kernels
from rollbook.records import Request

FIRST_LOOK, WIDER = 256, 8       # candidates that are looked at first, and by how much more when they do not suffice
BLOCK = 256                      # places whose mass is summed before the one that was drawn is sought
NEAR = 1 << 19                   # values that are passed over together: 2 MiB of fp32


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
    """The sampled ids and their log-probs at sampling temperature, over the support that was sampled from (None: all ids); all
    but `kept` in the processor's memory.

    `sound_B`: whether a row's logits could be drawn from; where a NaN or +inf stood among them the rest of the row means nothing.
    """

    token_B: Tensor
    logp_B: Tensor
    sound_B: Tensor
    kept: Kept | None


def draw(logits_BV: Tensor, uniform_B: Tensor, request: Request) -> Drawn:
    """One token per row; temperature 0 takes the most likely token and reports its log-prob at temperature 1.

    Logits in any precision, on any device; the arithmetic is fp32 over each row and fp64 over its blocks, by a processor a few
    rows at a time, so that what is passed over several times stays near it.
    """
    uniform_B = uniform_B.to(logits_BV.device)
    if request.top_k or request.top_p < 1.0 or request.min_p > 0.0:
        return _restricted(logits_BV, uniform_B, request)
    native = kernels(logits_BV.dtype, logits_BV.device)
    if native is not None:
        token, logp, sound = native.draw(logits_BV.contiguous(), uniform_B.double(), request.temperature)
        return Drawn(token_B=token, logp_B=logp, sound_B=sound, kept=None)
    rows = max(1, NEAR // logits_BV.shape[1]) if logits_BV.device.type == "cpu" else logits_BV.shape[0]
    parts = [_draw(some, uniform, request.temperature) for some, uniform in
             zip(logits_BV.split(rows), uniform_B.split(rows), strict=True)]
    token, logp, sound = (torch.cat(each).cpu() for each in zip(*parts, strict=True))
    return Drawn(token_B=token, logp_B=logp, sound_B=sound, kept=None)


def _restricted(logits_BV: Tensor, uniform_B: Tensor, request: Request) -> Drawn:
    logits = logits_BV.float()
    sound_B = torch.isfinite(logits.amax(-1))
    logits = logits.masked_fill(~sound_B[:, None], 0.0)
    kept = support(logits if request.temperature in (0.0, 1.0) else logits / request.temperature, request)
    place_B, logp_B, _ = _draw(kept.logits_BC, uniform_B, 1.0 if request.temperature else 0.0)
    token_B = kept.id_BC.gather(1, place_B[:, None])[:, 0]
    return Drawn(token_B=token_B.cpu(), logp_B=logp_B.cpu(), sound_B=sound_B.cpu(), kept=kept)


def _draw(logits_BC: Tensor, uniform_B: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Places, log-probs and soundness of some rows: the block that holds the uniform's share first, then the place inside it."""
    logits = logits_BC.float() if temperature in (0.0, 1.0) else logits_BC.float() / temperature
    top_B1 = logits.amax(-1, keepdim=True)
    mass_BC = (logits - top_B1).exp_()
    block_BN = _block_sums(mass_BC).double().cumsum(-1)
    total_B = block_BN[:, -1]
    if temperature == 0.0:
        place_B = logits.argmax(-1)
    else:
        aim_B1 = (uniform_B * total_B).clamp(max=torch.nextafter(total_B, torch.zeros_like(total_B)))[:, None]
        place_B = _place(mass_BC, block_BN, aim_B1)
    logp_B = torch.log(mass_BC.gather(1, place_B[:, None])[:, 0].double() / total_B).float()
    return place_B, logp_B, torch.isfinite(total_B)


def _block_sums(mass_BC: Tensor) -> Tensor:
    """Sums of each row's blocks of `BLOCK`, the last one as long as it is."""
    whole = mass_BC.shape[1] // BLOCK * BLOCK
    sums = mass_BC[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1) if whole else mass_BC[:, :0]
    return sums if whole == mass_BC.shape[1] else torch.cat([sums, mass_BC[:, whole:].sum(-1, keepdim=True)], dim=1)


def _place(mass_BC: Tensor, block_BN: Tensor, aim_B1: Tensor) -> Tensor:
    """The first place at which the cumulative mass exceeds the aim; never one without mass."""
    size = mass_BC.shape[1]
    block_B1 = torch.searchsorted(block_BN, aim_B1, right=True).clamp_(max=block_BN.shape[1] - 1)
    before_B1 = torch.where(block_B1 > 0, block_BN.gather(1, (block_B1 - 1).clamp(min=0)), 0.0)
    inside_K = torch.arange(BLOCK, device=mass_BC.device)
    index_BK = block_B1 * BLOCK + inside_K
    inside_BK = torch.where(index_BK < size, mass_BC.gather(1, index_BK.clamp(max=size - 1)), 0.0)
    found_B1 = torch.searchsorted(inside_BK.double().cumsum(-1) + before_B1, aim_B1, right=True)
    last_B1 = torch.where(inside_BK > 0, inside_K, 0).amax(-1, keepdim=True)      # where rounding left none above
    return (block_B1 * BLOCK + torch.minimum(found_B1, last_B1)).clamp_(max=size - 1)[:, 0]


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
    beyond_BC = torch.arange(widest, device=count_B.device) >= count_B[:, None]
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
