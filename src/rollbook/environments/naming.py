"""Which environments come with the package, by name."""

from __future__ import annotations

import ast
from pathlib import Path

from rollbook.environments.loading import METHODS
from rollbook.records import EnvironmentFault, EnvironmentSpec, EpisodeBudget
from rollbook.records.codec import nearest

HERE = Path(__file__).parent
BUDGET = EpisodeBudget(max_tokens=4096, max_turns=32)


def known_definitions() -> dict[str, str]:
    """Name to import path of every definition in this package, read from its source: nothing is imported.

    A definition is named after its module, or after its class where the module has several.
    """
    found = {}
    for file in sorted([*HERE.glob("*.py"), *(HERE / "builtin").rglob("*.py"), HERE / "guard" / "guarded.py"]):
        module = ".".join(("rollbook.environments", *file.relative_to(HERE).with_suffix("").parts))
        classes = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)
                   and set(METHODS) <= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}]
        for node in classes:
            found[file.stem if len(classes) == 1 else _named(node.name)] = f"{module}:{node.name}"
    return found


def _named(name: str) -> str:
    return "".join(f"-{mark.lower()}" if mark.isupper() and place else mark.lower() for place, mark in enumerate(name))


def spec_named(name: str, parameters: dict[str, object]) -> EnvironmentSpec:
    """The spec of a built-in name or of `package.module:Class`, with a budget that a check needs."""
    if ":" in name:
        return EnvironmentSpec(name=name.rpartition(":")[2], definition=name, parameters=parameters, budget=BUDGET)
    known = known_definitions()
    if name not in known:
        raise EnvironmentFault("unknown environment", code="build", got=repr(name),
                               why="it is neither a built-in name nor package.module:Class",
                               fix=f"nearest names: {nearest(name, list(known))}; `rollbook env list` prints all")
    return EnvironmentSpec(name=name, definition=known[name], parameters=parameters, budget=BUDGET)
