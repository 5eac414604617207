"""Integer arithmetic expressions: exact value, operands, and the canonical problem in which commuted forms are equal.

Limit: only + - * / , parentheses and integers; anything else is refused, nothing is ever evaluated as Python.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from fractions import Fraction

from rollbook.tasks.errors import TaskError

NUMBER = re.compile(r"\d+(?:\.\d+)?")
MAX_CHARACTERS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A parsed problem. `operands` are the unsigned integers in reading order.

    `terms` are the signed terms of a plain sum, `factors` the factors of a plain product; None for the other shapes.

    Example: parse("23 - 8") == Expression(text="23 - 8", value=Fraction(15), operands=(23, 8), terms=(23, -8),
        factors=None, canonical="sum:-8+23")
    """

    text: str
    value: Fraction
    operands: tuple[int, ...]
    terms: tuple[int, ...] | None
    factors: tuple[int, ...] | None
    canonical: str


def numbers(text: str) -> tuple[str, ...]:
    """The unsigned numbers of a text, in reading order.

    Example: numbers("Calculate 5 - 3.") == ("5", "3")
    """
    return tuple(NUMBER.findall(text))


def parse(text: str) -> Expression:
    """The expression of a text such as `23 + 38`; a trailing `=` is ignored."""
    source = text.strip().removesuffix("=").strip()
    if not source or len(source) > MAX_CHARACTERS or re.search(r"[^\d\s()+*/-]", source):
        raise TaskError("not an integer arithmetic expression", got=repr(text[:80]),
                        why=f"only integers, + - * / and parentheses up to {MAX_CHARACTERS} characters are read")
    try:
        node = ast.parse(source, mode="eval").body
        value = _value(node)
    except (SyntaxError, RecursionError, ZeroDivisionError) as error:
        raise TaskError("an arithmetic expression that has no value", got=repr(text[:80]), why=str(error)) from error
    signed = _terms(node, 1)
    return Expression(text=source, value=value, operands=tuple(int(number) for number in numbers(source)),
                      terms=_plain_terms(signed), factors=_plain_factors(node), canonical=_canonical(signed))


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() as number):
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return _value(inner)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _value(left) - _value(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left) * _value(right)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _value(left) / _value(right)
    raise TaskError("an arithmetic expression with an unknown operation", got=type(node).__name__)


def _terms(node: ast.expr, sign: int) -> list[tuple[int, str]]:
    """Signed atoms whose sum is `sign * node`; an atom is an integer or the canonical text of a product."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _terms(inner, -sign)
        case ast.UnaryOp(operand=inner):
            return _terms(inner, sign)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _terms(left, sign) + _terms(right, sign)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _terms(left, sign) + _terms(right, -sign)
        case ast.BinOp():
            parts = _parts(node, "*")
            for part_sign, _, _ in parts:
                sign *= part_sign
            above = sorted((atom for _, side, atom in parts if side == "*"), key=_order)
            below = sorted((atom for _, side, atom in parts if side == "/"), key=_order)
            return [(sign, "*".join(above) + "".join(f"/{atom}" for atom in below))]
    return [(sign, ast.unparse(node))]


def _parts(node: ast.expr, side: str) -> list[tuple[int, str, str]]:
    """The factors of a product: sign, whether it multiplies or divides, canonical text."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        other = {"*": "/", "/": "*"}[side]
        right = other if isinstance(node.op, ast.Div) else side
        return _parts(node.left, side) + _parts(node.right, right)
    if isinstance(node, ast.UnaryOp):
        factor = -1 if isinstance(node.op, ast.USub) else 1
        (sign, first, atom), *rest = _parts(node.operand, side)
        return [(factor * sign, first, atom), *rest]
    inner = _terms(node, 1)
    if len(inner) == 1:
        return [(inner[0][0], side, inner[0][1])]
    return [(1, side, f"({_sum_text(inner)})")]


def _order(atom: str) -> tuple[int, int, str]:
    return (0, int(atom), "") if atom.isdigit() else (1, 0, atom)


def _sum_text(signed: list[tuple[int, str]]) -> str:
    """Terms in a fixed order; zero has no sign, so that 5 - 0 and 5 + 0 are one problem."""
    shown = [(1 if atom == "0" else sign, atom) for sign, atom in signed]
    ordered = sorted(shown, key=lambda term: (_order(term[1]), term[0]))
    return "".join(f"{'+' if sign > 0 else '-'}{atom}" for sign, atom in ordered)


def _canonical(signed: list[tuple[int, str]]) -> str:
    if all(atom.isdigit() for _, atom in signed):
        return f"sum:{_sum_text(signed)}"
    if len(signed) == 1 and re.fullmatch(r"\d+(\*\d+)+", signed[0][1]):
        return f"product:{'-' if signed[0][0] < 0 else ''}{signed[0][1]}"
    return f"expression:{_sum_text(signed)}"


def _plain_terms(signed: list[tuple[int, str]]) -> tuple[int, ...] | None:
    return tuple(sign * int(atom) for sign, atom in signed) if all(atom.isdigit() for _, atom in signed) else None


def _plain_factors(node: ast.expr) -> tuple[int, ...] | None:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return None
    parts = _parts(node, "*")
    if all(side == "*" and atom.isdigit() for _, side, atom in parts):
        return tuple(sign * int(atom) for sign, _, atom in parts)
    return None
