"""An environment inside another one: what a wrapper is given, and the parts that every wrapper passes on."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollbook.environments.describing import image_of
from rollbook.environments.loading import load_definition
from rollbook.records import (
    Action,
    Environment,
    EnvironmentDefinition,
    EnvironmentFault,
    EnvironmentImage,
    EnvironmentSpec,
    EpisodeBudget,
    FinalState,
    Observation,
    Reply,
    Snapshots,
    Task,
    ToolCall,
    ToolSchema,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """The environment that is wrapped: its import path and parameters, as in a spec.

    Example: Inner(definition="rollbook.environments.builtin.world:WorldQuestions", parameters={"least_hops": 2})
    """

    definition: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> EnvironmentDefinition:
        """The definition; EnvironmentFault where it cannot be made."""
        return load_definition(EnvironmentSpec(name="wrapped", definition=self.definition, parameters=self.parameters,
                                               budget=EpisodeBudget(max_tokens=1, max_turns=1)))


def wrapped_image(wrapper: Any, inner: EnvironmentDefinition, code: str) -> EnvironmentImage:
    """The image of a wrapper: its own with the inner one's in it; `code` is the digest of what the wrapper runs."""
    within, own = inner.image(), image_of(wrapper, extra={"inner": inner.image().digest, "code": code})
    return EnvironmentImage(name=f"{own.name}({within.name})", digest=own.digest, dependencies=within.dependencies,
                            network=within.network, credentials=within.credentials, reset=within.reset,
                            hidden_tests=within.hidden_tests)


@dataclass(slots=True)
class WrappedEpisode:
    """Passes everything on. Subclasses change what one call or one turn does, and add facts to the final state."""

    inner: Environment

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return self.inner.tools

    async def reset(self, task: Task) -> Observation:
        return await self.inner.reset(task)

    async def act(self, action: Action) -> Observation:
        return await self.inner.act(action)

    async def one(self, call: ToolCall) -> tuple[Reply, Observation]:
        """One call on its own: the reply to it, and the observation that it is part of."""
        seen = await self.inner.act(Action(calls=(call,)))
        reply = next((reply for reply in seen.replies if reply.call == call.id), None)
        if reply is None:
            raise EnvironmentFault("a call was not answered", code="act", got=call.name)
        return reply, seen

    def facts(self) -> dict[str, Any]:
        return {}

    def state(self) -> FinalState:
        state = self.inner.state()
        return FinalState(facts={**state.facts, **self.facts()}, artifacts=state.artifacts)

    async def close(self) -> None:
        await self.inner.close()

    def saved(self) -> dict[str, Any]:
        return {}

    def load(self, saved: Mapping[str, Any]) -> None:
        pass

    def snapshot(self) -> bytes:
        if not isinstance(self.inner, Snapshots):
            raise EnvironmentFault("the wrapped environment has no snapshots", code="state", got=type(self.inner).__name__)
        return json.dumps({"own": self.saved(), "inner": b64encode(self.inner.snapshot()).decode("ascii")}).encode()

    def restore(self, snapshot: bytes) -> None:
        if not isinstance(self.inner, Snapshots):
            raise EnvironmentFault("the wrapped environment has no snapshots", code="state", got=type(self.inner).__name__)
        document = json.loads(snapshot)
        self.load(document["own"])
        self.inner.restore(b64decode(document["inner"]))
