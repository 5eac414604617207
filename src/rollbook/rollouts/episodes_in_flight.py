"""Episodes in flight: environments make some wait while others decode in one open stream, by weights that may change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rollbook.records import AttemptId, Completion, Dispatch, ModelError, Task, Trace, group_name
from rollbook.rollouts.engines.kinds import AnyStream, Engine
from rollbook.rollouts.engines.stream import OnUpdate
from rollbook.rollouts.engines.turns import Turns
from rollbook.rollouts.environment import EnvironmentRollouts
from rollbook.rollouts.episodes import Playing

IDLE_S = 0.02       # how long nothing is done at most while every episode waits for its environment


class Desk:
    """Where episodes ask for turns: each goes into the stream at once and comes back when it is over.

    consumes: turns (`sample`) · produces: completions · waits for: the stream · unblocked by: `EpisodesInFlight.advance`
    """

    def __init__(self, engine: Engine, stream: AnyStream):
        self.engine, self.stream = engine, stream
        self._asked: dict[str, tuple[Turns, asyncio.Future[Completion]]] = {}

    def join(self) -> None:
        """Episodes need not meet here."""

    def leave(self) -> None:
        """Episodes need not meet here."""

    def become(self, count: int, *, instead_of: int = 1) -> None:
        """Episodes need not meet here."""

    async def sample(self, turns: Turns) -> Completion:
        """The next turn of an attempt. Keys and values of other weights than the engine's are computed again."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        turns.take(self.engine.loaded)
        context = self.engine.ready().architecture.context
        asked = turns.request
        asked = replace(asked, max_tokens=max(1, min(asked.max_tokens, context - len(asked.prompt_ids))))
        self._asked[asked.key] = (turns, future)
        self.stream.follow(asked.key, turns)
        self.stream.submit([asked])
        loop.stop()                                     # whoever runs the loop looks at the stream again
        return await future

    def hand_over(self, done: Sequence[Completion]) -> None:
        """Gives every finished turn to its episode."""
        for completion in done:
            turns, future = self._asked.pop(completion.key)
            turns.said(completion)
            if not future.done():
                future.set_result(completion)

    def of(self, keys: frozenset[str]) -> frozenset[str]:
        """Turns in the stream that belong to these attempts or to what they delegated."""
        return frozenset(asked for asked in self._asked if any(asked == key or asked.startswith(f"{key}/") for key in keys))


@dataclass(frozen=True, slots=True)
class _Open:
    scope: str
    playing: Playing
    trace: asyncio.Task[Trace]


class EpisodesInFlight:
    """Attempts with an environment, by an engine. Used on one thread, whose event loop it runs a moment at a time.

    `rows` decode at a time; a row is laid out for the model's whole context, so memory may allow fewer.
    """

    def __init__(self, rollouts: EnvironmentRollouts, engine: Engine, *, rows: int, on_update: OnUpdate):
        self.rollouts, self.engine = rollouts, engine
        context = rollouts.context
        longest = context - 1
        stream = engine.stream(rows=engine.rows_that_fit(min(rows, engine.max_rows), context, longest), longest_prompt=longest,
                               longest_answer=1, on_update=on_update)
        self._desk = Desk(engine, stream)
        self._loop = asyncio.new_event_loop()
        self._open: dict[AttemptId, _Open] = {}
        self._done: list[AttemptId] = []

    @property
    def busy(self) -> bool:
        return bool(self._open)

    def start(self, dispatch: Dispatch, task: Task, attempts: Sequence[AttemptId]) -> None:
        """Begins these attempts at the task of a dispatch that holds one."""
        harness = self.rollouts.harness(dispatch.envelope or "")
        group = group_name(dispatch.scope, 0, task.id)
        for attempt in attempts:
            if attempt in self._open:
                raise ModelError("an attempt was started twice", got=attempt, why="both would draw the same uniforms")
            playing = Playing(harness=harness, task=task, group=group, seed=self.rollouts.seed_of(group), engine=self.engine,
                              meeting=self._desk, request=self.rollouts.asked(attempt, task, harness))
            self._open[attempt] = _Open(dispatch.scope, playing, self._loop.create_task(playing.play(), name=attempt))
            self._open[attempt].trace.add_done_callback(self._over)

    def advance(self) -> list[tuple[str, Trace]]:
        """One more token for every row that decodes, and whatever environments have answered; waits a moment where all wait."""
        stream = self._desk.stream
        if stream.busy:
            with self.engine.between_tokens:
                done = stream.advance()
            self._desk.hand_over(done)
        self._turn(0.0 if stream.busy else IDLE_S)
        return self._ended()

    def cancel(self, scope: str) -> list[tuple[str, Trace]]:
        """Ends the episodes of a dispatch; each is a trajectory of what had happened, stopped as cancelled."""
        mine = {attempt: one for attempt, one in self._open.items() if one.scope == scope}
        with self.engine.between_tokens:
            cut = self._desk.stream.cancel(self._desk.of(frozenset(mine)))
        self._desk.hand_over(cut)
        self._turn(0.0)
        for one in mine.values():
            if not one.playing.ending:
                one.trace.cancel()
        while any(not one.trace.done() for one in mine.values()):
            self._turn(IDLE_S)
        return self._ended()

    def close(self) -> None:
        """Ends what is under way and the event loop; a second time does nothing."""
        if self._loop.is_closed():
            return
        for scope in {one.scope for one in self._open.values()}:
            self.cancel(scope)
        self._open.clear()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _turn(self, patience_s: float) -> None:
        """Lets the loop run what is ready, or wait so long for something to be."""
        if patience_s and not self._done:
            handle = self._loop.call_later(patience_s, self._loop.stop)
            self._loop.run_forever()
            handle.cancel()
        else:
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()

    def _over(self, playing: asyncio.Task[Trace]) -> None:
        self._done.append(AttemptId(playing.get_name()))
        self._loop.stop()

    def _ended(self) -> list[tuple[str, Trace]]:
        over, self._done = self._done, []
        ended = [self._open.pop(attempt) for attempt in over]
        return [(one.scope, one.trace.result()) for one in ended]
