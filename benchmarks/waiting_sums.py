"""The calculator's sums in an environment that makes every episode wait for real: long tails and all."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass

from rollbook.environments.calculator import Calculator, CalculatorEpisode
from rollbook.records import Observation, Services, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingSums(Calculator):
    """Every episode waits `wait_s` to `spread` times that, log-uniformly, and one in a hundred `tail` times the shortest."""

    wait_s: float = 1.0
    spread: float = 5.0
    tail_share: float = 0.01
    tail: float = 20.0

    def build(self, *, services: Services, seed: int) -> WaitingEpisode:
        return WaitingEpisode(tool=self.tool, shortcut=self.shortcut, waits=self)


_COUNT = iter(range(10**12))


@dataclass(slots=True)
class WaitingEpisode(CalculatorEpisode):
    waits: WaitingSums | None = None

    async def reset(self, task: Task) -> Observation:
        assert self.waits is not None
        drawn = random.Random(f"{task.id}/{next(_COUNT)}")          # how long it takes is no part of what is seen
        share = drawn.random()
        seconds = self.waits.wait_s * (self.waits.tail if share < self.waits.tail_share
                                       else math.exp(drawn.random() * math.log(self.waits.spread)))
        await asyncio.sleep(seconds)
        return await CalculatorEpisode.reset(self, task)
