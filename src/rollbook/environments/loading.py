"""From an import path to the definition of an environment: its parameters checked, its failures explained."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import cast

from rollbook.records import CodecError, EnvironmentDefinition, EnvironmentFault, EnvironmentSpec, decode
from rollbook.records.codec import nearest

METHODS = ("image", "tasks", "build", "verify", "solutions")


def load_definition(spec: EnvironmentSpec) -> EnvironmentDefinition:
    """The definition that the spec names, made with the spec's parameters.

    Raises EnvironmentFault where the path cannot be imported, names no definition, or the parameters are not its fields.
    """
    found = _named(spec)
    missing = [name for name in METHODS if not callable(getattr(found, name, None))]
    if missing or not (inspect.isclass(found) and dataclasses.is_dataclass(found)):
        raise _fault(spec, "is no definition of an environment",
                     got=f"{type(found).__name__} without {', '.join(missing)}" if missing else repr(found),
                     why=f"a definition is a frozen dataclass with {', '.join(METHODS)}",
                     fix="see EnvironmentDefinition in rollbook.records.environment")
    try:
        return cast(EnvironmentDefinition, decode(found, dict(spec.parameters), "parameters"))
    except CodecError as error:
        known = ", ".join(field.name for field in dataclasses.fields(found)) or "none"
        raise _fault(spec, "does not take these parameters", got=error.got or repr(dict(spec.parameters)), why=error.what,
                     fix=error.fix or f"its fields are {known}") from error


def _named(spec: EnvironmentSpec) -> object:
    module_name, colon, name = spec.definition.partition(":")
    if not colon or not module_name or not name:
        raise _fault(spec, "is no import path", got=repr(spec.definition), fix="write package.module:Class")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        absent = error.name or module_name
        own = module_name == absent or module_name.startswith(f"{absent}.")
        raise _fault(spec, "cannot be imported", got=f"no module {absent}",
                     why="the path is wrong, or its folder is not on PYTHONPATH" if own else f"{module_name} needs {absent}",
                     fix="correct the path" if own else f"install what provides {absent}") from error
    except Exception as error:
        raise _fault(spec, "cannot be imported", got=f"{type(error).__name__}: {error}",
                     why=f"{module_name} raised while it was imported") from error
    found: object = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise _fault(spec, f"names nothing in {module_name}", got=name,
                         fix=f"nearest names: {nearest(part, [known for known in dir(found) if not known.startswith('_')])}")
        found = getattr(found, part)
    return found


def _fault(spec: EnvironmentSpec, what: str, *, got: str, why: str | None = None, fix: str | None = None) -> EnvironmentFault:
    return EnvironmentFault(f"environment {spec.name} ({spec.definition}) {what}", code="build", got=got, why=why, fix=fix)
