"""Supervised fine-tuning: mean negative log-likelihood of the policy's own tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rollbook.models.decoder import Decoder
from rollbook.models.layout import Tree, pack
from rollbook.models.logprobs import action_logprobs
from rollbook.records import Demonstration, Diverged
from rollbook.training.optimizer import Optimizer, Stepped
from rollbook.training.packing import best_fit
from rollbook.training.trees import demonstration_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class SftStep:
    """Mean loss in nats per trained token, how many tokens, and the optimizer's step.

    `weight_T` is the loss weight of every token of the batch's demonstrations end to end, in the order given, as it was used.
    """

    loss_nats: float
    tokens: int
    weight_T: Tensor
    stepped: Stepped


def sft_update(decoder: Decoder, optimizer: Optimizer, batch: Sequence[Demonstration], *, dtype: torch.dtype,
               max_tokens: int, where: str) -> SftStep:
    """One optimizer step on a batch; the mean is over all its policy tokens, however it is cut into micro-batches."""
    total = sum(span.length for one in batch for span in one.owners if span.owner == "policy")
    if total == 0:
        raise Diverged(f"{where} holds no policy token", why="there is nothing to imitate",
                       fix="check the demonstrations' owners")
    optimizer.zero()
    loss = 0.0
    used: dict[int, Tensor] = {}
    for places in best_fit([len(one.token_ids) for one in batch], max_tokens):
        part = [batch[at] for at in places]
        trees = [demonstration_tree(one) for one in part]
        used |= {id(one): _weights(tree) / total for one, tree in zip(part, trees, strict=True)}
        layout = pack(trees, window=decoder.architecture.window)
        nll = -action_logprobs(decoder, layout, temperature=1.0, dtype=dtype).logp_T.sum() / total
        loss += float(nll.detach())
        if not math.isfinite(loss):
            raise Diverged(f"the loss of {where} is not finite", got=str(loss), fix="lower the learning rate")
        nll.backward()
    return SftStep(loss_nats=loss, tokens=total, weight_T=torch.cat([used[id(one)] for one in batch]),
                   stepped=optimizer.step(where))


def _weights(tree: Tree) -> Tensor:
    """1.0 for every token that the tree trains, 0.0 for the others."""
    acts = (*(False for _ in tree.prompt), *(act for acts in tree.actions for act in acts))
    return torch.tensor(acts, dtype=torch.float32)
