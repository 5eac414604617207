"""A repository with a fault, a shell and an editor, and hidden tests that judge what is left.

Tasks come from a local repository's own history (a commit that changed code with its tests: the state before it, and its tests
hidden), or from one synthetic fault in a function whose tests then fail and are hidden. The working copy is a plain tree with
one new commit: no history, remotes, branches or tags of the repository are in it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import random
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from rollbook.environments.builtin import repositories, sample_project
from rollbook.environments.builtin.common import BUDGET, Draft, Refused, Tool, ToolEpisode, call, code_digest, schema
from rollbook.environments.builtin.judging import Outcomes, judged_files, run_tests
from rollbook.environments.builtin.mutations import Mutation, mutations
from rollbook.environments.builtin.sessions import opened, sandbox_of, sandbox_with, shown, within
from rollbook.environments.describing import image_of
from rollbook.environments.guard.events import is_test
from rollbook.environments.sandbox.packages import COMMON, installed
from rollbook.environments.sandbox.session import Session, SessionEnded
from rollbook.records import (
    Action,
    EnvironmentFault,
    EnvironmentImage,
    FinalState,
    Grade,
    Observation,
    RawTask,
    Services,
    Solutions,
    Task,
    TaskSet,
    Ungraded,
)
from rollbook.records.sandbox import Sandbox

Source = Literal["history", "mutation"]
SAMPLE = "sample"
TRIES, NEAR = 40, 6                      # faults tried for a task at most; test files run for each
EXPORT_BYTES, OUTPUT_BYTES, FILE_CHARACTERS = 32 * 2**20, 400_000, 20_000
LEFT_OUT = (".git", "__pycache__", ".pytest_cache")
FILES = ("common.py", "guest_tests.py", "judging.py", "mutations.py", "repositories.py", "sample_project.py", "sessions.py",
         "swe.py")
SYSTEM = ("A project lies in your working folder. Repair what the task describes by changing its code, not its tests. Each "
          "shell command "
          "starts in that folder and everything it started ends with it. When you are done, answer without a call.")
BEGIN = ("git init -q -b main . && git -c user.name=base -c user.email=base@localhost add -A && git -c user.name=base "
         "-c user.email=base@localhost commit -q -m base --date 2001-01-01T00:00:00Z")
DATED = {"GIT_COMMITTER_DATE": "2001-01-01T00:00:00Z", "GIT_CONFIG_NOSYSTEM": "1"}
Tree = Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """Tasks of one repository: a folder with git, or a small sample project where it is empty. Or of `repositories`: each of
    them gives its share, and a task says which one it is of.

    `commits` is how far back history is searched, `shell_seconds` what one command may take. `packages` are installed
    distributions that the project needs beside pytest, numpy and sympy: they and what they require are shown in the sandbox.
    """

    repository: str = ""
    source: Source = "mutation"
    commits: int = 200
    shell_seconds: float = 30.0
    packages: tuple[str, ...] = ()
    repositories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.repositories and (self.repository or len(set(self.repositories)) < len(self.repositories)):
            raise EnvironmentFault("tasks come from one repository or from several, each named once", code="build",
                                   got=", ".join(filter(None, (self.repository, *self.repositories))),
                                   fix="leave `repository` empty, and name each of `repositories` once")

    def image(self) -> EnvironmentImage:
        base = " ".join(map(repositories.head, self.repositories)) or (
            repositories.head(self.repository) if self.repository else SAMPLE)
        versions = ", ".join(f"{name} {version}" for name, version in sorted(installed((*COMMON, *self.packages)).items()))
        extra = {"code": code_digest(*FILES), "base": base, "packages": versions}
        return image_of(self, extra=extra, hidden_tests=base)

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        """Tasks whose hidden tests were seen to pass with the repair and to fail without it; the split unit is the changed
        file."""
        found = mined(self, count, seed)
        return TaskSet(raw=tuple(raw for raw, _ in found), tasks=tuple(task for _, task in found))

    def build(self, *, services: Services, seed: int) -> RepositoryEpisode:
        return RepositoryEpisode(services=services, repository=self.repository, seconds=self.shell_seconds,
                                 packages=self.packages)

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        """1.0 where the tests that the fault breaks pass, those that it does not break still do, and nothing was tampered
        with."""
        if not task.reference:
            return Ungraded(code="no_reference", detail="the task has no hidden tests")
        secret, base = json.loads(task.reference), start_of(self.repository, task)
        left = {path: data for path, data in base.items() if path not in state.facts["deleted"]}
        left.update({path: text.encode("utf-8", "surrogatepass") for path, text in state.artifacts.items()})
        hidden = {path: text.encode() for path, text in secret["hidden"].items()}
        found = tested(sandbox_of(services, self.packages), judged_files(base, left, hidden),
                       _files_of(secret["wanted"] + secret["kept"]))
        wanted, kept = (sum(name in found.passed for name in secret[part]) / max(len(secret[part]), 1) for part in ("wanted",
                                                                                                                    "kept"))
        whole = wanted == 1.0 and (kept == 1.0 or not secret["kept"]) and not found.tampered
        parts = {"repaired": wanted, "unbroken": kept if secret["kept"] else 1.0, "tampered": float(found.tampered)}
        said = "tampered with, " * found.tampered + f"{len(secret['wanted'])} hidden tests, {wanted:.0%} repaired, {found.ended}"
        return Grade(accuracy=float(whole), parts=parts, detail=said)

    def solutions(self, task: Task) -> Solutions:
        """The repair itself; wrong are nothing, a comment, and a program that leaves before it is tested."""
        gold = json.loads(task.reference)["gold"]
        repair = tuple(call("write", path=path, content=text) for path, text in gold.items())
        path = next(iter(gold))
        leaves = call("write", path=path, content="import os\nos._exit(0)\n")
        done = Action(text="Done.")
        return Solutions(gold=((*repair, done),), wrong=((done,), (call("shell", command=f"echo '# repaired' >> '{path}'"), done),
                                                         (leaves, done)))


def start_of(repository: str, task: Task) -> Tree:
    """The tree that a task begins with."""
    kind, _, text = task.initial_state.partition(":")
    if kind != "swe":
        raise EnvironmentFault("a task names no state of a repository", code="reset", got=task.initial_state[:80])
    return _start(json.loads(text).get("in", repository), text, task.reference)


@functools.lru_cache(maxsize=64)
def _start(repository: str, text: str, reference: str) -> Tree:
    begin = json.loads(text)
    hidden = json.loads(reference)["hidden"] if reference else {}
    if "fix" in begin:
        fix = repositories.Fix(commit=begin["fix"], parent=begin["parent"], message="", code=tuple(begin["code"]),
                               tests=tuple(begin["tests"]))
        return repositories.before(repository, fix)
    base = _base(repository, begin["base"])
    faulty = Mutation(**begin["mutation"])
    changed = faulty.applied(base[faulty.path].decode()).encode()
    return {path: changed if path == faulty.path else data for path, data in base.items() if path not in hidden}


def _base(repository: str, commit: str) -> Tree:
    if commit == SAMPLE:
        return {path: text.encode() for path, text in sample_project.FILES.items()}
    return repositories.tree(repository, commit)


def _files_of(tests: Sequence[str]) -> list[str]:
    return sorted({name.partition("::")[0] for name in tests})


def tested(sandbox: Sandbox, files: Tree, tests: Sequence[str]) -> Outcomes:
    return run_tests(sandbox, files, [path for path in tests if path in files], key=secrets.token_hex(32))


@functools.lru_cache(maxsize=8)
def mined(definition: Repository, count: int, seed: int) -> tuple[tuple[RawTask, Task], ...]:
    """`count` validated tasks; EnvironmentFault where the repository does not give so many."""
    found = _of_several(definition, count, seed) if definition.repositories else _drafts(definition, count, seed)
    if len(found) < count:
        told = Counter(draft.source for draft in found)
        each = "".join(f"; {told[name]} of {name}" for name in definition.repositories)
        raise EnvironmentFault("the repository does not give so many tasks", code="build", got=f"{len(found)} of {count}{each}",
                               why="a task needs tests that pass with the repair and fail without it, in the sandbox's Python",
                               fix="name what the tests import in `packages`, ask for fewer, search more commits, or use the "
                                   "other source")
    return tuple(draft.records() for draft in found)


def _drafts(definition: Repository, count: int, seed: int) -> list[Draft]:
    make = from_history if definition.source == "history" else from_mutations
    return make(definition, sandbox_with(definition.packages), count, seed)


def _of_several(definition: Repository, count: int, seed: int) -> list[Draft]:
    """The tasks of each repository, one of the first, one of the second and so on; what one does not give, the later ones do."""
    held: list[list[Draft]] = []
    for place, name in enumerate(definition.repositories):
        rest, lacking = len(definition.repositories) - place, count - sum(map(len, held))
        one = _drafts(dataclasses.replace(definition, repository=name, repositories=()), -(-lacking // rest), seed)
        held.append([_named(draft, name, place) for draft in one])
    return [draft for drawn in itertools.zip_longest(*held) for draft in drawn if draft is not None][:count]


def _named(draft: Draft, repository: str, place: int) -> Draft:
    """The draft with its repository in its state and its unit: two projects may have a file of one name."""
    begin = json.loads(draft.start.partition(":")[2])
    return dataclasses.replace(draft, start=f"swe:{json.dumps({**begin, 'in': repository}, sort_keys=True)}",
                               unit=f"swe:{place}:{draft.unit.partition(':')[2]}")


def from_mutations(definition: Repository, sandbox: Sandbox, count: int, seed: int) -> list[Draft]:
    """Tasks of single faults whose tests notice them."""
    commit = repositories.head(definition.repository) if definition.repository else SAMPLE
    base = _base(definition.repository, commit)
    waiting = [mutation for path, data in sorted(base.items()) if path.endswith(".py") and not is_test(path)
               for mutation in mutations(path, data.decode("utf-8", "replace"))]
    random.Random(f"swe/{seed}").shuffle(waiting)
    sound_by: dict[tuple[str, ...], Outcomes] = {}
    drafts: list[Draft] = []
    for mutation in waiting[:TRIES * count]:
        if len(drafts) == count:
            break
        tests = tests_near(base, mutation.path)
        if not tests:
            continue
        if tests not in sound_by:
            sound_by[tests] = tested(sandbox, base, tests)
        sound = sound_by[tests]
        changed = {**base, mutation.path: mutation.applied(base[mutation.path].decode()).encode()}
        found = tested(sandbox, changed, tests)
        wanted = sorted(name for name in sound.passed if name in found.failed)
        if not wanted or found.tampered:
            continue
        files = _files_of(wanted)
        secret = {"hidden": {path: base[path].decode() for path in files}, "wanted": wanted,
                  "kept": sorted(sound.passed & found.passed),
                  "gold": {mutation.path: base[mutation.path].decode()}}
        begin = {"base": commit, "mutation": {name: getattr(mutation, name) for name in mutation.__slots__}}
        names = ", ".join(sorted({name.partition("::")[2].partition("[")[0] for name in wanted})[:4])
        text = (f"`{mutation.function}` in `{mutation.path}` does not do what it should: {len(wanted)} of the project's tests "
                f"fail with it "
                f"({names}). Repair the code.")
        drafts.append(_draft(definition, text, secret, begin, unit=f"{commit[:12]}/{mutation.path}",
                             lineage={"kind": "mutation", "fault": mutation.kind, "function": mutation.function,
                                      "commit": commit}))
    return drafts


def tests_near(base: Tree, path: str) -> tuple[str, ...]:
    """The first test files that name a path's module, in full where any does: those that say whether a fault in it is noticed."""
    parts = [part for part in PurePosixPath(path).with_suffix("").parts if part != "src"]
    parts = parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts
    tests = [name for name in sorted(base) if is_test(name) and PurePosixPath(name).match("test*.py")]
    for words in (".".join(parts), parts[-1]):
        named = re.compile(rb"\b" + re.escape(words.encode()) + rb"\b")
        if near := tuple(name for name in tests if named.search(base[name]))[:NEAR]:
            return near
    return ()


