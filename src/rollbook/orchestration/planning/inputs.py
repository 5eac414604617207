"""What a simulation is given: the load of the tasks, the speed of the machines, the rules of the loop. Seconds, tokens, bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rollbook.records import RecipeError
from rollbook.records.asynchrony import Asynchrony


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A quantity above 0: log-normal around `median` with `sigma`, at most `cap`; a share `tail` is `tail_factor` times as large.

    Example: Spread(median=2.0, sigma=0.4, tail=0.01, tail_factor=20.0)
    """

    median: float
    sigma: float = 0.0
    tail: float = 0.0
    tail_factor: float = 1.0
    cap: float = math.inf

    def __post_init__(self) -> None:
        sound = self.median >= 0 and self.sigma >= 0 and 0 <= self.tail <= 1 and self.tail_factor >= 1 and self.cap > 0
        if not sound:
            raise RecipeError("a spread needs median >= 0, sigma >= 0, a tail share in 0..1, a tail factor >= 1 a cap above 0",
                              got=str(self), why="it describes times and lengths")

    def draw(self, random: np.random.Generator) -> float:
        value = self.median * math.exp(min(700.0, self.sigma * random.standard_normal())) if self.sigma else self.median
        if self.tail and random.random() < self.tail:
            value *= self.tail_factor
        return min(value, self.cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One attempt: `turns` times an answer is sampled and the environment makes it wait, then it is verified.

    `informative` is the share of groups that carry a signal and are trained on.
    """

    prompt_tokens: float
    answer_tokens: Spread
    turns: int
    wait_s: Spread
    verify_s: Spread
    informative: float

    def __post_init__(self) -> None:
        if self.turns < 1 or not self.prompt_tokens >= 0 or not 0 < self.informative <= 1:
            raise RecipeError("an attempt needs at least one turn, a prompt of 0 tokens or more, and a share of informative "
                              "groups above 0 and at most 1", got=f"{self.turns}, {self.prompt_tokens}, {self.informative}",
                              why="without a turn nothing is sampled, and without informative groups no batch comes together",
                              fix="--given turns=1 --given informative=0.5, as measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """A generator decodes all its rows in `pass_s + rows * row_s` seconds a token, reads a prompt in `prefill_token_s` a token.

    Its rows are bound by `kv_bytes` over what the longest attempt keeps at `position_bytes` a position. The trainers share an
    update: `update_s` of it whatever its size, `update_token_s` a token over `trainers`. A publication takes `weight_bytes` over
    `broadcast_bytes_s`, during which generators stand still.
    """

    generators: int
    pass_s: float
    row_s: float
    prefill_token_s: float
    kv_bytes: float
    position_bytes: float
    verifiers: int
    trainers: int
    update_s: float
    update_token_s: float
    weight_bytes: float
    broadcast_bytes_s: float

    def __post_init__(self) -> None:
        if min(self.generators, self.verifiers, self.trainers) < 1:
            raise RecipeError("a plan needs at least one generator, one verifier and one trainer",
                              got=f"{self.generators}, {self.verifiers}, {self.trainers}", why="nothing would ever be trained")
        negative = [name for name in ("pass_s", "row_s", "prefill_token_s", "kv_bytes", "position_bytes", "update_s",
                                      "update_token_s", "weight_bytes") if not getattr(self, name) >= 0]
        if negative:
            raise RecipeError("times and sizes of machines must not be negative",
                              got=", ".join(f"{name} {getattr(self, name):g}" for name in negative),
                              why="simulated time only goes forward",
                              fix="--given NAME=VALUE as measured; 0 for what costs nothing")
        if not self.pass_s + self.row_s > 0 or not self.broadcast_bytes_s > 0:
            raise RecipeError("a decoding pass and the broadcast rate must be above 0",
                              got=f"{self.pass_s} + {self.row_s} s, {self.broadcast_bytes_s} bytes/s")

    def rows(self, load: Load) -> int:
        """How many attempts a generator can hold; refuses one that none can."""
        positions = load.prompt_tokens + load.turns * min(load.answer_tokens.cap, 4 * load.answer_tokens.median)
        rows = int(self.kv_bytes / max(1.0, positions * self.position_bytes))
        if rows < 1:
            raise RecipeError("a generator's memory does not hold the keys and values of one attempt",
                              got=f"{self.kv_bytes:.3g} bytes for {positions:.0f} positions of {self.position_bytes:.3g}",
                              why="not one attempt could be finished", fix="more memory, shorter answers, fewer turns")
        return rows

    @property
    def publish_s(self) -> float:
        return self.weight_bytes / self.broadcast_bytes_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The loop: a batch of `groups` informative groups of `per_task` attempts, no token older than `max_policy_age` versions."""

    groups: int
    per_task: int
    max_policy_age: int
    asynchrony: Asynchrony
