"""Which trajectories an expensive check looks at: the first ones, and of the others a share that their ids decide."""

from __future__ import annotations


class Sample:
    """Takes the first `whole` and then one in `every`; the same ones whenever and wherever the run is read."""

    def __init__(self, *, whole: int, every: int):
        self.whole, self.every = whole, every
        self.seen = self.taken = 0

    def takes(self, identity: str) -> bool:
        """Whether this trajectory, by its content id, is looked at."""
        self.seen += 1
        takes = self.seen <= self.whole or int(identity[-8:], 16) % self.every == 0
        self.taken += takes
        return takes

    @property
    def share(self) -> str:
        """For a note, e.g. `3100 of 120000`, or `all 500`."""
        return f"all {self.seen}" if self.taken == self.seen else f"{self.taken} of {self.seen}"
