"""What an environment needs of this machine, looked at before a run begins: its definition, its packages and servers, the program
that works in it, and one episode that begins."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec

from rollbook.environments import load_definition, open_services
from rollbook.orchestration.surroundings import spec_of
from rollbook.records import EnvironmentFault, EnvironmentSpec, RecipeError, RollbookError, Task
from rollbook.records.problems import Problems
from rollbook.records.recipe import AgentSettings, EnvironmentSettings, Settings
from rollbook.rollouts.answering import guarded
from rollbook.rollouts.instance import built, permitted

SERVING = ("starlette", "uvicorn")


def unready(settings: Settings) -> Iterator[RollbookError]:
    """Why no attempt could be made in the recipe's environment as this machine is: its definition, what that stands on (packages,
    files, servers), and the outside program that is to work in it."""
    around = settings.environment
    if around is None:
        return
    try:
        described(spec_of(around, settings.tasks.max_tokens))
    except RollbookError as error:
        yield error
    if around.agent is not None:
        yield from _of_agent(around, around.agent)


def check_ready(settings: Settings) -> None:
    """Refuses to go on with a run whose environment or agent this machine no longer has; all of it at once."""
    problems = Problems()
    for error in unready(settings):
        problems.add(error)
    problems.raise_any("the environment")


def described(spec: EnvironmentSpec) -> None:
    """Loads the definition and asks it for its image; EnvironmentFault where either fails, whatever it raises."""
    definition = load_definition(spec)
    try:
        definition.image()
    except RollbookError:
        raise
    except Exception as error:
        raise EnvironmentFault(f"environment {spec.name} cannot say what it is", code="build",
                               got=f"{type(error).__name__}: {error}"[:300],
                               why="its image is a digest of its files, packages and servers: one of them is not to be had",
                               fix="correct environment.parameters") from error


def check_begins(settings: Settings, task: Task) -> None:
    """Begins one episode and ends it again; refused where its environment cannot be built, reset, or lacks a tool."""
    around = settings.environment
    if around is None:
        return
    spec = spec_of(around, settings.tasks.max_tokens)
    definition = load_definition(spec)
    with open_services() as services:
        async def begun() -> None:
            environment = built(lambda seed: definition.build(services=services, seed=seed), settings.run.seed)
            try:
                await guarded("reset", spec.budget.call_seconds, lambda: environment.reset(task))
                permitted(environment, None if spec.no_tools else spec.tools)
            finally:
                await guarded("state", spec.budget.call_seconds, environment.close)
        asyncio.run(begun())


def _of_agent(around: EnvironmentSettings, agent: AgentSettings) -> Iterator[RollbookError]:
    """Why an outside program could not work there, or what the recipe asks of the turn loop that it has no part in."""
    ignored = {"compaction": around.compaction != "none", "subagents": around.subagents > 0,
               "misfit_penalty": around.misfit_penalty > 0.0, "reasoning": around.reasoning == "strip"}
    unset = {"compaction": "none --set environment.compact_at=0", "subagents": "0", "misfit_penalty": "0", "reasoning": "keep"}
    if found := [name for name, holds in ignored.items() if holds]:
        yield RecipeError(f"environment.{found[0]} cannot go with environment.agent", got=", ".join(found),
                          why="these are settings of the turn loop: the program has a loop of its own, and they would be ignored",
                          fix=" ".join(f"--set environment.{name}={unset[name]}" for name in found))
    if around.max_seconds is None:
        yield RecipeError("environment.agent needs environment.max_seconds", got="none",
                          why="a program that never ends would stop the run for ever",
                          fix="--set environment.max_seconds=600, or how long an attempt may take")
    if missing := [name for name in SERVING if find_spec(name) is None]:
        yield RecipeError("an outside agent is served over HTTP", got=f"no package {', '.join(missing)}",
                          fix="pip install 'rollbook[serve]'")
        return
    from rollbook.serve.commands import unstartable
    if (error := unstartable(agent)) is not None:
        yield error


__all__ = ["check_begins", "check_ready", "described", "unready"]
