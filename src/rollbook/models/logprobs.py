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
from rollbook.models.native.ops import kernels
from rollbook.models.support import Support, support_log_softmax, support_logp

CHUNK = 128        # rows whose logits are computed together
NEAR = 1 << 20     # fp32 values that are passed over several times while they are near the processor: 4 MiB
BLOCK = 1024       # rows whose slopes, in the compute dtype, become one product for the head's gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Per action token, in nats: log-prob of the sampled token, with gradient; entropy of its distribution, with one if asked."""

    logp_T: Tensor
    entropy_T: Tensor

    @classmethod
    def of(cls, logp_T: Tensor, entropy_T: Tensor) -> Scores:
        """In the processor's memory, wherever the weights are: objectives and records read them there."""
        return cls(logp_T=logp_T.cpu(), entropy_T=entropy_T.cpu())


def action_logprobs(decoder: Decoder, layout: Layout, *, temperature: float, dtype: torch.dtype,
                    entropy_gradient: bool = False) -> Scores:
    """Log-probs of the layout's action tokens at sampling temperature, through a head that never holds T x V.

    With `entropy_gradient` the entropies can be differentiated too: -p (log p + H) on every logit.
    """
    layout = layout.to(decoder.device)
    hidden_TH = decoder(layout, dtype)[layout.predictor_T]
    if isinstance(decoder, Fallback):
        return _through(decoder.readout(dtype), hidden_TH, layout.target_T, temperature, entropy_gradient)
    logp_T, entropy_T = _ChunkedHead.apply(hidden_TH, decoder.head, layout.target_T, temperature, entropy_gradient)
    return Scores.of(logp_T, entropy_T)


