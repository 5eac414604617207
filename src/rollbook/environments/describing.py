"""The image of an environment: a digest over its code, parameters and what it runs on."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rollbook.records import EnvironmentFault, EnvironmentImage, canonical, digest, encode


def image_of(definition: Any, *, packages: Sequence[str] = (), network: Literal["none", "loopback", "open"] = "none",
             extra: Mapping[str, str] | None = None, hidden_tests: str | None = None) -> EnvironmentImage:
    """The image of a definition; its digest changes with its module's source, its fields, and the versions of `packages`.

    `extra` are further digests it depends on (data files, a sandbox's stamp), `hidden_tests` the digest of tests the policy never
    sees. Raises EnvironmentFault where a package is not installed.
    """
    kind = type(definition)
    file = inspect.getsourcefile(kind)
    source = digest(Path(file).read_bytes()) if file else ""
    dependencies = {"python": ".".join(map(str, sys.version_info[:3])), **{name: _version(name) for name in packages}}
    fields = {field.name: encode(getattr(definition, field.name)) for field in dataclasses.fields(definition)}
    document = {"class": f"{kind.__module__}:{kind.__qualname__}", "source": source, "fields": fields,
                "dependencies": dependencies, "extra": dict(extra or {}), "hidden_tests": hidden_tests, "network": network}
    return EnvironmentImage(name=kind.__name__, digest=digest(canonical(document)), dependencies=dependencies, network=network,
                            credentials="none", reset="built fresh for one episode from definition, seed and task",
                            hidden_tests=hidden_tests)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise EnvironmentFault(f"the package {package} is not installed", code="missing_tool",
                               why="the environment's observations depend on its version",
                               fix=f"pip install {package}") from error
