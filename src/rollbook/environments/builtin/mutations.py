"""Synthetic faults: one small change of a function's source, made where its syntax tree says so, its text otherwise kept."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARE: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is")}
BINARY: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"),
                                                     ast.Div: ("/", "*")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A change of one file: the text at `start` to `end` (offsets) becomes `new`. `function` is the dotted name it is in.

    Example: Mutation(path="a.py", function="Box.area", kind="compare", start=120, end=121, new="<=", line=7)
    """

    path: str
    function: str
    kind: str
    start: int
    end: int
    new: str
    line: int

    def applied(self, source: str) -> str:
        return source[:self.start] + self.new + source[self.end:]


def mutations(path: str, source: str) -> Iterator[Mutation]:
    """All single faults of a file's functions, in the order of the file; none where it is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    if not source.isascii():
        return                               # offsets of the tree count bytes
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for function, name in _functions(tree, ""):
        for node in ast.walk(function):
            for kind, start, end, new in _of(node, source, starts):
                mutation = Mutation(path=path, function=name, kind=kind, start=start, end=end, new=new,
                                    line=getattr(node, "lineno", 0))
                if _parses(mutation.applied(source)):
                    yield mutation


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[ast.AST, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child, f"{prefix}{child.name}"
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _of(node: ast.AST, source: str, starts: list[int]) -> Iterator[tuple[str, int, int, str]]:
    def begin(part: ast.expr) -> int:
        return starts[part.lineno - 1] + part.col_offset

    def finish(part: ast.expr) -> int:
        return starts[(part.end_lineno or 1) - 1] + (part.end_col_offset or 0)

    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARE:
            yield from _between("compare", source, finish(left), begin(right), *COMPARE[type(op)])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            yield from _between("arithmetic", source, finish(left), begin(right), *BINARY[type(op)])
        case ast.BoolOp(op=op, values=[left, right]):
            old, new = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
            yield from _between("logic", source, finish(left), begin(right), old, new)
        case ast.Constant(value=bool() as value):
            yield "constant", begin(node), finish(node), str(not value)
        case ast.Constant(value=int() as value) if -1000 < value < 1000:
            yield "constant", begin(node), finish(node), str(value + 1)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "condition", begin(test), finish(test), f"not ({source[begin(test):finish(test)]})"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return", begin(value), finish(value), "None"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "logic", begin(node), begin(operand), ""


def _between(kind: str, source: str, start: int, end: int, old: str, new: str) -> Iterator[tuple[str, int, int, str]]:
    """The operator in the text between two operands, where it stands there once."""
    text = source[start:end]
    if text.count(old) == 1 and "#" not in text:
        place = start + text.index(old)
        yield kind, place, place + len(old), new


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True
