"""A moving average of the weights in training, kept beside them and published in their place when the stage ends."""

from __future__ import annotations

import copy

import torch

from rollbook.models.decoder import Decoder


class Average:
    """`a <- decay a + (1 - decay) w` after every optimizer step, in fp32, from the weights that the stage begins with.

    Source: InstructGPT, 2203.02155 appendix C (decay 0.992).
    """

    def __init__(self, decoder: Decoder, decay: float):
        self.module, self.decay = copy.deepcopy(decoder).requires_grad_(False), decay

    @torch.no_grad()
    def take(self, decoder: Decoder) -> None:
        """One step's weights into the average."""
        for mean, now in zip(self.module.parameters(), decoder.parameters(), strict=True):
            mean.lerp_(now.detach(), 1 - self.decay)
