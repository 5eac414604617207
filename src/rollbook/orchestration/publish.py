"""Publication: new weights get a version, every consumer acknowledges them by hash before it samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from rollbook.ledger import Ledger
from rollbook.models.decoder import Decoder
from rollbook.models.layout import Tree, pack
from rollbook.models.logprobs import action_logprobs
from rollbook.models.weights import published_hash, weight_hash
from rollbook.records import Acknowledgement, Diverged, LedgerError, PolicyVersion, Probe
from rollbook.rollouts.engines.kinds import Engine

PROBE_TOKENS = 8      # of a real prompt: tokens that nobody would write, and a few that all are sure of, show rounding alone


class DecoderSink(Protocol):
    """A consumer of the trained weights; returns the hash of what it samples from once it has them."""

    name: str

    def load(self, decoder: Decoder, version: int) -> str: ...


class Publisher:
    """Owns the numbering of versions and the hash of the weights as they are now. `probe` is a prompt of two tokens or more."""

    def __init__(self, ledger: Ledger, decoder: Decoder, engine: Engine, *, next_index: int, probe: tuple[int, ...]):
        self.ledger, self.decoder, self.engine, self.next_index, self.probe = ledger, decoder, engine, next_index, probe
        self.weights = weight_hash(decoder.named_parameters())
        self.expected = ""
        self.followers: list[DecoderSink] = []      # further consumers, for as long as a stage has them
        self._taken: dict[str, str] = {}

    def rehash(self) -> str:
        """The hash of the master weights after they moved; refuses weights that are not finite."""
        if not bool(torch.isfinite(nn.utils.get_total_norm(list(self.decoder.parameters())))):
            raise Diverged("the weights are not finite after the update", why="a step overflowed",
                           fix="look at the batch kept in the run; lower the learning rate")
        self.weights = weight_hash(self.decoder.named_parameters())
        return self.weights

    def publish(self, stage: str, parent: PolicyVersion | None, window: Sequence[str], *, optimizer: str | None) -> PolicyVersion:
        """A new version of the current weights, loaded, acknowledged and probed; `optimizer` hashes the optimizer's state."""
        self.load(self.next_index)
        version = PolicyVersion(index=self.next_index, stage=stage, weights=self.weights, published=self.expected,
                                parent=parent.id if parent else None, updates=len(window), optimizer=optimizer,
                                window=tuple(window), healthy=True, probe=self._probe(),
                                acknowledged=tuple(Acknowledgement(consumer=name, weights=taken)
                                                   for name, taken in self._taken.items()))
        self.ledger.append(version)
        self.next_index += 1
        return version

    def load(self, index: int) -> str:
        """Gives the weights to every consumer; returns the hash they report once that is exactly what was published."""
        consumers: tuple[DecoderSink, ...] = (self.engine, *self.followers)
        self._taken = {consumer.name: consumer.load(self.decoder, index) for consumer in consumers}
        self.expected = published_hash(self.decoder, self.engine.dtype)
        for name, taken in self._taken.items():
            if taken != self.expected:
                raise LedgerError(f"{name} did not take version {index} as published",
                                  got=f"{taken[:12]} for {self.expected[:12]}",
                                  why="it would sample from other weights than the record says")
        return self.expected

    def _probe(self) -> Probe:
        """The end of a prompt through the engine's decoding path and through the trainer's."""
        ids, given = self.probe, max(1, len(self.probe) - PROBE_TOKENS)
        tree = Tree(prompt=ids[:given], continuations=(ids[given:],), actions=((True,) * (len(ids) - given),))
        layout = pack((tree,), window=self.decoder.architecture.window)
        with torch.no_grad():
            trainer = action_logprobs(self.decoder, layout, temperature=1.0, dtype=self.engine.dtype).logp_T
        return Probe(token_ids=ids, given=given, consumer=self.engine.logprobs(ids, given), trainer=tuple(trainer.tolist()),
                     dtype=str(self.engine.dtype).removeprefix("torch."))
