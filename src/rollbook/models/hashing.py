"""The hash of named tensors. Imports torch and BLAKE3 alone: a server that samples for a run computes it too."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from blake3 import blake3
from torch import Tensor

LEAF = 1 << 22     # bytes that one thread hashes at a time


def weight_hash(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """BLAKE3 over names, shapes, dtypes and the hash of every `LEAF` bytes, in name order; the same on any number of threads."""
    return ordered_hash(sorted(tensors, key=lambda item: item[0]))


def ordered_hash(ordered: Iterable[tuple[str, Tensor]]) -> str:
    """The same over tensors that come in name order.

    Leaves are hashed on as many threads as torch has while the next tensor is made.
    """
    parts: list[bytes | Future[bytes]] = []
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for name, tensor in ordered:
            flat = tensor.detach().cpu().contiguous()
            parts.append(f"{name} {flat.dtype} {tuple(flat.shape)}\n".encode())
            held = flat.view(-1).view(torch.uint8).numpy().data
            if len(held) < LEAF // 16:
                parts.append(_leaf(held))
            else:
                parts += (pool.submit(_leaf, held[at:at + LEAF]) for at in range(0, len(held), LEAF))
        state = blake3()
        for part in parts:
            state.update(part if isinstance(part, bytes) else part.result())
    return state.hexdigest()


def _leaf(held: memoryview) -> bytes:
    return blake3(held).digest()
