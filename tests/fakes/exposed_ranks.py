"""A rank that a test may look into and hurt."""

import os

import torch

from rollbook.training.sharded import Rank


class Exposed(Rank):
    def passes(self, packed, objective):
        self.optimizer.zero()
        return self._passes(packed, objective, "here")[1].loss

    def descend(self, rate):
        """One step of plain gradient descent, each rank on its own rows."""
        with torch.no_grad():
            for parameter in self.decoder.parameters():
                parameter -= rate * parameter.grad

    def rows(self):
        return {name: tuple(p.to_local().shape) for name, p in self.decoder.named_parameters()}

    def die(self, rank):
        if self.rank == rank:
            os._exit(9)
        return self.rank


def exposed(spec, rank, size):
    return Exposed(spec, rank, size)
