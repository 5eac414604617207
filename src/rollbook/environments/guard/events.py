"""What a policy did, in the form that the guard's rules read: one deed for each call, edit, query or text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from rollbook.records import Action, ToolCall

DeedKind = Literal["shell", "code", "write", "edit", "read", "search", "sql", "program", "text", "other"]
FENCE = re.compile(r"```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
TEST_FILE = re.compile(r"^(?:test_.*|.*_tests?|tests?|conftest)\.(?:py|js|ts|cc|cpp|go|rs)$|^.*\.(?:spec|test)\.[jt]sx?$")
TEST_FOLDERS = frozenset({"test", "tests", "testing", "spec", "__tests__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the guard knows of a task. `protected` are places out of bounds, `examples` the (input, output) tests that the prompt
    shows, `limit_s` the time of an episode or program.

    Example: Setting(where="code", task="Print n factorial.", examples=(("5", "120"),), limit_s=4.0)
    """

    where: str = ""
    task: str = ""
    protected: tuple[str, ...] = ()
    examples: tuple[tuple[str, str], ...] = ()
    limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One thing that a policy did: a shell command, code that it ran, a file it wrote (`old` is what an edit replaces), a file or
    page it opened, a search, an SQL statement, a program that is its answer, or a text.

    Example: Deed(kind="edit", path="src/a.py", text="return 2", old="return 1")
    """

    kind: DeedKind
    text: str = ""
    path: str = ""
    old: str = ""

    @property
    def in_tests(self) -> bool:
        """Whether its path is a test's: by name, or by a folder it is in."""
        return is_test(self.path)


def is_test(path: str) -> bool:
    """Whether a path looks like a test file or something beside one."""
    parts = PurePosixPath(path).parts
    return bool(parts) and (bool(TEST_FILE.match(parts[-1])) or any(part in TEST_FOLDERS for part in parts[:-1]))


def deeds(action: Action) -> Iterator[Deed]:
    """What one turn of a policy did, in order."""
    for call in action.calls:
        yield deed_of(call)
    if not action.calls:
        blocks = FENCE.findall(action.text)
        yield Deed(kind="text", text=action.text)
        yield from (Deed(kind="program", text=code, path=language.lower()) for language, code in blocks[-1:] if code.strip())


def deed_of(call: ToolCall) -> Deed:
    """A call by the name of its tool and of its arguments."""
    given = call.arguments

    def text(*names: str) -> str:
        return next((str(given[name]) for name in names if name in given), "")

    match call.name:
        case "shell" | "bash" | "terminal" | "execute_bash":
            return Deed(kind="shell", text=text("command", "cmd", "code"))
        case "python" | "ipython" | "run" | "execute":
            return Deed(kind="code", text=text("code", "source"))
        case "write" | "create" | "write_file":
            return Deed(kind="write", path=text("path", "file"), text=text("content", "text"))
        case "edit" | "replace" | "str_replace":
            return Deed(kind="edit", path=text("path", "file"), text=text("new", "new_str"), old=text("old", "old_str"))
        case "read" | "view" | "read_file" | "open":
            return Deed(kind="read", path=text("path", "file", "name", "number"), text=text("name"))
        case "search":
            return Deed(kind="search", text=text("query", "text"))
        case "query" | "sql":
            return Deed(kind="sql", text=text("sql", "query"))
        case "answer" | "submit" | "say":
            return Deed(kind="text", text=text("text", "answer"))
        case _:
            return Deed(kind="other", path=call.name, text=_flat(given))


def _flat(given: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in given.items())
