"""Python packages of this installation, shown read-only inside a sandbox, for programs that are to have them."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rollbook.records.codec import canonical, digest

PLACE = "/packages"
NAME = re.compile(r"^[A-Za-z0-9._-]+")
COMMON = ("pytest", "sympy", "numpy")


@functools.cache
def shown(names: Sequence[str] = COMMON) -> dict[str, Path]:
    """Where inside which folder or file outside is to be seen, for the installed ones of these and all that they require.

    What the sandbox's user cannot reach (a home of root's) is copied once into the cache that it can read.
    """
    places: dict[str, Path] = {}
    for name in _with_requirements(names):
        for entry in _top(name):
            places[f"{PLACE}/{entry.name}"] = entry if _reachable(entry) else _copy(entry, importlib.metadata.version(name))
    return places


def installed(names: Sequence[str] = COMMON) -> dict[str, str]:
    """Versions of those that are shown."""
    return {name: importlib.metadata.version(name) for name in _with_requirements(names)}


def _with_requirements(names: Sequence[str]) -> list[str]:
    found, waiting = [], list(names)
    while waiting:
        name = waiting.pop(0).lower().replace("_", "-")
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        if name in found:
            continue
        found.append(name)
        waiting += [match.group() for line in required if ";" not in line and (match := NAME.match(line))]
    return sorted(found)


def _top(name: str) -> Iterator[Path]:
    """The importable folders and files at the top of a distribution."""
    distribution = importlib.metadata.distribution(name)
    tops = {file.parts[0] for file in distribution.files or ()
            if file.parts[0] not in ("..", "__pycache__") and not file.parts[0].endswith((".pth", ".data"))}
    for top in sorted(tops):
        path = Path(str(distribution.locate_file(top))).resolve()
        if path.exists():
            yield path


def _reachable(path: Path) -> bool:
    """Whether somebody who is nobody can read it."""
    return os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in (path, *path.parents) if parent.is_dir())


def _copy(path: Path, version: str) -> Path:
    root = Path("/var/cache/rollbook")
    target = root / f"package-{path.name}-{digest(canonical({'path': str(path), 'version': version}))[:16]}" / path.name
    if not target.exists():
        root.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=root, prefix="making-"))
        try:
            making.chmod(0o755)
            if path.is_dir():
                shutil.copytree(path, making / path.name)
            else:
                shutil.copy2(path, making / path.name)
            try:
                making.rename(target.parent)
            except OSError:                                  # another process was first
                if not target.exists():
                    raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return target
