"""The hash of a model's weights, equal to that of the models package, for a host's own torch model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from blake3 import blake3


def weight_hash(tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[str, bool]:
    """BLAKE3 over names, shapes, dtypes and bytes, in name order, and whether every number is finite."""
    state, healthy = blake3(max_threads=torch.get_num_threads()), True
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        flat = tensor.detach().cpu().contiguous()
        healthy = healthy and (not flat.is_floating_point() or bool(torch.isfinite(flat).all()))
        state.update(f"{name} {flat.dtype} {tuple(flat.shape)}\n".encode())
        state.update(flat.reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest(), healthy
