"""Which code judged: digests over the source files and settings that can change a verdict."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollbook.records import VerifierStamp, canonical, digest

HERE = Path(__file__).parent
MATH_SOURCES = ("boxes.py", "numbers.py", "notation.py", "math.py", "worker.py", "pool.py",
                *sorted(f"verifiers/mathematics/{file.name}" for file in (HERE / "verifiers" / "mathematics").glob("*.py")))
MATH_PACKAGES = ("math-verify", "sympy", "latex2sympy2_extended", "antlr4-python3-runtime", "mpmath")


def source_digests(names: Sequence[str]) -> dict[str, str]:
    """File name to hash of the named files of this package."""
    return {name: digest((HERE / name).read_bytes()) for name in names}


def package_versions() -> dict[str, str]:
    """The third-party packages that symbolic comparison depends on."""
    return {name: importlib.metadata.version(name) for name in MATH_PACKAGES}


def stamp(name: str, version: str, sources: Sequence[str], settings: Mapping[str, Any]) -> VerifierStamp:
    """A stamp whose digest changes with the sources, the settings and nothing else."""
    document = {"name": name, "version": version, "sources": source_digests(sources), "settings": dict(settings)}
    return VerifierStamp(name=name, version=version, digest=digest(canonical(document)))
