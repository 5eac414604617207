"""What the sandbox needs of the system and does not find: for `rollbook doctor`, and before a run starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollbook.environments.sandbox import cpp, launch
from rollbook.records.sandbox import Language, MissingTool, SandboxError


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A thing of the system that is not there, what cannot be done without it, and what to do.

    Example: Missing(tool="bwrap", needed_for="the isolated sandbox", fix="apt-get install bubblewrap ...")
    """

    tool: str
    needed_for: str
    fix: str


def missing_tools(languages: Sequence[Language] = ("python", "cpp")) -> tuple[Missing, ...]:
    """What is missing for these languages in the isolated sandbox; empty when everything is there and starts."""
    found = []
    try:
        bubblewrap, interpreter = launch.find_bubblewrap(), launch.find_interpreter(None)
        launch.start(launch.command(bubblewrap, interpreter, {}), interpreter, []).close()
    except MissingTool as error:
        found.append(Missing(tool=error.tool, needed_for="the isolated sandbox", fix=error.fix or ""))
    except SandboxError as error:
        found.append(Missing(tool="namespaces", needed_for="the isolated sandbox", fix=error.fix or ""))
    if "cpp" in languages:
        try:
            cpp.find_compiler()
        except MissingTool as error:
            found.append(Missing(tool=error.tool, needed_for="C++ solutions", fix=error.fix or ""))
    return tuple(found)
