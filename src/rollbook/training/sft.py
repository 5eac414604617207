"""Supervised fine-tuning: mean negative log-likelihood of the policy's own tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rollbook.experience.repeats import repeated
from rollbook.models.decoder import Decoder
from rollbook.models.layout import Tree, pack
from rollbook.models.logprobs import action_logprobs
from rollbook.records import Demonstration, Diverged
from rollbook.records.recipe import Repeats
from rollbook.training.optimizer import Optimizer, Stepped
from rollbook.training.packing import best_fit
from rollbook.training.trees import demonstration_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class SftStep:
    """Mean loss in nats per trained token, how many tokens, how many were left out for repeating, and the optimizer's step.

    `weight_T` is the loss weight of every token of the batch's demonstrations end to end, in the order given, as it was used.
    """

    loss_nats: float
    tokens: int
    repeated: int
    weight_T: Tensor
    stepped: Stepped


def sft_update(decoder: Decoder, optimizer: Optimizer, batch: Sequence[Demonstration], *, dtype: torch.dtype,
               max_tokens: int, where: str, repeats: Repeats | None = None) -> SftStep:
    """One optimizer step on a batch; the mean is over all its policy tokens that `repeats` does not leave out, however it is cut
    into micro-batches."""
    left = [repeated(one, repeats) for one in batch]
    total = sum(span.length for one in batch for span in one.owners if span.owner == "policy") - sum(map(sum, left))
    if total == 0:
        raise Diverged(f"{where} holds no policy token that is trained", why="there is nothing to imitate",
                       fix="check the demonstrations' owners, and what the stage's repeats leave out")
    optimizer.zero()
    loss = 0.0
    used: dict[int, Tensor] = {}
    for places in best_fit([len(one.token_ids) for one in batch], max_tokens):
        part = [batch[at] for at in places]
        trees = [_without(demonstration_tree(batch[at]), left[at]) for at in places]
        used |= {id(one): _weights(tree) / total for one, tree in zip(part, trees, strict=True)}
        layout = pack(trees, window=decoder.architecture.window)
        nll = -action_logprobs(decoder, layout, temperature=1.0, dtype=dtype).logp_T.sum() / total
        loss += float(nll.detach())
        if not math.isfinite(loss):
            raise Diverged(f"the loss of {where} is not finite", got=str(loss), fix="lower the learning rate")
        nll.backward()
    return SftStep(loss_nats=loss, tokens=total, repeated=sum(map(sum, left)), stepped=optimizer.step(where),
                   weight_T=torch.cat([used[id(one)] for one in batch]))


def _without(tree: Tree, left: Sequence[bool]) -> Tree:
    """The tree of one demonstration with these of its tokens, prompt and all, no longer trained."""
    if not any(left):
        return tree
    kept = tuple(act and not out for act, out in zip(tree.actions[0], left[len(tree.prompt):], strict=True))
    return replace(tree, actions=(kept,))


def _weights(tree: Tree) -> Tensor:
    """1.0 for every token that the tree trains, 0.0 for the others."""
    acts = (*(False for _ in tree.prompt), *(act for acts in tree.actions for act in acts))
    return torch.tensor(acts, dtype=torch.float32)
