"""Single-turn attempts in an open stream: started at any time, advanced token by token, by weights that may change meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.records import AttemptId, Completion, Dispatch, Request, Task, Trace, group_name
from rollbook.rollouts.engines.kinds import AnyStream, Engine
from rollbook.rollouts.engines.stream import OnUpdate
from rollbook.rollouts.solve import Rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    scope: str
    task: Task
    group: str
    envelope: str
    request: Request


class InFlight:
    """Attempts being sampled by an engine. Weights come in between two tokens, under the engine's lock.

    `rows` decode at a time, the others wait; `longest_prompt` and `max_tokens` lay out the rows.
    """

    def __init__(self, rollouts: Rollouts, engine: Engine, *, rows: int, longest_prompt: int, on_update: OnUpdate):
        self.rollouts, self.engine = rollouts, engine
        self._stream: AnyStream | None = engine.stream(rows=min(rows, engine.max_rows), longest_prompt=longest_prompt,
                                                    longest_answer=rollouts.max_tokens, on_update=on_update)
        self._asked: dict[str, _Asked] = {}

    @property
    def busy(self) -> bool:
        return bool(self._asked)

    def start(self, dispatch: Dispatch, task: Task, attempts: Sequence[AttemptId]) -> None:
        """Begins these attempts at the task of a dispatch that holds one."""
        prompt = self.rollouts.tokenizer.prompt(task.prompt)
        group = group_name(dispatch.scope, 0, task.id)
        new = {attempt: _Asked(scope=dispatch.scope, task=task, group=group, envelope=dispatch.envelope or "",
                               request=self.rollouts.request(attempt, prompt)) for attempt in attempts}
        self._asked |= new
        self._open.submit([one.request for one in new.values()])

    def advance(self) -> list[tuple[str, Trace]]:
        """One more token for every row; what ended, each with the scope of its dispatch."""
        with self.engine.between_tokens:
            done = self._open.advance()
        return self._ended(done)

    def cancel(self, scope: str) -> list[tuple[str, Trace]]:
        """Ends what is under way of a dispatch; what was sampled comes back as cancelled."""
        keys = frozenset(key for key, one in self._asked.items() if one.scope == scope)
        with self.engine.between_tokens:
            done = self._open.cancel(keys)
        return self._ended(done)

    def close(self) -> None:
        """Gives the rows back."""
        self._stream = None
        self._asked.clear()

    @property
    def _open(self) -> AnyStream:
        assert self._stream is not None
        return self._stream

    def _ended(self, done: Sequence[Completion]) -> list[tuple[str, Trace]]:
        asked = [(self._asked.pop(completion.key), completion) for completion in done]
        return [(one.scope, self.rollouts.trace(one.task.id, one.group, (one.request, completion), one.envelope))
                for one, completion in asked]
