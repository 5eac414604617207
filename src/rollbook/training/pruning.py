"""Pruning without training: some layers are left out, and of each feed-forward the neurons that weigh least.

A neuron j of a feed-forward is a row of gate and up and a column of down; it weighs |gate_j| |up_j| |down_j|.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rollbook.models.shape import LAYER
from rollbook.records import RecipeError

GATE, UP, DOWN = (f"mlp.{name}.weight" for name in ("gate_proj", "up_proj", "down_proj"))


def pruned_weights(tensors: Mapping[str, Tensor], *, layers: Sequence[int], intermediate: int | None) -> dict[str, Tensor]:
    """The weights of the kept layers, numbered anew, with `intermediate` neurons of each feed-forward (None: all of them).

    Neurons keep their order; of equal ones the earlier stay. Refuses layers and more neurons than the model has,
    and neurons of a mixture of experts.
    """
    held = sorted({int(found[1]) for name in tensors if (found := LAYER.match(name))})
    if not layers or list(layers) != sorted(set(layers)) or not set(layers) <= set(held):
        raise RecipeError("pruning keeps layers that the model has, each once and in their order", got=str(list(layers)),
                          why=f"it has layers 0 to {len(held) - 1}", fix="name some of them, rising")
    made = {name: value for name, value in tensors.items() if not LAYER.match(name)}
    for new, old in enumerate(layers):
        start = f"model.layers.{old}."
        own = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
        made |= {f"model.layers.{new}.{name}": value for name, value in _narrowed(own, intermediate).items()}
    return made


def _narrowed(own: Mapping[str, Tensor], intermediate: int | None) -> dict[str, Tensor]:
    if intermediate is None:
        return dict(own)
    if GATE not in own:
        raise RecipeError("pruning of neurons needs plain feed-forwards", got="a mixture of experts",
                          why="every expert has neurons of its own", fix="leave out intermediate")
    gate, up, down = own[GATE], own[UP], own[DOWN]
    if not 1 <= intermediate <= gate.shape[0]:
        raise RecipeError(f"pruning keeps 1 to {gate.shape[0]} neurons of a feed-forward", got=str(intermediate))
    weigh = gate.double().norm(dim=1) * up.double().norm(dim=1) * down.double().norm(dim=0)
    kept = torch.sort(weigh, descending=True, stable=True).indices[:intermediate].sort().values
    return {**own, GATE: gate[kept].contiguous(), UP: up[kept].contiguous(), DOWN: down[:, kept].contiguous()}
