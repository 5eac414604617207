"""Where untrusted programs run: what a sandbox is asked, what it answers, and the protocols through which others use one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal, Protocol

from rollbook.records.errors import RecordError, RollbookError

Strength = Literal["isolated", "weak"]
Limit = Literal["wall", "cpu", "memory", "output", "file_size"]      # those that end a program; the others refuse inside it
Language = Literal["python", "cpp"]
SOURCE_NAME = "program.py"                                           # what a Python source is called in its working directory
NoAnswerCode = Literal["not_compiled", "limit", "signal", "exit_status", "no_result", "not_plain_data", "not_text"]


class SandboxError(RollbookError):
    """A sandbox that cannot do its work; never the fault of the program, so never a reward of zero."""


class MissingTool(SandboxError):
    """A program of the system that is not installed; `tool` names it and `fix` says what to install."""

    def __init__(self, what: str, *, tool: str, why: str | None = None, fix: str | None = None):
        super().__init__(what, why=why, fix=fix)
        self.tool = tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one execution may use. `memory_bytes` and `cpu_s` are sums over all its processes.

    Beyond `wall_s`, `cpu_s`, `memory_bytes` or `output_bytes` (of standard output or of standard error) everything is killed.
    More than `processes` (threads count), files beyond `file_bytes` and files beyond `disk_bytes` in all are refused inside.

    Example: Limits(wall_s=4.0, cpu_s=4.0, memory_bytes=300_000_000, processes=32, file_bytes=2**24, disk_bytes=2**26,
        output_bytes=2**20)
    """

    wall_s: float
    cpu_s: float
    memory_bytes: int
    processes: int
    file_bytes: int
    disk_bytes: int
    output_bytes: int

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise RecordError(f"limits.{name} must be positive", got=str(getattr(self, name)),
                                  why="nothing can run in nothing, and no limit is not a limit of zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One request: a Python `source`, or an `argv` (never both), with its own files, input and the whole of its environment.

    `files` are laid in the empty working directory, by name or relative path. `environment` is all that is added to PATH, HOME,
    LANG and TMPDIR: nothing is inherited.

    Example: Program(source=b"print(input())", stdin=b"7", limits=Limits(...))
    """

    limits: Limits
    source: bytes | None = None
    argv: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.source is None) == (not self.argv):
            raise RecordError("a program is either a Python source or an argv", got="both" if self.argv else "neither")
        for name in self.files:
            path = PurePosixPath(name)
            if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
                raise RecordError("a file of a program lies outside its working directory", got=repr(name),
                                  fix="use a relative path without '..'")
        if self.source is not None and SOURCE_NAME in self.files:
            raise RecordError(f"{SOURCE_NAME} is the name of the source and of a file", fix="give the file another name")
        if (size := sum(map(len, self.files.values())) + len(self.source or b"")) > self.limits.disk_bytes:
            raise RecordError("the files of a program do not fit its limit of disk", got=f"{size} bytes")
        for text in (*self.argv, *self.environment, *self.environment.values()):
            if "\0" in text:
                raise RecordError("an argument or variable of a program holds a NUL", got=repr(text)[:80])
        if bad := [name for name in self.environment if not name or "=" in name]:
            raise RecordError("a variable of a program has no usable name", got=repr(bad[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """The program ended by itself.

    Example: Exited(status=0)
    """

    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Signalled:
    """A signal ended the program, and no limit of the sandbox sent it.

    Example: Signalled(signal=11)
    """

    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceeded:
    """The program went beyond a limit and was killed with everything it had started, or was seen beyond it at its end.

    Example: Exceeded(limit="memory")
    """

    limit: Limit


Ending = Exited | Signalled | Exceeded


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What a program wrote to one descriptor, up to the limit; `truncated` when there was more.

    Example: Captured(data=b"7\\n")
    """

    data: bytes
    truncated: bool = False

    def text(self) -> str | None:
        """The data as UTF-8; None where it is not text."""
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError:
            return None

    def shown(self, limit: int = 400) -> str:
        """The data for a person's terminal: no control character is left, so nothing can move a cursor or hide a line."""
        text = self.data[:4 * limit].decode("utf-8", "backslashreplace")
        safe = "".join(mark if mark == "\n" or mark.isprintable() else mark.encode("unicode_escape").decode() for mark in text)
        return safe if len(safe) <= limit and not self.truncated else safe[:limit] + "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStamp:
    """Which sandbox ran a program: `digest` covers its code, settings and the versions it stands on.

    `unenforced` names what a weak backend does not hold back: it is empty for an isolated one.

    Example: SandboxStamp(name="bubblewrap", strength="isolated", digest="9c1e..", unenforced=())
    """

    name: str
    strength: Strength
    digest: str
    unenforced: tuple[str, ...]

    def __post_init__(self) -> None:
        if (self.strength == "weak") != bool(self.unenforced):
            raise RecordError("a sandbox is weak exactly where it leaves something unenforced", got=f"{self.strength}, "
                              f"{self.unenforced}", why="a weak sandbox must not pass for an isolated one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What came of a program. How it ended is what the kernel reported, not what the program said.

    `cpu_s` and `peak_bytes` (the largest memory seen) are None where the backend does not see them.

    Example: Execution(ending=Exited(status=0), stdout=Captured(data=b"7\\n"), stderr=Captured(data=b""), wall_s=0.01,
        cpu_s=0.008, peak_bytes=12_000_000, sandbox=SandboxStamp(...))
    """

    ending: Ending
    stdout: Captured
    stderr: Captured
    wall_s: float
    cpu_s: float | None
    peak_bytes: int | None
    sandbox: SandboxStamp


class Sandbox(Protocol):
    """Runs programs, from any thread; what the program does is an `Execution`, what the sandbox fails at a `SandboxError`."""

    stamp: SandboxStamp

    def run(self, program: Program) -> Execution: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A program to be tested. Without `function` it reads a test's input and prints; with it, that function is called.

    `function` is a name, or `Class.method` of a class made without arguments; Python only.

    Example: Solution(language="python", source="def solve(a, b):\\n    return a + b\\n", function="solve")
    """

    language: Language
    source: str
    function: str | None = None

    def __post_init__(self) -> None:
        if self.function is not None and self.language != "python":
            raise RecordError("only a Python solution is tested by calling its function", got=self.language)
        if self.function is not None and not all(part.isidentifier() for part in self.function.split(".")):
            raise RecordError("a function's name is an identifier or Class.method", got=repr(self.function))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a solution gave on one test: printed text, or plain data (str, int, finite float, bool, None, lists, dicts).

    Plain data was decoded outside the solution's process, so no method of the solution takes part in a comparison.

    Example: Answer(value="7\\n")
    """

    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAnswer:
    """Why there is nothing to compare: the solution's doing, hence a failed test.

    Example: NoAnswer(code="limit", detail="wall")
    """

    code: NoAnswerCode
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempted:
    """One test's answer with the execution it came from; None where the solution did not compile.

    Example: Attempted(answer=Answer(value="7\\n"), execution=Execution(...))
    """

    answer: Answer | NoAnswer
    execution: Execution | None


class SolutionRunner(Protocol):
    """Runs a solution on the inputs of its tests, in order, one `Attempted` each. Expected outputs have no way in.

    An input is the bytes of standard input, or the list of arguments where a function is called.
    """

    def attempt(self, solution: Solution, inputs: Sequence[bytes] | Sequence[Sequence[Any]]) -> tuple[Attempted, ...]: ...
