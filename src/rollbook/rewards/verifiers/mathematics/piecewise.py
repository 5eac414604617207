"""Piecewise definitions in one variable, compared by what they give: exactly, at, beside and between all numbers they name."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from fractions import Fraction

from rollbook.rewards.verifiers.mathematics.equality import CONSTANTS
from rollbook.rewards.verifiers.mathematics.exact import TooLarge, exact
from rollbook.rewards.verifiers.mathematics.nodes import Malformed, Node, symbols

ELSE = frozenset({"otherwise", "else", "elsewhere"})
ORDER: Mapping[str, Callable[[Fraction, Fraction], bool]] = {
    "<": operator.lt, ">": operator.gt, "le": operator.le, "ge": operator.ge, "=": operator.eq, "ne": operator.ne}
BESIDE = (Fraction(0), Fraction(1, 97), Fraction(-1, 97), Fraction(3, 7), Fraction(-3, 7))
FAR = tuple(Fraction(numerator, 13) for numerator in (-5000, -991, -307, -101, -29, 29, 101, 307, 991, 5000))
MOST = 60           # different numbers in two answers; more are not looked at
LARGEST = 10**6


class Unknown(Exception):
    """A condition or value that is not decided by exact arithmetic."""


def same_piecewise(answer: Node, wanted: Node) -> bool | None:
    """Whether both give the same at every point that is tried, and nothing at the same points; None where that is not known."""
    names = (symbols(answer) | symbols(wanted)) - CONSTANTS
    if len(names) != 1:
        return None
    [name] = names
    try:
        bounds = {part.number for node in (answer, wanted) for part in node.walk() if part.kind == "number"
                  and abs(part.number) <= LARGEST}
        if len(bounds) > MOST:
            return None
        near = {sign * bound + beside for bound in {*bounds, Fraction(0)} for sign in (1, -1) for beside in BESIDE}
        return all(_value(answer, {name: point}) == _value(wanted, {name: point}) for point in sorted(near | set(FAR)))
    except (Unknown, TooLarge, Malformed):
        return None


def _value(node: Node, at: Mapping[str, Fraction]) -> Fraction | None:
    """What a definition gives at a point; None where none of its conditions holds."""
    if node.kind == "cases":
        for row in node.args:
            if len(row.args) != 2:
                raise Unknown
            if _holds(row.args[1], at):
                return _value(row.args[0], at)
        return None
    found = exact(node, at)
    if found is None:
        raise Unknown
    return found


def _holds(condition: Node, at: Mapping[str, Fraction]) -> bool:
    match condition.kind:
        case "words" if condition.name.strip(" .").casefold() in ELSE:
            return True
        case "all_of" | "list":
            return all(_holds(part, at) for part in condition.args)
        case "any_of":
            return any(_holds(part, at) for part in condition.args)
        case "chain":
            return all(_related(one, sign, other, at) for one, sign, other in
                       zip(condition.args, condition.operators, condition.args[1:], strict=False))
        case _:
            raise Unknown


def _related(one: Node, sign: str, other: Node, at: Mapping[str, Fraction]) -> bool:
    value = exact(one, at)
    if value is None:
        raise Unknown
    if sign in ("in", "notin") and other.kind == "brackets" and len(other.args) == 2 and isinstance(other.value, str):
        low, high = (None if part.kind == "infinity" or (part.kind == "negate" and part.args[0].kind == "infinity")
                     else _number(part, at) for part in other.args)
        above = low is None or (value >= low if other.value[0] == "[" else value > low)
        below = high is None or (value <= high if other.value[1] == "]" else value < high)
        return (above and below) == (sign == "in")
    if sign not in ORDER:
        raise Unknown
    return ORDER[sign](value, _number(other, at))


def _number(node: Node, at: Mapping[str, Fraction]) -> Fraction:
    found = exact(node, at)
    if found is None:
        raise Unknown
    return found
