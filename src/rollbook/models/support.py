"""Keep Sampling Mask: log-probs over the support that was sampled from (DeepSeek V3.2, 2512.02556 section 3.1).

    logp'_y = z_y / temperature - logsumexp over v in K of z_v / temperature,   y in K

Gradient d logp'_y / d z_v = (1[v = y] - p'_v) / temperature on K, exactly 0 off K; K = all is the plain log-prob. Under top-k or
top-p sampling *every* log-prob of a token (trained, anchor, behavior) is over the same K; otherwise their ratio is biased.

Legend: T action tokens, V vocabulary, N allowed ids of all tokens, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rollbook.records import ModelError, SampledSupport


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """The allowed ids of each token, ragged: the first count_T[0] of `id_N` belong to token 0, and so on.

    Example: Support.of([[3, 1], [2]]) has id_N = [3, 1, 2] and count_T = [2, 1].
    """

    id_N: Tensor
    count_T: Tensor

    def __post_init__(self) -> None:
        if self.id_N.dtype != torch.int64 or self.count_T.dtype != torch.int64:
            raise ModelError("Support needs int64 ids and counts", got=f"{self.id_N.dtype} and {self.count_T.dtype}")
        if bool((self.count_T < 0).any()):
            raise ModelError("Support's counts must be >= 0", got=str(int(self.count_T.min())), why="they count allowed ids")
        if int(self.count_T.sum()) != self.id_N.numel():
            raise ModelError("Support's counts must add up to its ids", got=f"{int(self.count_T.sum())} and {self.id_N.numel()}",
                             why="the ids of all tokens are stored one after the other")

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Support:
        """The support of per-token id lists."""
        return cls(id_N=torch.tensor([each for row in rows for each in row], dtype=torch.int64),
                   count_T=torch.tensor([len(row) for row in rows], dtype=torch.int64))

    def to(self, device: torch.device) -> Support:
        """The same on a device."""
        return Support(id_N=self.id_N.to(device), count_T=self.count_T.to(device))

    def mask(self, vocab: int) -> Tensor:
        """Boolean [T, V], True on the allowed ids; an id named twice counts once."""
        if self.id_N.numel() and not 0 <= int(self.id_N.min()) <= int(self.id_N.max()) < vocab:
            raise ModelError(f"allowed ids must lie in 0 .. {vocab - 1}", got=f"{int(self.id_N.min())} .. {int(self.id_N.max())}",
                             why="the support was recorded with another vocabulary")
        row_N = torch.repeat_interleave(torch.arange(self.count_T.numel(), device=self.id_N.device), self.count_T)
        allowed_TV = torch.zeros(self.count_T.numel(), vocab, dtype=torch.bool, device=self.id_N.device)
        allowed_TV[row_N, self.id_N] = True
        return allowed_TV


def support_logp(logits_TV: Tensor, token_T: Tensor, allowed: Support | Tensor, *, temperature: float) -> Tensor:
    """logp' of each sampled token, at least fp32; `allowed` is a `Support` or a boolean [T, V]."""
    logp_TV = support_log_softmax(logits_TV, allowed, temperature=temperature)
    if token_T.shape != logits_TV.shape[:1]:
        raise ModelError("support_logp needs one token per row", got=f"{tuple(token_T.shape)} for {tuple(logits_TV.shape)}")
    logp_T = logp_TV.gather(1, token_T[:, None])[:, 0]
    outside_T = ~_mask(logits_TV, allowed).gather(1, token_T[:, None])[:, 0]
    if bool(outside_T.any()):
        place = int(outside_T.nonzero()[0, 0])
        raise ModelError("a sampled token must be in its own support", got=f"token {int(token_T[place])} at position {place}",
                         why="its log-prob over that support would be minus infinity",
                         fix="record the support the engine sampled from, with the sampled token in it")
    return logp_T


def support_log_softmax(logits_TV: Tensor, allowed: Support | Tensor, *, temperature: float) -> Tensor:
    """log p' of every id, -inf off the support; temperature comes first, as in sampling."""
    if not 0 < temperature < float("inf"):
        raise ModelError("a log-prob needs a finite temperature above 0", got=str(temperature), why="logits are divided by it",
                         fix="greedy sampling reports log-probs at temperature 1: pass 1.0")
    wide_TV = logits_TV if logits_TV.dtype == torch.float64 else logits_TV.float()
    scaled_TV = wide_TV / temperature
    return scaled_TV.masked_fill(~_mask(logits_TV, allowed), float("-inf")).log_softmax(-1)


def _mask(logits_TV: Tensor, allowed: Support | Tensor) -> Tensor:
    allowed_TV = allowed.mask(logits_TV.shape[1]) if isinstance(allowed, Support) else allowed
    if allowed_TV.shape != logits_TV.shape or allowed_TV.dtype != torch.bool:
        raise ModelError("the support needs one boolean per logit",
                         got=f"{allowed_TV.dtype} {tuple(allowed_TV.shape)} for logits {tuple(logits_TV.shape)}",
                         why="row t holds what token t could have been")
    empty_T = ~allowed_TV.any(-1)
    if bool(empty_T.any()):
        raise ModelError("a support must not be empty", got=f"no allowed id at position {int(empty_T.nonzero()[0, 0])}",
                         why="a softmax over nothing has no value")
    return allowed_TV


def recorded_support(parts: Sequence[SampledSupport | None]) -> Support:
    """The support of sequences end to end, as an engine recorded it; every one must have been sampled from a support."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        raise ModelError("a support must be known for every sequence or for none", got=f"{len(known)} of {len(parts)}",
                         why="log-probs over a support and over the whole vocabulary are different numbers",
                         fix="score sequences of one sampling setting together")
    return Support(id_N=torch.tensor([one for part in known for one in part.ids], dtype=torch.int64),
                   count_T=torch.tensor([count for part in known for count in part.counts], dtype=torch.int64))
