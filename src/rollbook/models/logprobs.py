"""The only place where hidden states become log-probabilities: temperature, the one-position shift, the softmax.

Legend: T action tokens, L packed positions, H width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rollbook.models.decoder import Decoder
from rollbook.models.fallback import Fallback
from rollbook.models.layout import Layout
from rollbook.models.support import Support, support_log_softmax, support_logp

CHUNK = 128        # 128 rows of fp32 logits over 49,152 words are 24 MiB: small enough for the allocator to keep


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Per action token: log-prob of the sampled token (nats, with gradient) and entropy of its distribution (no gradient)."""

    logp_T: Tensor
    entropy_T: Tensor


def action_logprobs(decoder: Decoder, layout: Layout, *, temperature: float, dtype: torch.dtype) -> Scores:
    """Log-probs of the layout's action tokens at sampling temperature, through a head that never holds T x V."""
    hidden_TH = decoder(layout, dtype)[layout.predictor_T]
    if isinstance(decoder, Fallback):
        return _through(decoder.readout(dtype), hidden_TH, layout.target_T, temperature)
    logp_T, entropy_T = _ChunkedHead.apply(hidden_TH, decoder.head, layout.target_T, temperature)
    return Scores(logp_T=logp_T, entropy_T=entropy_T)


def _through(readout: Callable[[Tensor], Tensor], hidden: Tensor, target: Tensor, temperature: float) -> Scores:
    """The same through any function from hidden states to logits, recomputed in backward chunk by chunk."""
    def scored(hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logits = readout(hidden)
        logits = logits if temperature == 1.0 else logits / temperature
        normalizer = logits.logsumexp(-1)
        entropy = _entropy(logits.detach(), normalizer.detach())
        return logits.gather(1, target[:, None])[:, 0] - normalizer, entropy
    parts = [checkpoint(scored, some, targets, use_reentrant=False)
             for some, targets in zip(hidden.split(CHUNK), target.split(CHUNK), strict=True)]
    logp, entropy = (torch.cat(each) for each in zip(*parts, strict=True))
    return Scores(logp_T=logp, entropy_T=entropy)


class _ChunkedHead(torch.autograd.Function):
    """log softmax(h W^T / temperature)[target], with logits recomputed in backward chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        weight = head.to(hidden.dtype)
        logp = torch.empty(hidden.shape[0], dtype=torch.float32)
        entropy = torch.empty_like(logp)
        normalizer = torch.empty_like(logp)
        for at in range(0, hidden.shape[0], CHUNK):
            part = slice(at, at + CHUNK)
            logits = scaled_logits(hidden[part], weight, temperature)
            normalizer[part] = logits.logsumexp(-1)
            logp[part] = logits.gather(1, target[part, None])[:, 0] - normalizer[part]
            entropy[part] = _entropy(logits, normalizer[part])
        ctx.save_for_backward(hidden, head, target, normalizer)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, grad_logp: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden, head, target, normalizer = ctx.saved_tensors
        weight = head.to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros(head.shape, dtype=torch.float32)
        for at in range(0, hidden.shape[0], CHUNK):
            part = slice(at, at + CHUNK)
            slope = scaled_logits(hidden[part], weight, ctx.temperature).sub_(normalizer[part, None]).exp_()
            scale = grad_logp[part, None] / ctx.temperature
            slope.mul_(-scale).scatter_add_(1, target[part, None], scale)
            slope = slope.to(hidden.dtype)
            grad_hidden[part] = slope @ weight
            grad_head += slope.T @ hidden[part]
        return grad_hidden, grad_head.to(head.dtype), None, None


def scaled_logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """fp32 logits [*, V] divided by the sampling temperature."""
    logits = (hidden @ weight.T).float()
    return logits if temperature == 1.0 else logits.div_(temperature)


def _entropy(logits: Tensor, normalizer: Tensor) -> Tensor:
    logp = logits - normalizer[:, None]
    return -(logp.exp() * logp).sum(-1)


def support_logprobs(decoder: Decoder, layout: Layout, support: Support, *, temperature: float, dtype: torch.dtype) -> Scores:
    """Like `action_logprobs`, over the ids that each action token was sampled from (Keep Sampling Mask); entropy likewise."""
    hidden_TH = decoder(layout, dtype)[layout.predictor_T]
    readout = _readout(decoder, dtype)

    def scored(hidden: Tensor, target: Tensor, count: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        logits, allowed = readout(hidden), Support(id_N=ids, count_T=count)
        logp = support_log_softmax(logits.detach(), allowed, temperature=temperature)
        entropy = -torch.where(logp.isinf(), 0.0, logp.exp() * logp).sum(-1)
        return support_logp(logits, target, allowed, temperature=temperature), entropy
    counts = support.count_T.split(CHUNK)
    ids = support.id_N.split([int(count.sum()) for count in counts])
    parts = [checkpoint(scored, *some, use_reentrant=False)
             for some in zip(hidden_TH.split(CHUNK), layout.target_T.split(CHUNK), counts, ids, strict=True)]
    logp, entropy = (torch.cat(each) for each in zip(*parts, strict=True))
    return Scores(logp_T=logp, entropy_T=entropy)


def full_logprobs(decoder: Decoder, layout: Layout, *, temperature: float, dtype: torch.dtype) -> Iterator[Tensor]:
    """Log-probs of every id at the layout's action tokens, fp32 [at most CHUNK, V] at a time, without gradient."""
    with torch.no_grad():
        readout = _readout(decoder, dtype)
        for part in decoder(layout, dtype)[layout.predictor_T].split(CHUNK):
            yield readout(part).div(temperature).log_softmax(-1)


def _readout(decoder: Decoder, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The function from what the decoder's forward gives to fp32 logits."""
    if isinstance(decoder, Fallback):
        return decoder.readout(dtype)
    return lambda hidden: scaled_logits(hidden, decoder.head.to(dtype), 1.0)
