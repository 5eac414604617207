"""Numbers that are too large to be written out, by their size: e^e^...^x with as many exponentials as it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any

from mpmath import mp

from rollbook.rewards.verifiers.mathematics.exact import TooLarge, exact, integer_root
from rollbook.rewards.verifiers.mathematics.nodes import Malformed, Node, Unsupported, number
from rollbook.rewards.verifiers.mathematics.numeric import NoValue, evaluate

TOP = 10 ** 6
CLOSE = mp.mpf(10) ** -9


@dataclass(frozen=True, slots=True)
class Size:
    """The absolute value exp(exp(..x)) with `level` exponentials; at level 1 and above x is between ln(TOP) and TOP.

    Example: Size(1, 32.6) is about 10^14.2
    """

    level: int
    x: Any

    def log(self) -> Size:
        return Size(self.level - 1, self.x) if self.level else normal(mp.log(self.x))


def normal(value: Any, level: int = 0) -> Size:
    while abs(value) > TOP:
        value, level = mp.log(value), level + 1
    return Size(level, value)


def size(node: Node) -> Size | None:
    """The size of the absolute value; None where it cannot be told, as for a difference of equal sizes."""
    try:
        with mp.workdps(60):
            return normal(abs(evaluate(node, {})))
    except (TooLarge, OverflowError):
        pass
    except (NoValue, Unsupported):
        return None
    with mp.workdps(60):
        match node.kind:
            case "negate":
                return size(node.args[0])
            case "power":
                return _power(*node.args)
            case "multiply":
                return reduce(_product, map(size, node.args))
            case "divide":
                return _product(size(node.args[0]), size(node.args[1]), -1)
            case "add":
                return _sum([size(arg) for arg in node.args])
            case "call" if node.value == "factorial":
                inner = size(node.args[0])
                return None if inner is None else _exp(_product(inner, inner.log()))
            case _:
                return None


def _exp(size_: Size | None) -> Size | None:
    if size_ is None:
        return None
    return Size(size_.level + 1, size_.x) if size_.level or size_.x > mp.log(TOP) else normal(mp.exp(size_.x))


def _power(base: Node, exponent: Node) -> Size | None:
    """b^e = exp(e ln b), for a base above one and a positive exponent."""
    below, above = size(base), size(exponent)
    if below is None or above is None or (below.level == 0 and below.x <= 1) or _sign(base) < 0 or _sign(exponent) <= 0:
        return None
    return _exp(_product(above, below.log()))


def _sign(node: Node) -> int:
    """1 or -1 where the sign is plain to see, 0 otherwise."""
    match node.kind:
        case "number":
            return (node.number > 0) - (node.number < 0)
        case "negate":
            return -_sign(node.args[0])
        case "power":
            return 1 if _sign(node.args[0]) > 0 else 0
        case "multiply" | "divide":
            return math.prod(map(_sign, node.args))
        case "call":
            return 1 if node.value == "factorial" else 0
        case "symbol":
            return 1 if node.value in ("pi", "e") else 0
        case "add":
            signs = {_sign(arg) for arg in node.args}
            return signs.pop() if len(signs) == 1 else 0
        case _:
            return 0


def _product(left: Size | None, right: Size | None, direction: int = 1) -> Size | None:
    """The product or the quotient of two sizes; what is far smaller than the other in its exponent does not count."""
    if left is None or right is None or (right.level == 0 and right.x <= 0) or (left.level == 0 and left.x <= 0):
        return None
    if left.level == right.level == 0:
        return normal(left.x * right.x if direction > 0 else left.x / right.x)
    logs = left.log(), right.log()
    if logs[0].level == logs[1].level == 0:
        total = logs[0].x + direction * logs[1].x
        return _exp(normal(total)) if total > 0 else None
    larger, smaller = sorted(logs, key=lambda one: (one.level, one.x), reverse=True)
    if larger.level == smaller.level and abs(larger.x - smaller.x) <= CLOSE * abs(larger.x):
        return None
    return _exp(larger) if larger is logs[0] or direction > 0 else None


def _sum(parts: list[Size | None]) -> Size | None:
    known = sorted((part for part in parts if part is not None), key=lambda one: (one.level, one.x), reverse=True)
    if len(known) < len(parts):
        return None
    first, second = known[0], known[1]
    if (first.level, first.level) == (second.level,
                                      0) or (abs(first.x - second.x) <= CLOSE * abs(first.x) and first.level == second.level):
        return None
    return first


def different(left: Node, right: Node) -> bool:
    """Whether two numbers are surely different by their size or their sign; False where that does not show."""
    if _sign(left) * _sign(right) < 0 or (_sign(left) != 0 and _is_zero(right)) or (_sign(right) != 0 and _is_zero(left)):
        return True
    one, other = size(left), size(right)
    if one is None or other is None:
        return False
    if one.level != other.level:
        return True
    return bool(abs(one.x - other.x) > CLOSE * max(abs(one.x), abs(other.x)))


def _is_zero(node: Node) -> bool:
    try:
        return exact(node) == 0
    except (TooLarge, Malformed):
        return False


def as_power(node: Node) -> tuple[int, Node] | None:
    """A power of a whole number as base and exponent, the base no power itself: 9^n is 3^(2n)."""
    if node.kind != "power":
        return None
    base = _whole(node.args[0])
    if base is None:
        inner = as_power(node.args[0])
        return None if inner is None else (inner[0], Node("multiply", (inner[1], node.args[1])))
    for index in range(base.bit_length(), 1, -1):
        found = integer_root(base, index)
        if found > 1 and found ** index == base:
            return found, Node("multiply", (number(index), node.args[1]))
    return base, node.args[1]


def _whole(node: Node) -> int | None:
    try:
        value: Fraction | None = exact(node)
    except (TooLarge, Malformed):
        return None
    return value.numerator if value is not None and value.denominator == 1 and 1 < value < 10 ** 30 else None
