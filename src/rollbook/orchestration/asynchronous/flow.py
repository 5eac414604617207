"""What generators, verifiers and the learner of one asynchronous stage share: groups on their way, behind one lock.

order -> running (generator) -> finished (bounded) -> judged -> decided (learner)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rollbook.orchestration.asynchronous.board import Board
from rollbook.orchestration.asynchronous.flight import Flight, Order
from rollbook.orchestration.asynchronous.throttle import capacity
from rollbook.records import Dispatch, Task, Trace, Verdict
from rollbook.records.asynchrony import Asynchrony

TICK_S = 0.05        # how long a loop sleeps at most before it looks again, so that a stop or a stall is seen soon


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A group whose attempts all ended, with a verdict each."""

    order: Order
    traces: tuple[Trace, ...]
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """`batch` attempts are trained per version, `per_task` attempts make a group."""

    batch: int
    per_task: int


class Flow:
    """Thread-safe. `issue` records the dispatch of one more group at a task, before its first token; `first` is the version that
    the stage began with, from which throttles count."""

    def __init__(self, settings: Asynchrony, sizes: Sizes, board: Board, *, tasks: Iterator[Task],
                 issue: Callable[[Task, int], Dispatch], first: int):
        self.settings, self.sizes, self.board, self.first = settings, sizes, board, first
        self._tasks, self._issue = tasks, issue
        self._changed = threading.Condition(threading.RLock())
        self._flight = Flight()
        self._again: deque[Task] = deque()
        self._finished: deque[Judged] = deque()          # judged when their verdicts are there
        self._judged: dict[str, Judged] = {}
        self._withdrawn: set[str] = set()
        self._version = first
        self._closed = False

    # the generator

    def orders(self) -> list[Order]:
        """New groups, as many as the throttle and the queue of finished ones allow now."""
        with self._changed:
            started: list[Order] = []
            while self._room() >= self.sizes.per_task:
                task = self._again.popleft() if self._again else next(self._tasks)
                order = Order(dispatch=self._issue(task, self.sizes.per_task), task=task, version=self._version)
                self._flight.start(order)
                started.append(order)
            return started

    def why_none(self) -> str:
        """What the generator waits for when there is nothing to do."""
        with self._changed:
            if len(self._finished) >= self.settings.queue:
                return f"room among the {self.settings.queue} finished groups (a verifier takes them)"
            counts = self._flight.counts(self._version - self.first)
            return f"the throttle {type(self.settings.throttle).__name__} (a publication or a decision opens it): {counts}"

    def ended(self, scope: str, trace: Trace) -> None:
        """An attempt ended; its group is finished with its last one."""
        with self._changed:
            whole = self._flight.end(scope, trace)
            if whole is not None:
                order = next(one for one in self._flight.waiting() if one.scope == scope)
                self._finished.append(Judged(order=order, traces=whole, verdicts=()))
                self._changed.notify_all()

    def withdrawals(self) -> list[Order]:
        """Running groups whose attempts are to be cancelled, each told once."""
        with self._changed:
            found = [order for order in self._flight.running() if order.scope in self._withdrawn]
            self._withdrawn -= {order.scope for order in found}
            return found

    # the verifier

    def next_finished(self) -> Judged | None:
        """The oldest finished group without verdicts; None once the flow is closed and none is left."""
        with self._changed:
            while not self._finished:
                if self.board.down or (self._closed and not self._flight.running()):
                    return None
                self.board.waits("verifier", "a finished group (a generator ends them)")
                self._changed.wait(TICK_S)
            self._changed.notify_all()
            return self._finished.popleft()

    def judged(self, group: Judged, verdicts: Sequence[Verdict]) -> None:
        """The group's verdicts are there."""
        with self._changed:
            self._judged[group.order.scope] = Judged(order=group.order, traces=group.traces, verdicts=tuple(verdicts))
            self.board.moved("verifier")
            self._changed.notify_all()

    # the learner

    def ready(self) -> list[Judged]:
        """Judged groups that are not decided, in the order they were issued."""
        with self._changed:
            return [self._judged[order.scope] for order in sorted(self._flight.waiting(), key=lambda one: one.scope)
                    if order.scope in self._judged]

    def unjudged_before(self, version: int) -> list[Order]:
        """Groups issued under an older version than this that are running or not judged."""
        with self._changed:
            waiting = [order for order in self._flight.waiting() if order.scope not in self._judged]
            return [order for order in (*self._flight.running(), *waiting) if order.version < version]

    def decided(self, group: Judged, *, accepted: int) -> None:
        """The learner takes the group out for good: `accepted` of its attempts are trained."""
        with self._changed:
            self._flight.settle(group.order.scope, accepted=accepted)
            del self._judged[group.order.scope]
            self._changed.notify_all()

    def again(self, task: Task) -> None:
        """The task is issued once more, before any new one."""
        with self._changed:
            self._again.append(task)

    def withdraw(self, orders: Sequence[Order]) -> None:
        """These groups are cancelled by the generator as soon as it looks."""
        with self._changed:
            self._withdrawn |= {order.scope for order in orders}

    def published(self, version: int) -> None:
        """A new version may be sampled from."""
        with self._changed:
            self._version = version
            self._changed.notify_all()

    def wait(self) -> None:
        """Until something changed, a moment at most."""
        with self._changed:
            self._changed.wait(TICK_S)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Nothing is issued, ended or decided while this is held: for a state that is saved whole."""
        with self._changed:
            yield

    def close(self) -> list[Order]:
        """Nothing new is issued; everything that runs is withdrawn. The groups that are still under way."""
        with self._changed:
            self._closed = True
            running = self._flight.running()
            self.withdraw(running)
            self._changed.notify_all()
            return running

    @property
    def exhausted(self) -> bool:
        """Whether nothing more can come before a publication: nothing is under way or unjudged, and the throttle is shut."""
        with self._changed:
            unjudged = any(order.scope not in self._judged for order in self._flight.waiting())
            return not self._flight.running() and not unjudged and self._room() < self.sizes.per_task

    @property
    def over(self) -> bool:
        """Whether it is closed and nothing runs, or a loop has died."""
        with self._changed:
            return self.board.down or (self._closed and not self._flight.running())

    @property
    def open_groups(self) -> int:
        """Groups that are not decided."""
        with self._changed:
            return len(self._flight.running()) + len(self._flight.waiting())

    def missing(self, order: Order) -> tuple[str, ...]:
        """The order's attempts that have not ended; none where it is not running."""
        with self._changed:
            running = {one.scope for one in self._flight.running()}
            return self._flight.missing(order.scope) if order.scope in running else ()

    def restore(self, *, accepted: int, rejected: int) -> None:
        """What a continued stage had counted before it was interrupted."""
        with self._changed:
            self._flight.restore(accepted=accepted, rejected=rejected)

    def _room(self) -> int:
        if self._closed or len(self._finished) >= self.settings.queue:
            return 0
        counts = self._flight.counts(self._version - self.first)
        return capacity(self.settings.throttle, counts, batch=self.sizes.batch, concurrency=self.settings.concurrency)