def from_history(definition: Repository, sandbox: Sandbox, count: int, seed: int) -> list[Draft]:
    """Tasks of commits that changed code with its tests, from the newest on."""
    if not definition.repository:
        raise EnvironmentFault("history is mined from a repository", code="build", got="no repository", fix="give its folder")
    drafts: list[Draft] = []
    for fix in repositories.fixes(definition.repository, most=definition.commits):
        if len(drafts) == count:
            break
        now, then = repositories.tree(definition.repository, fix.commit), repositories.before(definition.repository, fix)
        hidden = {path: now[path] for path in fix.tests if path in now}
        sound, found = (tested(sandbox, {**files, **hidden}, sorted(hidden)) for files in (now, then))
        wanted, kept = sorted(sound.passed - found.passed), sorted(sound.passed & found.passed)
        gold = {path: now[path] for path in fix.code if path in now}
        if not wanted or not gold or sound.tampered or found.tampered or any(path in then
                                                                             and path not in now for path in fix.code):
            continue
        secret = {"hidden": {path: data.decode() for path, data in hidden.items()}, "wanted": wanted, "kept": kept,
                  "gold": {path: data.decode() for path, data in gold.items()}}
        begin = {"fix": fix.commit, "parent": fix.parent, "code": list(fix.code), "tests": list(fix.tests)}
        drafts.append(_draft(definition, f"{fix.message}\n\nChange the project so that this holds.", secret, begin,
                             unit=f"{fix.code[0]}", lineage={"kind": "history", "commit": fix.commit, "parent": fix.parent}))
    return drafts


