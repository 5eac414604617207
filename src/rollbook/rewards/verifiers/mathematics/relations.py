"""Equations and inequalities: what is named, when two equations have the same solutions, when two inequalities say the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpmath import mp

from rollbook.rewards.verifiers.mathematics.equality import CONSTANTS, ENOUGH, POINTS, form, point, same_value
from rollbook.rewards.verifiers.mathematics.exact import TooLarge
from rollbook.rewards.verifiers.mathematics.nodes import (
    Malformed,
    Node,
    Undecided,
    Unsupported,
    negate,
    number,
    substitute,
    symbols,
)
from rollbook.rewards.verifiers.mathematics.numeric import NoValue, evaluate, is_real

DIGITS = 80
ZERO = number(0)


def is_equation(node: Node) -> bool:
    return node.kind == "chain" and set(node.operators) == {"="}


def is_order(node: Node) -> bool:
    return node.kind == "chain" and bool(set(node.operators) & {"<", ">", "le", "ge", "ne"})


def name_of(node: Node) -> str | None:
    """What an equation of the form name = value names: a symbol, a function of symbols, a tuple of symbols; None otherwise."""
    if not is_equation(node):
        return None
    left = node.args[0]
    if left.kind == "ratio" and all(arg.kind == "symbol" for arg in left.args):
        return ":".join(arg.name for arg in left.args)
    if left.kind == "symbol" and left.name not in symbols(node.args[-1]) - {"e", "i"}:
        return left.name
    if left.kind == "call" and left.name.startswith("of:"):
        return left.name if all(arg.kind == "symbol" for arg in left.args) else f"{left.name}{form(left)!r}"
    if not symbols(node.args[-1]) - CONSTANTS and _is_label(left):
        return repr(form(left))
    if left.kind == "divide" and all(_differential(arg) for arg in left.args):
        return "of:" + "/".join(arg.args[-1].name for arg in left.args)
    if left.kind == "brackets" and left.args and all(arg.kind == "symbol" for arg in left.args):
        return "(" + ",".join(arg.name for arg in left.args) + ")"
    return None


def _is_label(left: Node) -> bool:
    """Whether the left side of an equation with a number only says what the number is: AB, |AB|, sin A, p/q, an angle."""
    match left.kind:
        case "call":
            return left.value in ("abs", "sin", "cos", "tan", "cot", "det") and (left.value != "abs" or _is_label(left.args[0])) \
                and all(part.kind in ("symbol", "multiply", "call") for part in left.walk())
        case "multiply":
            names = [arg.name for arg in left.args if arg.kind == "symbol"]
            return len(names) == len(left.args) and (all(name.isupper()
                                                         for name in names) or any("angle" in name for name in names))
        case "divide":
            return all(arg.kind == "symbol" and arg.name not in CONSTANTS for arg in left.args)
        case _:
            return False


def _differential(node: Node) -> bool:
    return node.kind == "multiply" and [arg.kind for arg in node.args] == ["symbol", "symbol"] and node.args[0].name == "d"


def value_of(node: Node) -> Node:
    """The last side of a chain of equations."""
    return node.args[-1]


def arguments(node: Node) -> tuple[str, ...]:
    """The bound arguments of a definition f(x) = .."""
    left = node.args[0]
    return tuple(arg.name for arg in left.args if arg.kind == "symbol") if left.kind == "call" else ()


def renamed(answer: Node, wanted: Node) -> Node:
    """The value of a definition with its arguments named as in the other definition."""
    value = value_of(answer)
    old, new = arguments(answer), arguments(wanted)
    if old == new or len(old) != len(new) or (set(new) - set(old)) & symbols(value):
        return value if old == new else Node("words", value="another definition")
    for index, name in enumerate(old):
        value = substitute(value, name, Node("symbol", value=f"argument {index}"))
    for index, name in enumerate(new):
        value = substitute(value, f"argument {index}", Node("symbol", value=name))
    return value


def difference(left: Node, right: Node) -> Node:
    return Node("add", (left, negate(right)))


def same_equation(answer: Node, wanted: Node) -> bool:
    """Whether two equations hold for the same values: one is a constant multiple of the other, also after clearing fractions.

    Two equations that always hold are the same only if their sides are: 1+1=2 is not 2+2=4.
    """
    if len(answer.args) != 2 or len(wanted.args) != 2:
        return len(answer.args) == len(wanted.args) and _same_sides(answer.args, wanted.args)
    one, other = difference(*answer.args), difference(*wanted.args)
    trivial = same_value(one, ZERO), same_value(other, ZERO)
    if any(trivial):
        forms = [sorted(repr(form(arg)) for arg in node.args) for node in (answer, wanted)]
        return all(trivial) and forms[0] == forms[1]
    if symbols(one) - CONSTANTS != symbols(other) - CONSTANTS:
        return False
    if not symbols(one) - CONSTANTS:
        return _same_sides(answer.args, wanted.args)
    return proportional(one, other) is not None or _same_numerators(one, other)


def _same_sides(left: Sequence[Node], right: Sequence[Node]) -> bool:
    return all(same_value(one, other) for one, other in zip(left, right, strict=True))


def proportional(one: Node, other: Node) -> Any | None:
    """The constant c with one = c other at every sample point, None where there is none (or it is zero)."""
    names = sorted((symbols(one) | symbols(other)) - CONSTANTS)
    pairs = []
    with mp.workdps(DIGITS):
        for index in range(POINTS):
            try:
                pair = evaluate(one, point(names, index)), evaluate(other, point(names, index))
            except NoValue:
                continue
            except TooLarge:
                raise Undecided("an equation with numbers too large to be computed") from None
            if all(is_real(value) for value in pair):
                pairs.append(pair)
        usable = [pair for pair in pairs if abs(pair[1]) > mp.mpf(10) ** -10]
        if len(pairs) < ENOUGH or not usable:
            return None
        ratio = usable[0][0] / usable[0][1]
        close = all(abs(a - ratio * b) <= mp.mpf(10) ** -50 * max(1, abs(a), abs(ratio * b)) for a, b in pairs)
        return mp.re(ratio) if close and ratio != 0 else None


def _same_numerators(one: Node, other: Node) -> bool:
    """The same after multiplying with the denominators: xy=1 and y=1/x."""
    import sympy

    from rollbook.rewards.verifiers.mathematics.symbolic import expression

    if not any(_in_denominator(part) for node in (one, other) for part in node.walk()):
        return False
    try:
        above = [sympy.fraction(sympy.together(expression(node, {})))[0].expand() for node in (one, other)]
    except Unsupported:
        return False
    if above[1] == 0 or not all(part.is_polynomial() for part in above):
        return False
    ratio = sympy.cancel(above[0] / above[1])
    return bool(ratio.is_number and ratio != 0)


def _in_denominator(part: Node) -> bool:
    """Whether a symbol is divided by."""
    if part.kind == "divide":
        return bool(symbols(part.args[1]) - CONSTANTS)
    raised = part.args[1] if part.kind == "power" else ZERO
    return (raised.kind == "negate"
            or (raised.kind == "number" and raised.number < 0)) and bool(symbols(part.args[0]) - CONSTANTS)


def links(node: Node) -> list[tuple[Node, str]]:
    """The inequalities that a chain or a conjunction states, each as an expression that is above (or not below, or not) zero."""
    if node.kind in ("all_of", "list"):
        return [link for arg in node.args for link in links(arg)]
    if node.kind != "chain":
        raise Unsupported(f"{node.kind} as a condition")
    found = []
    for left, operator, right in zip(node.args, node.operators, node.args[1:], strict=False):
        if operator in ("<", "le"):
            left, right, operator = right, left, {"<": ">", "le": "ge"}[operator]
        if operator in ("in", "notin"):
            raise Unsupported("membership as a condition")
        found.append((difference(left, right), operator))
    return found


def same_conditions(answer: Node, wanted: Node) -> bool:
    """Whether two systems of inequalities in several variables are the same, one by one, up to positive factors."""
    left, right = links(answer), links(wanted)
    if len(left) != len(right):
        return False
    for expression, operator in right:
        match = next((index for index,
                      (other, sign) in enumerate(left) if sign == operator and _same_side(other, expression, sign)),
                     None)
        if match is None:
            return False
        left.pop(match)
    return True


def _same_side(one: Node, other: Node, operator: str) -> bool:
    try:
        ratio = proportional(one, other)
    except Malformed:
        return False
    return ratio is not None and (ratio > 0 or operator in ("ne", "="))
