"""Weights of fewer layers or narrower feed-forwards in a decoder: it takes the shape that the weights have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from rollbook.models.decoder import Block, Decoder
from rollbook.models.weights import load_into

LAYER = re.compile(r"model\.layers\.(\d+)\.")
NEURONS = "model.layers.0.mlp.gate_proj.weight"


def load_shaped(decoder: Decoder, tensors: Mapping[str, Tensor]) -> None:
    """Copies tensors into the decoder, whose layers are made anew where they are others in number or width."""
    reshape(decoder, tensors)
    load_into(decoder, tensors)


def reshape(decoder: Decoder, tensors: Mapping[str, Tensor]) -> None:
    """As many layers, as wide, as the tensors have; nothing where the decoder is so already, or transformers computes it."""
    if type(decoder) is not Decoder:
        return
    old = decoder.architecture
    layers = len({found[1] for name in tensors if (found := LAYER.match(name))})
    width = tensors[NEURONS].shape[0] if NEURONS in tensors else old.intermediate
    if layers and (layers, width) != (old.layers, old.intermediate):
        decoder.architecture = new = replace(old, layers=layers, intermediate=width)
        decoder.model.layers = nn.ModuleList(Block(new, index) for index in range(layers)).to(decoder.device)
