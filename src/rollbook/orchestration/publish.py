"""Publication: new weights get a version, every consumer acknowledges them by hash before it samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rollbook.ledger import Ledger
from rollbook.models.decoder import Decoder
from rollbook.models.weights import published_hash, weight_hash
from rollbook.records import Diverged, LedgerError, PolicyVersion
from rollbook.rollouts.engines.embedded import EmbeddedEngine


class Publisher:
    """Owns the numbering of versions and the hash of the weights as they are now."""

    def __init__(self, ledger: Ledger, decoder: Decoder, engine: EmbeddedEngine, *, next_index: int):
        self.ledger, self.decoder, self.engine, self.next_index = ledger, decoder, engine, next_index
        self.weights = weight_hash(decoder.named_parameters())

    def rehash(self) -> str:
        """The hash of the master weights after they moved; refuses weights that are not finite."""
        if not all(bool(torch.isfinite(p).all()) for p in self.decoder.parameters()):
            raise Diverged("the weights are not finite after the update", why="a step overflowed",
                           fix="look at the batch kept in the run; lower the learning rate")
        self.weights = weight_hash(self.decoder.named_parameters())
        return self.weights

    def publish(self, stage: str, parent: PolicyVersion | None, window: Sequence[str]) -> PolicyVersion:
        """A new version of the current weights, loaded and acknowledged by the engine."""
        version = PolicyVersion(index=self.next_index, stage=stage, weights=self.weights, parent=parent.id if parent else None,
                                updates=len(window), optimizer=None, window=tuple(window), healthy=True,
                                acknowledged=(self.load(self.next_index),))
        self.ledger.append(version)
        self.next_index += 1
        return version

    def load(self, index: int) -> str:
        """Gives the weights to the engine; returns `name:hash` once the engine holds exactly what was published."""
        taken = self.engine.load(self.decoder, index)
        expected = published_hash(self.decoder, self.engine.dtype)
        if taken != expected:
            raise LedgerError(f"{self.engine.name} did not take version {index} as published",
                              got=f"{taken[:12]} for {expected[:12]}",
                              why="it would sample from other weights than the record says")
        return f"{self.engine.name}:{taken}"
