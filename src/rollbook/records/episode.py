"""What happened between a policy and an environment: actions, observations, turns, the final state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from rollbook.records.codec import SPARSE, content_id
from rollbook.records.errors import RecordError

ReplyOwner = Literal["tool", "environment", "user", "user_simulator", "system", "subagent"]
ReplyError = Literal["malformed_call", "unknown_tool", "bad_arguments", "call_limit", "crash", "timeout", "flood", "not_text",
                     "refused", "unavailable", "injected"]
Ended = Literal["answered", "terminal", "gave_up", "environment_failed"]
Dialect = Literal["hermes", "llama3", "mistral", "fenced"]
Reasoning = Literal["keep", "strip", "split"]
PartKind = Literal["context", "compacted", "subagent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSchema:
    """A tool as it is shown to the policy; `parameters` is a JSON schema of type object.

    Example: ToolSchema(name="calculator", description="Evaluates an arithmetic expression.", parameters={"type": "object",
        "properties": {"expression": {"type": "string"}}, "required": ["expression"], "additionalProperties": False})
    """

    name: str
    description: str
    parameters: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not self.name or not all(mark.isalnum() or mark in "_-" for mark in self.name):
            raise RecordError("a tool's name is letters, digits, _ and -", got=repr(self.name),
                              why="every dialect of tool calls must be able to spell it")
        if self.parameters.get("type") != "object":
            raise RecordError(f"the parameters of {self.name} are a JSON schema of type object", got=str(self.parameters)[:80])


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the policy made, read and checked. `id` is unique in the episode.

    Example: ToolCall(id="call_0_0", name="calculator", arguments={"expression": "2+2"})
    """

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One turn of the policy: its text without calls and reasoning, and its calls in order (several are parallel calls).

    Example: Action(text="Let me compute.", calls=(ToolCall(...),))
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One message that the policy did not write. `call` names the call it answers; `error` says that it did not work, and how.

    Example: Reply(owner="tool", content="4", call="call_0_0")
    """

    owner: ReplyOwner
    content: str
    call: str | None = None
    error: ReplyError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the policy sees next. `ended` is why there is no next turn; None while there is one.

    From `reset`, `replies` follow the task's own prompt: empty where the prompt says everything.

    Example: Observation(replies=(Reply(owner="tool", content="4", call="call_0_0"),))
    """

    replies: tuple[Reply, ...] = ()
    ended: Ended | None = None

    @property
    def id(self) -> str:
        """The content hash of what was seen."""
        return content_id(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalState:
    """What is left when an episode is over: all a verifier may look at. `facts` are JSON values, `artifacts` texts by name.

    Example: FinalState(facts={"answer": "4"}, artifacts={"notes.txt": "..."})
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return content_id(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Something the policy wrote that was meant as a call and is none that can be made: answered, counted, never guessed at.

    `start` and `length` are its place in the turn's sampled tokens.

    Example: Misfit(id="call_0_0", error="malformed_call", detail="Expecting ',' delimiter: column 12", start=3, length=20)
    """

    id: str
    error: ReplyError
    detail: str
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of the policy and what it led to. `part` is the context it was sampled in: 0 is the trace's own, n its part n - 1.

    `acted`: whether the environment was asked (not where a budget ended the turn, or nothing of it could be passed on).
    `delegated` are the calls that went to subagents instead.

    Example: Turn(action=Action(text="4"), misfits=(), observation=Observation(ended="answered"), part=0, tokens=3, acted=True)
    """

    action: Action
    misfits: tuple[Misfit, ...]
    observation: Observation
    part: int
    tokens: int
    acted: bool
    delegated: tuple[str, ...] = ()

    @property
    def passed_on(self) -> Action | None:
        """The action as the environment got it; None where it was not asked."""
        kept = tuple(call for call in self.action.calls if call.id not in self.delegated)
        return Action(text=self.action.text, calls=kept) if self.acted else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What happened in the environment, enough to play it again: which one, its seed, every action and every observation.

    `environment` is the id of the `EnvironmentSpec`. `opening` is what `reset` showed. `state` is None where the environment
    failed; `fault` says how. `agent` names the outside program that worked there: its turns are its calls, in whatever context it
    made them, and carry no tokens.

    Example: Episode(environment="EnvironmentSpec:3f..", seed=7, dialect="hermes", reasoning="keep", opening=Observation(),
        turns=(Turn(...),), state=FinalState(facts={"answer": "4"}))
    """

    SCHEMA: ClassVar[int] = 1
    environment: str
    seed: int
    dialect: Dialect
    reasoning: Reasoning
    opening: Observation
    turns: tuple[Turn, ...]
    state: FinalState | None
    fault: str | None = None
    agent: str = field(default="", metadata=SPARSE)

    def __post_init__(self) -> None:
        if (self.state is None) != (self.fault is not None):
            raise RecordError("an episode has a final state exactly where its environment did not fail", got=str(self.fault))

    @property
    def calls(self) -> int:
        return sum(len(turn.action.calls) for turn in self.turns)

    @property
    def misfits(self) -> int:
        return sum(len(turn.misfits) for turn in self.turns)

    @property
    def errors(self) -> dict[str, int]:
        """How many replies carried each error."""
        found: dict[str, int] = {}
        for turn in self.turns:
            for reply in turn.observation.replies:
                if reply.error is not None:
                    found[reply.error] = found.get(reply.error, 0) + 1
        return found
