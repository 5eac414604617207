"""C++20: where the compiler is, its standard header compiled once, and the program that compiles a solution."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from rollbook.environments.sandbox.payload import BASE_ENVIRONMENT
from rollbook.records.codec import canonical, digest
from rollbook.records.sandbox import Limits, MissingTool, Program, SandboxError

FLAGS = ("-std=c++20", "-O2")
INCLUDE = "/sandbox/include"
SOURCE, BINARY = "solution.cpp", "program"
INSTALL = "apt-get install g++ (Debian, Ubuntu) or dnf install gcc-c++ (Fedora)"
HEADER_S = 120.0


def find_compiler() -> str:
    """The compiler on the path that the sandbox has."""
    path = shutil.which("g++", path=BASE_ENVIRONMENT["PATH"])
    if path is None:
        raise MissingTool("g++ is not installed", tool="g++", why="C++ solutions are compiled inside the sandbox", fix=INSTALL)
    return path


def compiled_header(cache: Path | None = None) -> Path:
    """A folder, by default in the user's cache, whose bits/stdc++.h is compiled for these flags; made if it is not there."""
    compiler = find_compiler()
    version = subprocess.run([compiler, "-v"], capture_output=True, text=True, check=False).stderr
    key = digest(canonical({"version": version, "flags": list(FLAGS)}))[:16]
    root = cache or (Path("/var/cache/rollbook") if os.geteuid() == 0 else
                     Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollbook")
    folder = root / f"cpp20-{key}"
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=root, prefix="making-"))
    try:
        (making / "bits").mkdir()
        _compile_header(compiler, making / "bits" / "stdc++.h.gch")
        making.chmod(0o755)
        try:
            making.rename(folder)
        except OSError:                                      # another process was first
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return folder


def compilation(source: str, limits: Limits) -> Program:
    """Compiles one file and prints the binary: what leaves the sandbox is bytes on standard output, never a file that is read."""
    command = f"g++ {' '.join(FLAGS)} -I{INCLUDE} -fmax-errors=5 -o {BINARY} {SOURCE} && exec cat {BINARY}"
    return Program(argv=("/bin/sh", "-c", command), files={SOURCE: source.encode("utf-8", "surrogatepass")}, limits=limits)


def _compile_header(compiler: str, target: Path) -> None:
    found = subprocess.run([compiler, *FLAGS, "-x", "c++", "-M", "-"], input="#include <bits/stdc++.h>\n", capture_output=True,
                           text=True, check=False, timeout=HEADER_S)
    header = next((word for word in found.stdout.split() if word.endswith("/bits/stdc++.h")), None)
    if header is None:
        raise SandboxError("the compiler has no bits/stdc++.h", got=found.stderr.strip()[:400], fix=INSTALL)
    done = subprocess.run([compiler, *FLAGS, "-x", "c++-header", header, "-o", str(target)], capture_output=True, text=True,
                          check=False, timeout=HEADER_S)
    if done.returncode != 0:
        raise SandboxError("the standard header does not compile", got=done.stderr.strip()[:400], fix=INSTALL)
    target.chmod(0o644)
    target.parent.chmod(0o755)
