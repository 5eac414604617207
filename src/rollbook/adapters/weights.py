"""The hash of a model's weights, equal to that of the models package, for a host's own torch model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from blake3 import blake3

LEAF = 1 << 22     # bytes


def weight_hash(tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[str, bool]:
    """BLAKE3 over names, shapes, dtypes and the hash of every `LEAF` bytes, in name order, and whether every number is finite."""
    state, healthy = blake3(), True
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        flat = tensor.detach().cpu().contiguous()
        healthy = healthy and (not flat.is_floating_point() or bool(torch.isfinite(flat).all()))
        state.update(f"{name} {flat.dtype} {tuple(flat.shape)}\n".encode())
        held = flat.reshape(-1).view(torch.uint8).numpy().data
        for at in range(0, max(1, len(held)), LEAF):
            state.update(blake3(held[at:at + LEAF], max_threads=torch.get_num_threads()).digest())
    return state.hexdigest(), healthy
