"""How a policy is sampled, as a recipe writes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How the policy is sampled; `top_k` 0 and `min_p` 0.0 are off."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
