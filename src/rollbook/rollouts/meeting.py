"""Where episodes meet the engine: turns that wait are sampled together, however many episodes there are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from rollbook.records import Completion, Request, Sampler


class OpenTurns(Protocol):
    """An attempt whose earlier tokens an engine may keep; see `rollouts.engines.turns.Turns`."""

    opened: Request
    token_ids: tuple[int, ...]
    drawn: int

    def append(self, token_ids: Sequence[int]) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class TurnSampler(Protocol):
    """An engine that continues attempts without computing their beginning again."""

    def open(self, request: Request) -> OpenTurns: ...

    def sample_turns(self, several: Sequence[OpenTurns]) -> list[Completion]: ...


class PlainTurns:
    """An attempt on an engine that keeps nothing: every turn is a request of its own, named by how much was drawn before."""

    def __init__(self, request: Request):
        self.opened, self.token_ids, self.drawn = request, request.prompt_ids, 0

    @property
    def request(self) -> Request:
        return replace(self.opened, key=f"{self.opened.key}@{self.drawn}", prompt_ids=self.token_ids)

    def append(self, token_ids: Sequence[int]) -> None:
        self.token_ids = (*self.token_ids, *token_ids)

    def said(self, completion: Completion) -> None:
        self.token_ids = (*self.token_ids, *completion.token_ids)
        self.drawn += len(completion.token_ids)

    def close(self) -> None:
        pass


class PlainSampler:
    """Turns on a sampler of single requests."""

    def __init__(self, sampler: Sampler):
        self.sampler = sampler

    def open(self, request: Request) -> PlainTurns:
        return PlainTurns(request)

    def sample_turns(self, several: Sequence[PlainTurns]) -> list[Completion]:
        done = self.sampler.sample([turns.request for turns in several])
        for turns, completion in zip(several, done, strict=True):
            turns.said(completion)
        return done


def turn_sampler(sampler: Sampler) -> TurnSampler:
    """The sampler itself where it keeps turns open, else one that asks it anew for each turn."""
    return sampler if isinstance(sampler, TurnSampler) else PlainSampler(sampler)      # type: ignore[return-value]


class Meeting:
    """Turns of `present` episodes, sampled together once all of them wait.

    In lockstep what is sampled together depends on the episodes alone, not on how fast their tools are, so that a run can be made
    again bit for bit. Without it, whatever waits when nothing else can go on is sampled.

    consumes: turns (`sample`) · produces: completions · waits for: all present episodes, or one turn of the loop
    """

    def __init__(self, engine: TurnSampler, *, lockstep: bool):
        self.engine, self.lockstep = engine, lockstep
        self.present = 0
        self.largest = 0
        self._waiting: list[tuple[OpenTurns, asyncio.Future[Completion]]] = []
        self._due = False

    def join(self) -> None:
        """One more episode samples here."""
        self.present += 1

    def leave(self) -> None:
        """An episode samples no more, or waits for something else than a turn."""
        self.present -= 1
        self._wake()

    def become(self, count: int, *, instead_of: int = 1) -> None:
        """So many sample here instead of so many others."""
        self.present += count - instead_of
        self._wake()

    async def sample(self, turns: OpenTurns) -> Completion:
        """The next turn of an attempt."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((turns, future))
        self._wake()
        return await future

    def _wake(self) -> None:
        complete = len(self._waiting) >= self.present or not self.lockstep
        if self._waiting and complete and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._sample)

    def _sample(self) -> None:
        """Samples for all that wait, in the order of their names."""
        self._due = False
        if self.lockstep and len(self._waiting) < self.present:
            return                                              # another came in between; its own wait wakes us
        waiting = sorted(self._waiting, key=lambda one: one[0].opened.key)
        self._waiting = []
        waiting = [(turns, future) for turns, future in waiting if not future.done()]
        if not waiting:
            return
        self.largest = max(self.largest, len(waiting))
        try:
            done = self.engine.sample_turns([turns for turns, _ in waiting])
        except BaseException as error:
            for _, future in waiting:
                future.set_exception(error)
            return
        for (_, future), completion in zip(waiting, done, strict=True):
            future.set_result(completion)
