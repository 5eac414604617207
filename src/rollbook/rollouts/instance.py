"""The environment of one episode: built, its permitted tools, its final state, closed. What it cannot do is a fault."""

from __future__ import annotations

from collections.abc import Callable

from rollbook.records import Environment, EnvironmentFault, FinalState, RollbookError, ToolSchema
from rollbook.records.rollout import StopReason
from rollbook.rollouts.answering import guarded


def built(build: Callable[[int], Environment], seed: int) -> Environment:
    """A fresh environment with this seed; EnvironmentFault where there is none."""
    try:
        return build(seed)
    except EnvironmentFault:
        raise
    except RollbookError as error:
        raise EnvironmentFault(error.what, code="build", got=error.got, why=error.why, fix=error.fix) from error
    except Exception as error:
        raise EnvironmentFault("the environment could not be built", code="build",
                               got=f"{type(error).__name__}: {error}"[:300]) from error


def permitted(environment: Environment, names: tuple[str, ...] | None) -> tuple[ToolSchema, ...]:
    """The tools of these names in their order; () are all that are offered, None is none. EnvironmentFault for a strange one."""
    offered = {tool.name: tool for tool in environment.tools}
    wanted = () if names is None else names or tuple(offered)
    unknown = [name for name in wanted if name not in offered]
    if unknown:
        raise EnvironmentFault(f"the environment offers no tool {unknown[0]!r}", code="build",
                               got=", ".join(offered) or "no tools", fix="correct the list of tools")
    return tuple(offered[name] for name in wanted)


def final_state(environment: Environment) -> FinalState:
    """What the episode came to; EnvironmentFault where the environment cannot say."""
    try:
        return environment.state()
    except RollbookError as error:
        raise EnvironmentFault(error.what, code="state", got=error.got) from error
    except Exception as error:
        raise EnvironmentFault("the environment's state failed", code="state",
                               got=f"{type(error).__name__}: {error}"[:300]) from error


async def closed(environment: Environment | None, seconds: float, fault: str | None) -> str | None:
    """Closes it; the fault there was, else the one of closing, None where there is none."""
    if environment is None:
        return fault
    try:
        await guarded("state", seconds, environment.close)
    except EnvironmentFault as error:
        return fault or str(error)
    return fault


def ended_as(ended: str) -> StopReason:
    """The stop reason of an episode that its environment ended."""
    match ended:
        case "answered":
            return "end_of_turn"
        case "terminal":
            return "terminal"
        case "gave_up":
            return "gave_up"
        case _:
            return "environment_failed"
