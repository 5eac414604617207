"""Law 12: files of at most 400 lines, functions of at most 50, at most 7 parameters. Exceptions are listed with a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src" / "rollbook"
FILE_LINES, FUNCTION_LINES, PARAMETERS = 400, 50, 7
EXCEPTIONS: dict[str, str] = {}  # "package/file.py" or "package/file.py::function" -> why one screen is not enough


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def too_long(name: str, text: str) -> Iterator[tuple[str, str]]:
    """(name, what is too much) of a file and its functions; decorators and `self` do not count."""
    if (lines := len(text.splitlines())) > FILE_LINES:
        yield name, f"{lines} lines"
    for node in functions(ast.parse(text)):
        where = f"{name}::{node.name}"
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES:
            yield where, f"{lines} lines"
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        count = sum(argument.arg not in ("self", "cls") for argument in arguments)
        if count > PARAMETERS:
            yield where, f"{count} parameters"


FOUND = [item for file in sorted(SOURCE.rglob("*.py"))
         for item in too_long(file.relative_to(SOURCE).as_posix(), file.read_text(encoding="utf-8"))]


def test_every_file_and_function_fits_one_screen() -> None:
    assert not [f"{name}: {excess}" for name, excess in FOUND if name not in EXCEPTIONS]


def test_no_exception_outlives_its_need() -> None:
    assert not set(EXCEPTIONS) - {name for name, _ in FOUND}
    assert all(reason.strip() for reason in EXCEPTIONS.values())


def test_the_measure_sees_what_is_too_long() -> None:
    text = "def f(a, b, c, d, e, f, g, h):\n" + "    x = 1\n" * 400
    assert [what for _, what in too_long("x.py", text)] == ["401 lines", "401 lines", "8 parameters"]
    assert not list(too_long("x.py", "class C:\n    def f(self, a, b, c, d, e, f, *, g): ...\n"))
