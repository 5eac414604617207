"""How many attempts may be started: the throttles of published systems under their own names, as pure functions of counts.

A throttle only keeps waste low. What is trained is bounded elsewhere, hard, by the recorded version of every token (`freshness`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from rollbook.records import RecipeError
from rollbook.records.asynchrony import AReaL, AReaLCode, Asynchrony, Magistral, PrimeRl, SkyRl, Throttle, Verl
from rollbook.records.recipe import PolicyGradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Attempts since the stage began, and the current policy version of the stage (0 at its start, +1 per publication).

    `started` = `running` + `waiting` (finished, not consumed) + `accepted` (trained) + `rejected` (ended otherwise). `fresh` are
    those of `running` and `waiting` that began under the current version. All are counted in attempts.
    """

    version: int
    running: int
    waiting: int
    accepted: int
    rejected: int
    fresh: int

    def __post_init__(self) -> None:
        counted = ("version", "running", "waiting", "accepted", "rejected", "fresh")
        negative = [name for name in counted if getattr(self, name) < 0]
        if negative:
            raise RecipeError("attempts are counted from 0", got=f"negative {', '.join(negative)}",
                              why="an attempt was released twice, or its end was counted without its start")

    @property
    def started(self) -> int:
        return self.running + self.waiting + self.accepted + self.rejected


def capacity(throttle: Throttle, counts: Counts, *, batch: int, concurrency: int) -> int:
    """How many attempts may start now (>= 0): at most `concurrency` run at a time; `batch` is attempts trained per version."""
    free = concurrency - counts.running
    return max(0, min(free, _allowed(throttle, counts, batch)))


def first_room(how: Asynchrony, stage: PolicyGradient) -> int:
    """How many attempts may start when the stage begins and nothing is under way: fewer than a group means never."""
    nothing = Counts(version=0, running=0, waiting=0, accepted=0, rejected=0, fresh=0)
    return capacity(how.throttle, nothing, batch=stage.groups * stage.per_task, concurrency=how.concurrency)


def _allowed(throttle: Throttle, counts: Counts, batch: int) -> int:
    outstanding = counts.accepted + counts.waiting + counts.running
    match throttle:
        case AReaL(eta=eta):
            # arXiv 2505.24298 eq. 3: floor((N_r - 1) / B) <= i + eta for the N_r-th attempt, every started one counted
            return (counts.version + eta + 1) * batch - counts.started
        case AReaLCode(eta=eta):
            return (eta + counts.version + 1) * batch - outstanding             # what was rejected gives its place back
        case SkyRl(max_staleness=most):
            return (most + counts.version + 1) * batch - outstanding            # steps are counted from 1 there
        case PrimeRl():
            return batch                                                        # only concurrency and the age bound hold it back
        case Verl(staleness=share):
            stale = counts.running + counts.waiting - counts.fresh
            return int((1 + share) * batch) - stale - counts.fresh
        case Magistral(ratio=ratio):
            return int(ratio * batch) - counts.running - counts.waiting         # n_async / n_batch
        case _:
            assert_never(throttle)
