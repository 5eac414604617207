"""What a recipe says about training while sampling: how far ahead generators may run, and what becomes of what is late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollbook.records.errors import RecipeError


@dataclass(frozen=True, slots=True, kw_only=True)
class AReaL:
    """AReaL, arXiv 2505.24298 equation 3: attempt number N starts once floor((N-1)/B) <= version + eta."""

    eta: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AReaLCode:
    """AReaL as published in code: accepted + running stay within (eta + version + 1) * B; what was rejected is not counted."""

    eta: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyRl:
    """SkyRL: accepted + running stay within (max_staleness + step) * B with steps counted from 1."""

    max_staleness: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimeRl:
    """prime-rl: no throttle but concurrency; groups that became too old are dropped at consumption (`max_policy_age`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verl:
    """verl's fully asynchronous trainer: at most (1 + staleness) * B attempts between two publications, unused ones included."""

    staleness: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Magistral:
    """Magistral, arXiv 2506.10910: n_async / n_batch, attempts in flight or finished and not trained, over the batch."""

    ratio: float


Throttle = AReaL | AReaLCode | SkyRl | PrimeRl | Verl | Magistral


@dataclass(frozen=True, slots=True, kw_only=True)
class Asynchrony:
    """How a policy stage samples while it trains.

    `concurrency` attempts run at a time. `on_update`: keys and values of a sequence in flight are kept or computed again when the
    weights change. `late` is what becomes of an attempt that would be older than `max_policy_age` when it is trained on: the
    learner waits for it before it publishes, it is given up and issued again under the new policy, or it is dropped.
    `runtime` says where the `generators` are: one on a thread of the learner's process, or several in processes of this machine
    or as actors of a Ray cluster. `queue` groups at most stand finished before the verifiers; `stall_s` without progress anywhere
    ends the run with an error that says what waits for what.
    """

    throttle: Throttle
    concurrency: int
    on_update: Literal["keep", "recompute"]
    late: Literal["wait", "redispatch", "drop"]
    queue: int
    stall_s: float
    runtime: Literal["threads", "processes", "ray"] = "threads"
    generators: int = 1

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.queue < 1 or not self.stall_s > 0:
            raise RecipeError("asynchrony.concurrency and queue must be at least 1 and stall_s above 0",
                              got=f"{self.concurrency}, {self.queue}, {self.stall_s}",
                              why="without room nothing could ever start, and no wait could ever be called a stall")
        if self.generators < 1 or (self.runtime == "threads" and self.generators != 1):
            raise RecipeError("asynchrony.generators must be 1 on threads, and at least 1 elsewhere", got=str(self.generators),
                              why="threads of one process share one engine", fix="asynchrony.runtime: processes, or ray")
        how = self.throttle
        number = getattr(how, "eta", getattr(how, "max_staleness", getattr(how, "staleness", getattr(how, "ratio", 0))))
        if not number >= 0 or (isinstance(how, Magistral) and how.ratio == 0):
            raise RecipeError("a throttle's number must not be negative, a ratio not 0", got=str(number),
                              why="no attempt could ever start")
