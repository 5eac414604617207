"""Local git repositories as sources of tasks: trees of commits, and commits that change code with its tests."""

from __future__ import annotations

import functools
import io
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollbook.environments.guard.events import is_test
from rollbook.records import EnvironmentFault
from rollbook.records.sandbox import MissingTool

GIT_S = 120.0
LARGEST_FILE, LARGEST_TREE = 2 * 2**20, 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A commit that changed code and tests together: `code` and `tests` are the changed paths, `message` is its own.

    Example: Fix(commit="9ac3..", parent="17ff..", message="Empty input", code=("a.py",), tests=("tests/test_a.py",))
    """

    commit: str
    parent: str
    message: str
    code: tuple[str, ...]
    tests: tuple[str, ...]


def git(repository: Path, *words: str) -> bytes:
    """What git prints. EnvironmentFault where it fails, MissingTool where it is not installed. Hooks and settings are not
    used."""
    try:
        done = subprocess.run(["git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "safe.directory=*",
                               "-C", str(repository), *words], capture_output=True, check=False, timeout=GIT_S,
                              stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise MissingTool("git is not installed", tool="git", why="tasks are mined from repositories",
                          fix="apt-get install git") from error
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault("git took too long", code="build", got=" ".join(words)[:200]) from error
    if done.returncode != 0:
        raise EnvironmentFault("git failed", code="build", got=done.stderr.decode("utf-8", "replace").strip()[:300],
                               why=" ".join(words)[:200], fix="give the folder of a git repository with that commit")
    return done.stdout


@functools.lru_cache(maxsize=16)
def tree(repository: str, commit: str) -> dict[str, bytes]:
    """The regular files of a commit by path: nothing of the repository itself, so no history, remotes, branches or tags."""
    data = git(Path(repository), "archive", "--format=tar", commit)
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            if member.isreg() and member.size <= LARGEST_FILE:
                file = archive.extractfile(member)
                assert file is not None
                files[member.name] = file.read()
    if sum(map(len, files.values())) > LARGEST_TREE:
        raise EnvironmentFault("a repository is too large for a sandbox's disk", code="build",
                               got=f"{repository} at {commit[:12]}",
                               fix=f"at most {LARGEST_TREE} bytes")
    return files


def head(repository: str) -> str:
    """The commit that is checked out."""
    return git(Path(repository), "rev-parse", "HEAD").decode().strip()


def fixes(repository: str, *, most: int, files: int = 8) -> Iterator[Fix]:
    """Commits from the newest on, of the last `most`, that changed Python code and existing or new tests, in at most so many
    files."""
    log = git(Path(repository), "log", "--no-merges", f"--max-count={most}", "--format=%H%x00%P%x00%B%x00%x00").decode("utf-8",
                                                                                                                       "replace")
    for entry in log.split("\0\0"):
        parts = entry.strip("\n").split("\0")
        if len(parts) != 3 or len(parts[1].split()) != 1:
            continue
        commit, parent, message = parts
        names = git(Path(repository), "diff", "--name-status", "--no-renames", "-z", parent, commit).decode("utf-8",
                                                                                                            "replace").split("\0")
        changed = dict(zip(names[1::2], names[::2], strict=False))
        python = [path for path in changed if path.endswith(".py")]
        tests = tuple(sorted(path for path in python if is_test(path)
                             and changed[path] != "D" and not path.endswith("conftest.py")))
        code = tuple(sorted(path for path in python if not is_test(path)))
        if tests and code and len(changed) <= files:
            yield Fix(commit=commit, parent=parent, message=message.strip(), code=code, tests=tests)


def before(repository: str, fix: Fix) -> dict[str, bytes]:
    """The state with the fault: the commit's tree with its code and tests as they were at its parent."""
    now, then = tree(repository, fix.commit), tree(repository, fix.parent)
    files = {path: data for path, data in now.items() if path not in fix.code and path not in fix.tests}
    return {**files, **{path: then[path] for path in (*fix.code, *fix.tests) if path in then}}
