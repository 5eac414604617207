"""The C++ kernels, compiled once for this machine by its own compiler and kept in the user's cache.

Where there is no compiler, or the processor is none that they are written for, torch's own operations do the same in more passes.
Which of the two computed a run is on its record: their roundings differ.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rollbook.records import ModelError

HERE = Path(__file__).parent
SOURCES = ("kernels.h", "kernels.cpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC", "-Wno-psabi")
VARIABLE, CHOICES = "ROLLBOOK_KERNELS", ("auto", "native", "torch")
SECONDS = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The library, or why there is none. `name` is what a run records: `native-` and the sources' hash, or `torch`."""

    library: ctypes.CDLL | None
    name: str
    why: str


@functools.cache
def built() -> Built:
    """The kernels as this process uses them; raises ModelError where `ROLLBOOK_KERNELS=native` asks for what cannot be had."""
    asked = os.environ.get(VARIABLE) or "auto"
    if asked not in CHOICES:
        raise ModelError(f"{VARIABLE} names no kernels", got=repr(asked), fix=f"one of {', '.join(CHOICES)}")
    if asked == "torch":
        return Built(library=None, name="torch", why=f"{VARIABLE}=torch")
    try:
        path = compiled()
        import torch  # noqa: F401  (its OpenMP runtime is loaded first, so that the kernels' threads are torch's)
        return Built(library=ctypes.CDLL(str(path)), name=f"native-{source_hash()[:12]}", why=str(path))
    except (OSError, subprocess.SubprocessError, ModelError) as error:
        told = str(error).strip()
        if asked == "native":
            raise ModelError("the processor's kernels cannot be built", got=told, why=f"{VARIABLE}=native asks for them",
                             fix=f"install g++, or {VARIABLE}=torch") from error
        return Built(library=None, name="torch", why=told)


def source_hash() -> str:
    """Of the sources and how they are compiled, the same on every machine."""
    return hashlib.sha256(b"\0".join([*((HERE / name).read_bytes() for name in SOURCES), *map(str.encode, FLAGS)])).hexdigest()


def compiled() -> Path:
    """The library's file, compiled now where this machine has not done so before."""
    if not sys.platform.startswith("linux"):
        raise ModelError("the kernels are built on Linux alone", got=sys.platform, why="torch's OpenMP has other names elsewhere")
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if not compiler:
        raise ModelError("no C++ compiler was found", got="neither g++ nor c++", fix="install g++")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=SECONDS).stdout
    made_for = hashlib.sha256(source_hash().encode() + version + _processor()).hexdigest()[:24]
    folder = _folder()
    target = folder / f"kernels-{made_for}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=folder) as own:
            fresh = Path(own) / target.name
            command = [compiler, *FLAGS, "-o", str(fresh), str(HERE / "kernels.cpp")]
            done = subprocess.run(command, capture_output=True, check=False, timeout=SECONDS)
            if done.returncode:
                raise ModelError("the kernels do not compile", got=done.stderr.decode(errors="replace")[-400:],
                                 fix="install g++ 11 or later")
            fresh.replace(target)           # whoever compiles at the same time puts the same there
    return target


def _processor() -> bytes:
    """What `-march=native` looks at: a cache may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return b""
    return b"\n".join(sorted({line for line in lines if line.startswith((b"flags", b"model name", b"Features", b"CPU part"))}))


def _folder() -> Path:
    """The user's cache; where it cannot be written, a folder among the temporary files that nobody else can write."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollbook" / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    own = Path(tempfile.gettempdir()) / f"rollbook-kernels-{os.getuid()}"
    own.mkdir(mode=0o700, exist_ok=True)
    found = own.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ModelError("the folder for the kernels is somebody else's, or open to others", got=str(own),
                         why="what lies there is loaded into this process", fix="set XDG_CACHE_HOME to a folder of your own")
    return own