def _draft(definition: Repository, text: str, secret: Mapping[str, Any], begin: Mapping[str, Any], *, unit: str,
           lineage: Mapping[str, str]) -> Draft:
    return Draft(family="swe", text=text, reference=json.dumps(secret, sort_keys=True), unit=f"swe:{unit}", system=SYSTEM,
                 start=f"swe:{json.dumps(begin, sort_keys=True)}", source=definition.repository or "rollbook sample project",
                 predicate="swe.hidden_tests", lineage=lineage, tools=("shell", "read", "write", "edit"), domain="programming",
                 licence="as given" if definition.repository else "CC0-1.0", budget=BUDGET)


@dataclass(slots=True)
class RepositoryEpisode(ToolEpisode):
    """One working copy. Its state is what differs from the tree it began with."""

    services: Services = field(kw_only=True, repr=False)
    repository: str = ""
    seconds: float = 30.0
    packages: tuple[str, ...] = ()
    session: Session | None = field(default=None, repr=False)
    base: Tree = field(default_factory=dict, repr=False)

    async def reset(self, task: Task) -> Observation:
        self.base = start_of(self.repository, task)
        self.session = await opened(self.services, self.base, DATED, packages=self.packages)
        text, line = {"type": "string"}, {"type": "integer", "minimum": 1}
        self.offered = {tool.schema.name: tool for tool in (
            Tool(schema=schema("shell", f"Runs a bash command, at most {self.seconds:g} s.", ("command",), command=text),
                 run=self._shell),
            Tool(schema=schema("read", "Shows a file, or lines first to last of it, numbered.", ("path",), path=text, first=line,
                               last=line),
                 run=self._read),
            Tool(schema=schema("write", "Writes a file.", ("path", "content"), path=text, content=text), run=self._write),
            Tool(schema=schema("edit", "Replaces a text that stands in a file exactly once.", ("path", "old", "new"), path=text,
                               old=text,
                               new=text), run=self._edit))}
        await within(self.session, lambda: self._session().shell(BEGIN, seconds=60.0, output_bytes=OUTPUT_BYTES))
        return Observation()

    async def close(self) -> None:
        if self.session is not None:
            self.session.close()

    def state(self) -> FinalState:
        """The changed and new text files as artifacts; `lost` where the sandbox was ended by what ran in it."""
        left = self._left()
        changed = {path: data for path, data in (left or {}).items() if self.base.get(path) != data}
        texts, binary = {}, []
        for path, data in sorted(changed.items()):
            try:
                texts[path] = data.decode("utf-8")
            except UnicodeDecodeError:
                binary.append(path)
        deleted = sorted(set(self.base) - set(left)) if left is not None else []
        return FinalState(facts={"answer": self.answer, "calls": self.calls, "deleted": deleted, "binary": binary,
                                 "lost": left is None},
                          artifacts=texts)

    def saved(self) -> dict[str, Any]:
        left = self._left() or {}
        return {"files": {path: data.decode("latin-1") for path, data in left.items() if self.base.get(path) != data},
                "deleted": sorted(set(self.base) - set(left))}

    def load(self, saved: Mapping[str, Any]) -> None:
        session = self._session()
        session.write({path: text.encode("latin-1") for path, text in saved["files"].items()})
        names = " ".join("'" + name.replace("'", "'\\''") + "'" for name in saved["deleted"])
        if names:
            session.shell(f"rm -f -- {names}", seconds=60.0, output_bytes=OUTPUT_BYTES)

    def _session(self) -> Session:
        assert self.session is not None
        return self.session

    def _left(self) -> dict[str, bytes] | None:
        try:
            left = self._session().export(limit=EXPORT_BYTES, without=LEFT_OUT)
        except SessionEnded:
            return None
        return left if isinstance(left, dict) else None

    async def _shell(self, arguments: Mapping[str, Any]) -> str:
        session, command = self._session(), arguments["command"]
        ran = await within(session, lambda: session.shell(command, seconds=self.seconds, output_bytes=OUTPUT_BYTES))
        return shown(ran, self.seconds, FILE_CHARACTERS)

    async def _content(self, path: str) -> str:
        session = self._session()
        found = await within(session, lambda: session.read(path, limit=2**21))
        if isinstance(found, str):
            raise Refused(f"{path[:200]}: {found}")
        try:
            return found.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refused(f"{path[:200]} is no text", "not_text") from error

    async def _put(self, path: str, content: str) -> None:
        session = self._session()
        data = content.encode("utf-8", "surrogatepass")
        if (wrong := await within(session, lambda: session.write({path: data}))) is not None:
            raise Refused(f"{path[:200]}: {wrong}")

    async def _read(self, arguments: Mapping[str, Any]) -> str:
        lines = (await self._content(arguments["path"])).splitlines()
        first, last = arguments.get("first", 1), min(arguments.get("last", len(lines)), len(lines))
        text = "\n".join(f"{number:5d}  {lines[number - 1]}" for number in range(first, last + 1))
        return text[:FILE_CHARACTERS] or "(no such lines)"

    async def _write(self, arguments: Mapping[str, Any]) -> str:
        await self._put(arguments["path"], arguments["content"])
        return f"wrote {arguments['path'][:200]}"

    async def _edit(self, arguments: Mapping[str, Any]) -> str:
        content, old = await self._content(arguments["path"]), arguments["old"]
        if not old or content.count(old) != 1:
            raise Refused(f"the old text stands there {content.count(old) if old else 0} times, not once")
        await self._put(arguments["path"], content.replace(old, arguments["new"]))
        return f"edited {arguments['path'][:200]}"
