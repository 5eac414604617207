"""Optimizers as a recipe writes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rollbook.records.codec import SPARSE


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """LoRA (2106.09685): a matrix W of the start moves as W + alpha / rank * B A, with A of `rank` rows drawn by `seed` and B
    zero at the start; AdamW trains A and B. `targets` are patterns of matrices' names (`*` any characters).

    Example: Lora(rank=8, alpha=16.0, targets=("*_proj.weight",), seed=1)
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Muon:
    """Muon for the matrices of the layers, at its own learning rate and decay; AdamW for embeddings, heads and norms."""

    learning_rate: float
    momentum: float
    weight_decay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW with linear warm-up over `warmup_steps` optimizer steps, then constant or cosine to zero.

    Parameters whose name one of the patterns `frozen` matches (`*` any characters) never move. With `lora` only the factors of
    low-rank differences to the matrices that it names are trained, and nothing else moves.
    """

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    warmup_steps: int
    schedule: Literal["constant", "cosine"]
    max_grad_norm: float
    frozen: tuple[str, ...] = ()
    muon: Muon | None = None
    lora: Lora | None = field(default=None, metadata=SPARSE)
