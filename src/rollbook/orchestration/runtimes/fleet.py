"""Generators elsewhere as one: who makes which attempt, which weights they hold, what happens when one of them dies.

consumes: dispatches (`start`), publications (`load`) · produces: ended attempts (`advance`) · waits for: its generators ·
unblocked by: any of them, and by the death of one, which is built again and given what it had not finished
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Protocol

from torch import Tensor

from rollbook.models.decoder import Decoder
from rollbook.records import AttemptId, Dispatch, ModelError, RollbookError, Task, Trace

WAIT_S = 0.02           # how long `advance` waits for something to end
LOAD_S = 120.0          # how long a generator may take to acknowledge weights before it counts as dead
DEATHS = 5              # deaths of one generator in a row, without an attempt ended between them, that end the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a generator says: attempts that ended, or the hash of the weights it took."""

    ended: tuple[tuple[str, Trace], ...] = ()
    loaded: tuple[int, str] | None = None


class Remote(Protocol):
    """A generator elsewhere. Its methods return at once; what it has to say goes to the fleet, and so does its death."""

    def load(self, weights: object, version: int) -> None: ...

    def start(self, dispatch: Dispatch, task: Task, attempts: Sequence[AttemptId]) -> None: ...

    def cancel(self, scope: str) -> None: ...

    def close(self) -> None: ...


class Builder(Protocol):
    """Makes generators; `say` takes what the generator tells, `die` is called once when it is gone."""

    name: str

    def build(self, say: Callable[[Told], None], die: Callable[[str], None]) -> Remote: ...

    def share(self, weights: Mapping[str, Tensor], version: int) -> object:
        """Puts weights where every generator can take them; what to hand to `load`."""


@dataclass(slots=True, eq=False)
class _Member:
    """A generator with the attempts it has not ended, and the version it acknowledged."""

    number: int
    remote: Remote | None = None
    life: int = 0
    open: dict[AttemptId, tuple[Dispatch, Task]] = field(default_factory=dict)
    holds: tuple[int, str] | None = None
    deaths: int = 0


class Fleet:
    """Attempts spread over `size` generators, each to the one that has the fewest. Thread-safe."""

    def __init__(self, builder: Builder, size: int):
        self.name = f"{builder.name} x {size}"
        self._builder = builder
        self._changed = threading.Condition(threading.RLock())
        self._members = [_Member(number) for number in range(size)]
        self._ended: SimpleQueue[tuple[str, Trace]] = SimpleQueue()
        self._shared: tuple[object, int] | None = None
        self._failure: RollbookError | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        with self._changed:
            return any(member.open for member in self._members) or not self._ended.empty()

    def load(self, decoder: Decoder, version: int) -> str:
        """Gives weights to every generator and waits until each says what it samples from; they must agree."""
        with self._changed:
            self._shared = (self._builder.share({name: p.detach() for name, p in decoder.named_parameters()}, version), version)
            for member in self._members:
                member.holds = None
                if member.remote is None:
                    self._build(member)
                else:
                    member.remote.load(*self._shared)
            if not self._changed.wait_for(lambda: self._failure is not None or self._agreed(version) is not None, LOAD_S):
                late = [member.number for member in self._members if member.holds is None or member.holds[0] != version]
                raise ModelError(f"generators {late} did not acknowledge version {version}", got=f"nothing within {LOAD_S:g} s",
                                 why="what they sample from is not known, so nothing they say could be trained on")
            self._check()
            return str(self._agreed(version))

    def start(self, dispatch: Dispatch, task: Task, attempts: Sequence[AttemptId]) -> None:
        """Begins these attempts on the generator that has the fewest."""
        with self._changed:
            member = min(self._members, key=lambda one: (len(one.open), one.number))
            member.open |= dict.fromkeys(attempts, (dispatch, task))
            if member.remote is not None:
                member.remote.start(dispatch, task, attempts)

    def advance(self) -> list[tuple[str, Trace]]:
        """What ended since the last call; waits a moment where nothing did."""
        self._check()
        found: list[tuple[str, Trace]] = []
        try:
            found.append(self._ended.get(timeout=WAIT_S))
            while True:
                found.append(self._ended.get_nowait())
        except Empty:
            return found

    def cancel(self, scope: str) -> list[tuple[str, Trace]]:
        """Ends the dispatch's attempts; their trajectories come with a later `advance`."""
        with self._changed:
            for member in self._members:
                if member.remote is not None and any(dispatch.scope == scope for dispatch, _ in member.open.values()):
                    member.remote.cancel(scope)
        return []

    def close(self) -> None:
        """Ends every generator; a second time does nothing."""
        with self._changed:
            self._closed = True
            remotes = [member.remote for member in self._members if member.remote is not None]
            for member in self._members:
                member.remote, member.open = None, {}
        for remote in remotes:
            remote.close()

    def _agreed(self, version: int) -> str | None:
        """The hash that every generator reports for this version; None while one has not."""
        held = [member.holds for member in self._members]
        if any(one is None or one[0] != version for one in held):
            return None
        found = {one[1] for one in held if one is not None}
        if len(found) > 1:
            raise ModelError(f"generators took different weights as version {version}", got=", ".join(sorted(found)),
                             why="one of them would sample from other weights than the record says")
        return found.pop()

    def _build(self, member: _Member) -> None:
        """A generator in the member's place, with the present weights and what it had not finished."""
        member.life += 1
        life = member.life
        member.remote = self._builder.build(lambda told: self._said(member, life, told),
                                            lambda why: self._died(member, life, why))
        if self._shared is not None:
            member.remote.load(*self._shared)
        again: dict[str, tuple[Dispatch, Task, list[AttemptId]]] = {}
        for attempt, (dispatch, task) in member.open.items():
            again.setdefault(dispatch.scope, (dispatch, task, []))[2].append(attempt)
        for dispatch, task, attempts in again.values():
            member.remote.start(dispatch, task, attempts)

    def _said(self, member: _Member, life: int, told: Told) -> None:
        with self._changed:
            if life != member.life or self._closed:
                return                                      # words of one that was given up
            if told.loaded is not None:
                member.holds = told.loaded
            for scope, trace in told.ended:
                if member.open.pop(trace.attempt, None) is not None:
                    self._ended.put((scope, trace))
                    member.deaths = 0
            self._changed.notify_all()

    def _died(self, member: _Member, life: int, why: str) -> None:
        with self._changed:
            if life != member.life or self._closed:
                return
            member.deaths += 1
            if member.deaths > DEATHS:
                self._failure = ModelError(f"generator {member.number} died {member.deaths} times without ending an attempt",
                                           got=why, why="building it again does not help",
                                           fix="look at its last words above; try asynchrony.runtime=threads")
            else:
                self._build(member)
            self._changed.notify_all()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
