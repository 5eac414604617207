"""The hash of a model's weights, equal to that of the models package, for a host's own torch model."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from rollbook.models.hashing import ordered_hash


def weight_hash(tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[str, bool]:
    """The hash in name order (`models.hashing`), and whether every number is finite."""
    held = sorted(((name, tensor.detach()) for name, tensor in tensors), key=lambda item: item[0])
    healthy = all(not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()) for _, tensor in held)
    return ordered_hash((name, tensor.cpu()) for name, tensor in held), healthy
