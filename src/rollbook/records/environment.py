"""What an environment is: picklable data that describes it, one fresh instance an episode, typed observations, a final state.

Four parts, in the order in which they are met:

* `EnvironmentSpec` — data. It names a definition by import path, its parameters, the tools that are permitted and the budget.
* `EnvironmentDefinition` — the class that path names: a frozen dataclass whose fields are the parameters. It makes tasks, builds
  an environment for one episode, grades a final state, and knows actions that solve a task and actions that do not.
* `Environment` — one episode: `reset` once, `act` until an observation has `ended`, then `state`, then `close`. Never reused.
* `FinalState` — what the grade is made from. The text of the policy is judged only where the environment puts it into the state.

What an instance must keep to:

* The same definition, seed, task and actions give the same observations and the same state. Nothing is read from the clock, the
  network, unordered sets or the host. `seed` is all the randomness there is.
* What a tool does wrong is data: `Reply(error=...)`. What the environment itself cannot do raises `EnvironmentFault`; the episode
  then ends as `environment_failed`, is not graded, and stays in the census. It is never a reward of zero.
* Calls reach `act` checked: the tool exists, is permitted, the arguments fit its schema. Malformed calls are answered before.
* Blocking work (a sandbox, a database) goes through `rollbook.environments.waiting.in_thread`: 500 episodes share one event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from rollbook.records.codec import SPARSE, content_id
from rollbook.records.episode import Action, FinalState, Observation, ToolSchema
from rollbook.records.errors import RecordError, RollbookError
from rollbook.records.reward import FailureCode
from rollbook.records.sandbox import Language, Sandbox, SolutionRunner
from rollbook.records.tasks import EnvironmentImage, Message, RawTask, Task

EnvironmentFaultCode = Literal["build", "reset", "act", "state", "timeout", "missing_tool", "not_text", "no_verifier"]


class EnvironmentFault(RollbookError):
    """An environment that cannot do its work; never the policy's fault, so never a reward of zero. `code` says where."""

    def __init__(self, what: str, *, code: EnvironmentFaultCode, got: str | None = None, why: str | None = None,
                 fix: str | None = None):
        super().__init__(what, got=got, why=why, fix=fix)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """How good a final state is: `accuracy` in 0..1, and further named parts that a composition may pay for.

    Example: Grade(accuracy=1.0, parts={"tests_passed": 1.0}, detail="20 of 20 tests")
    """

    accuracy: float
    parts: Mapping[str, float] = field(default_factory=dict)
    detail: str = ""
    hidden_test_access: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.accuracy <= 1.0:
            raise RecordError("a grade's accuracy lies in 0..1", got=str(self.accuracy))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ungraded:
    """A final state that could not be graded; never a zero."""

    code: FailureCode
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeBudget:
    """What one episode may spend. None means no limit of that kind; which one ended it is the trace's stop reason.

    `max_tokens` counts the policy's tokens over all turns, `turn_tokens` those of one; `max_calls` tool calls, `max_seconds` wall
    time, `call_seconds` that of one reset or act, `reply_characters` the length of one reply (beyond it: `flood`).

    Example: EpisodeBudget(max_tokens=512, max_turns=4, max_calls=8)
    """

    max_tokens: int
    max_turns: int
    turn_tokens: int | None = None
    max_calls: int | None = None
    max_seconds: float | None = None
    call_seconds: float = 30.0
    reply_characters: int = 20_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise RecordError(f"budget.{name} must be positive", got=str(value), why="nothing can be done in nothing",
                                  fix="leave it empty for no limit" if name.startswith("max_") else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """An environment as data: everything needed to build it in any process.

    `definition` is `package.module:Class`. `tools` are the permitted ones in the order shown; empty means all that it offers,
    `no_tools` none of them.

    Example: EnvironmentSpec(name="calculator", definition="rollbook.environments.builtin.calculator:Calculator",
        parameters={"terms": 3}, tools=(), budget=EpisodeBudget(max_tokens=128, max_turns=3))
    """

    SCHEMA: ClassVar[int] = 1
    name: str
    definition: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    budget: EpisodeBudget
    no_tools: bool = field(default=False, metadata=SPARSE)

    @property
    def id(self) -> str:
        return content_id(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solutions:
    """Actions of whole episodes, for validation: every `gold` one must be graded 1.0, every `wrong` one below it.

    `gold` is empty for a task of which no solution is known; of some tasks of an environment one must be.

    Example: Solutions(gold=((Action(text="4"),),), wrong=((Action(text="5"),),))
    """

    gold: tuple[tuple[Action, ...], ...]
    wrong: tuple[tuple[Action, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """Tasks with the raw tasks they were made from, in order; each task's `raw` is the content id of its raw task."""

    raw: tuple[RawTask, ...]
    tasks: tuple[Task, ...]


Asker = Callable[[Sequence[Message]], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What all episodes of a process share, made when first asked for. `ask` is a model that plays a user or a world.

    `runner(("python",))` tests solutions. Both may raise `MissingTool`, and both block: call them in a thread.
    """

    sandbox: Callable[[], Sandbox]
    runner: Callable[[tuple[Language, ...]], SolutionRunner]
    ask: Asker | None = None


class Environment(Protocol):
    """One episode. `tools` are valid from the end of `reset`."""

    @property
    def tools(self) -> tuple[ToolSchema, ...]: ...

    async def reset(self, task: Task) -> Observation: ...

    async def act(self, action: Action) -> Observation:
        """Answers every call of the action with one tool reply that names it, in order; an action without calls is the policy's
        answer or next message."""

    def state(self) -> FinalState:
        """What the episode came to, also where it was cut off; called once `act` will not be called again."""

    async def close(self) -> None:
        """Gives back files, processes and connections; called exactly once, also after a fault."""


@runtime_checkable
class Snapshots(Protocol):
    """Offered by environments whose state can be saved; what follows `restore` is what followed `snapshot`."""

    def snapshot(self) -> bytes: ...

    def restore(self, snapshot: bytes) -> None: ...


class EnvironmentDefinition(Protocol):
    """What an import path in a spec names: a frozen dataclass whose fields are the spec's parameters (JSON values)."""

    def image(self) -> EnvironmentImage:
        """Everything an observation or grade may depend on: `rollbook.environments.describing.image_of(self, ...)`."""

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        """`count` tasks, the same for the same seed; each with its split unit in `canonical`."""

    def build(self, *, services: Services, seed: int) -> Environment:
        """An environment for one episode; cheap: what takes long belongs in `reset`."""

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        """The grade of a final state; may block (it runs in a thread). Hidden tests run in `services.sandbox()`."""

    def solutions(self, task: Task) -> Solutions:
        """At least one way not to solve the task, and one to solve it; `gold` is empty where no way is known."""
