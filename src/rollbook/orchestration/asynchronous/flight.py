"""Groups between their dispatch and their end: pure bookkeeping, in which nothing ends twice and nothing is forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rollbook.orchestration.asynchronous.throttle import Counts
from rollbook.records import AttemptId, Dispatch, RecordError, Task, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One group as it was issued: `dispatch` names its attempts at `task`; `version` is the policy's when it was issued."""

    dispatch: Dispatch
    task: Task
    version: int

    @property
    def scope(self) -> str:
        return self.dispatch.scope

    @property
    def attempts(self) -> tuple[AttemptId, ...]:
        return tuple(attempt for attempt, _ in self.dispatch.attempts())


@dataclass(slots=True)
class _Open:
    order: Order
    ended: dict[AttemptId, Trace] = field(default_factory=dict)


class Flight:
    """The groups of one policy stage that have not been settled. Not thread-safe: its owner locks.

    An order runs until all its attempts have a trajectory, waits until the learner settles it, and is then counted for good.
    """

    def __init__(self) -> None:
        self._running: dict[str, _Open] = {}
        self._waiting: dict[str, Order] = {}
        self._settled: set[str] = set()
        self._accepted = 0
        self._rejected = 0

    def start(self, order: Order) -> None:
        """The order is issued; RecordError where its scope was issued before."""
        if order.scope in self._running or order.scope in self._waiting or order.scope in self._settled:
            raise RecordError("a group was issued twice", got=order.scope, why="its attempts would carry the same names")
        self._running[order.scope] = _Open(order)

    def end(self, scope: str, trace: Trace) -> tuple[Trace, ...] | None:
        """An attempt of the order ended; all its trajectories in the order they were issued once it was the last, else None.

        A trajectory that is told a second time (a worker died after it had delivered) changes nothing.
        """
        held = self._running.get(scope)
        if held is None:
            if scope in self._waiting or scope in self._settled:
                return None
            raise RecordError("a trajectory came back that nobody asked for", got=trace.attempt,
                              why="it would be trained on without ever having been issued")
        if trace.attempt not in held.order.attempts:
            raise RecordError("a trajectory is of another group than it says", got=f"{trace.attempt} in {scope}")
        held.ended.setdefault(trace.attempt, trace)
        if len(held.ended) < len(held.order.attempts):
            return None
        del self._running[scope]
        self._waiting[scope] = held.order
        return tuple(held.ended[attempt] for attempt in held.order.attempts)

    def settle(self, scope: str, *, accepted: int) -> None:
        """The learner decided on a group that waited: `accepted` of its attempts are trained, the rest are not."""
        order = self._waiting.pop(scope, None)
        if order is None:
            raise RecordError("a group was settled that does not wait to be", got=scope, why="it would be trained twice")
        self._settled.add(scope)
        self._accepted += accepted
        self._rejected += len(order.attempts) - accepted

    def missing(self, scope: str) -> tuple[AttemptId, ...]:
        """The attempts of a running order that have not ended."""
        held = self._running[scope]
        return tuple(attempt for attempt in held.order.attempts if attempt not in held.ended)

    def running(self, *, before: int | None = None) -> list[Order]:
        """Orders with an attempt under way, oldest first; with `before`, those issued under an earlier version than that."""
        return [held.order for held in self._running.values() if before is None or held.order.version < before]

    def waiting(self) -> list[Order]:
        """Orders all of whose attempts ended and that are not settled, oldest first."""
        return list(self._waiting.values())

    def counts(self, version: int) -> Counts:
        """The state of all attempts, for the throttle. `version` counts from the stage's first."""
        under_way = sum(len(held.order.attempts) - len(held.ended) for held in self._running.values())
        ended = sum(len(held.ended) for held in self._running.values())
        fresh = sum(len(order.attempts) for order in self._orders() if order.version == version)
        return Counts(version=version, running=under_way, accepted=self._accepted, rejected=self._rejected, fresh=fresh,
                      waiting=ended + sum(len(order.attempts) for order in self._waiting.values()))

    def restore(self, *, accepted: int, rejected: int) -> None:
        """Counts of a stage that is continued: without them a throttle would let it run ahead by all that came before."""
        self._accepted, self._rejected = accepted, rejected

    def _orders(self) -> Iterable[Order]:
        yield from (held.order for held in self._running.values())
        yield from self._waiting.values()