def _through(readout: Callable[[Tensor], Tensor], hidden: Tensor, target: Tensor, temperature: float,
             entropy_gradient: bool) -> Scores:
    """The same through any function from hidden states to logits, recomputed in backward chunk by chunk."""
    def scored(hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logits = readout(hidden)
        logits = logits if temperature == 1.0 else logits / temperature
        normalizer = logits.logsumexp(-1)
        entropy = _entropy(logits, normalizer) if entropy_gradient else _entropy(logits.detach(), normalizer.detach())
        return logits.gather(1, target[:, None])[:, 0] - normalizer, entropy
    parts = [checkpoint(scored, some, targets, use_reentrant=False)
             for some, targets in zip(hidden.split(CHUNK), target.split(CHUNK), strict=True)]
    logp, entropy = (torch.cat(each) for each in zip(*parts, strict=True))
    return Scores.of(logp, entropy)


class _ChunkedHead(torch.autograd.Function):
    """log softmax(h W^T / temperature)[target], with logits recomputed in backward chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, target: Tensor, temperature: float,
                entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        weight = head.to(hidden.dtype)
        logp = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        entropy = torch.empty_like(logp)
        normalizer = torch.empty_like(logp)
        native = kernels(hidden.dtype, hidden.device)
        if native is not None:
            for part in (slice(at, at + CHUNK) for at in range(0, hidden.shape[0], CHUNK)):
                native.softmax(hidden[part] @ weight.T, target[part], temperature, (logp[part], entropy[part], normalizer[part]))
        for part, logits in _near_logits(hidden, weight, temperature) if native is None else ():
            top = logits.amax(-1, keepdim=True)
            picked = logits.gather(1, target[part, None])[:, 0]
            shifted = logits.sub_(top)
            mass = shifted.exp()
            total = mass.sum(-1)
            normalizer[part] = top[:, 0] + total.log()
            logp[part] = picked - normalizer[part]
            entropy[part] = total.log() - mass.mul_(shifted).sum(-1) / total
        ctx.save_for_backward(hidden, head, target, normalizer, *((entropy,) if entropy_gradient else ()))
        ctx.temperature = temperature
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, grad_logp: Tensor, grad_entropy: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden, head, target, normalizer, *held = ctx.saved_tensors
        weight = head.to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden)
        grad_head: Tensor | None = None
        for at in range(0, hidden.shape[0], BLOCK):
            block = slice(at, min(at + BLOCK, hidden.shape[0]))
            rows = hidden[block]
            slope = _slope(rows, weight, target[block], ctx.temperature, normalizer[block], grad_logp[block],
                           (held[0][block], grad_entropy[block]) if held else None)
            grad_hidden[block] = slope @ weight
            product = slope.T @ rows
            grad_head = product.to(head.dtype) if grad_head is None else grad_head.add_(product)
        return grad_hidden, torch.zeros_like(head) if grad_head is None else grad_head, None, None, None


def _slope(rows: Tensor, weight: Tensor, target: Tensor, temperature: float, normalizer: Tensor, grad_logp: Tensor,
           aside: tuple[Tensor, Tensor] | None) -> Tensor:
    """The loss's slope by the logits of some rows, in the compute dtype; `aside`: entropies and the gradient by them."""
    native = kernels(rows.dtype, rows.device)
    if native is not None:
        return native.softmax_backward(rows @ weight.T, target, temperature, normalizer, grad_logp / temperature,
                                       None if aside is None else (aside[0], aside[1] / temperature))
    slope = torch.empty(rows.shape[0], weight.shape[0], dtype=rows.dtype, device=rows.device)
    for part, logits in _near_logits(rows, weight, temperature):
        scale = grad_logp[part, None] / temperature
        logp = logits.sub_(normalizer[part, None])
        toward = None if aside is None else _entropy_slope(logp, aside[0][part], aside[1][part] / temperature)
        exact = logp.exp_().mul_(-scale).scatter_add_(1, target[part, None], scale)
        slope[part] = exact if toward is None else exact.add_(toward)
    return slope


def _entropy_slope(logp: Tensor, entropy: Tensor, scale: Tensor) -> Tensor:
    """scale * dH/dlogit = -scale p (log p + H), 0 where p is."""
    slope = logp.exp().mul_(logp + entropy[:, None]).mul_(-scale[:, None])
    return slope.masked_fill_(logp.isneginf(), 0.0)


def _near_logits(hidden: Tensor, weight: Tensor, temperature: float) -> Iterator[tuple[slice, Tensor]]:
    """fp32 logits a few rows at a time, and which rows they are; the product is made for `CHUNK` rows at once.

    An accelerator has no use for few rows: there `BLOCK` rows are both.
    """
    chunk, few = (CHUNK, max(1, NEAR // weight.shape[0])) if hidden.device.type == "cpu" else (BLOCK, BLOCK)
    for at in range(0, hidden.shape[0], chunk):
        product = hidden[at:at + chunk] @ weight.T
        for start in range(0, product.shape[0], few):
            logits = product[start:start + few].to(torch.float32, copy=True)
            yield (slice(at + start, at + start + logits.shape[0]),
                   logits if temperature == 1.0 else logits.div_(temperature))


def scaled_logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """fp32 logits [*, V] divided by the sampling temperature."""
    logits = (hidden @ weight.T).float()
    return logits if temperature == 1.0 else logits.div_(temperature)


def _entropy(logits: Tensor, normalizer: Tensor) -> Tensor:
    logp = logits - normalizer[:, None]
    return -(logp.exp() * logp).sum(-1)


def support_logprobs(decoder: Decoder, layout: Layout, support: Support, *, temperature: float, dtype: torch.dtype) -> Scores:
    """Like `action_logprobs`, over the ids that each action token was sampled from (Keep Sampling Mask); entropy likewise."""
    layout, support = layout.to(decoder.device), support.to(decoder.device)
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
    return Scores.of(logp, entropy)


def full_logprobs(decoder: Decoder, layout: Layout, *, temperature: float, dtype: torch.dtype) -> Iterator[Tensor]:
    """Log-probs of every id at the layout's action tokens, fp32 [at most CHUNK, V] at a time, without gradient."""
    with torch.no_grad():                   # never around a yield: whoever reads would compute without gradient too
        readout, parts = _readout(decoder, dtype), decoder(layout, dtype)[layout.predictor_T.to(decoder.device)].split(CHUNK)
    for part in parts:
        with torch.no_grad():
            found = readout(part).div(temperature).log_softmax(-1).cpu()
        yield found


def _readout(decoder: Decoder, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The function from what the decoder's forward gives to fp32 logits."""
    if isinstance(decoder, Fallback):
        return decoder.readout(dtype)
    return lambda hidden: scaled_logits(hidden, decoder.head.to(dtype), 1.0)
