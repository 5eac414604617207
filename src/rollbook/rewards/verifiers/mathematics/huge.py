"""Numbers that are too large to be written out, by their size: e^e^...^x with as many exponentials as it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
FAR = 60                    # e^-60 of a number does not show in its size
TRIED = 10 ** 4             # a whole number without divisors below this, and below its square, is a prime


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
                return _sum(node.args)
            case "call" if node.value == "factorial":
                return _factorial(size(node.args[0]))
            case _:
                return None


def _exp(size_: Size | None) -> Size | None:
    if size_ is None:
        return None
    return Size(size_.level + 1, size_.x) if size_.level or size_.x > mp.log(TOP) else normal(mp.exp(size_.x))


def _factorial(inner: Size | None) -> Size | None:
    """n! by Stirling's series; of a number with too many digits to be written by n^n, whose logarithm is as large."""
    if inner is None:
        return None
    if inner.level > 1:
        return _exp(_product(inner, inner.log()))
    return _exp(normal(mp.loggamma(_plain(inner) + 1))) if inner.level or inner.x > 1 else None


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
    """The product or the quotient of two sizes: their logarithms added or subtracted."""
    if left is None or right is None or (right.level == 0 and right.x <= 0) or (left.level == 0 and left.x <= 0):
        return None
    if left.level == right.level == 0:
        return normal(left.x * right.x if direction > 0 else left.x / right.x)
    logs = left.log(), right.log()
    if logs[0].level == logs[1].level == 0:
        total = logs[0].x + direction * logs[1].x
        return _exp(normal(total)) if total > 0 else None
    if direction < 0 and (logs[0].level, logs[0].x) <= (logs[1].level, logs[1].x):
        return None
    return _exp(_together(*logs, direction))


def _together(one: Size, other: Size, direction: int) -> Size | None:
    """The sum or the difference of two sizes, of which one is large; None for a difference that is too small to tell."""
    larger, smaller = sorted((one, other), key=lambda size: (size.level, size.x), reverse=True)
    if larger.level == 0:
        return normal(abs(larger.x + direction * smaller.x))
    if smaller.level == 0 and smaller.x <= 0:       # a logarithm below one
        return larger if smaller.x == 0 else _together(larger, Size(0, -smaller.x), -direction)
    logs = larger.log(), smaller.log()
    if logs[0].level > 1:                   # from here on whoever is larger to nine places is larger by far
        same = logs[0].level == logs[1].level and abs(logs[0].x - logs[1].x) <= CLOSE * logs[0].x
        return None if same else larger
    gap = _plain(logs[0]) - _plain(logs[1])
    if gap > FAR:
        return larger
    if direction < 0 and gap < CLOSE:
        return None
    return _exp(normal(_plain(logs[0]) + (mp.log1p(mp.exp(-gap)) if direction > 0 else mp.log(-mp.expm1(-gap)))))


def _plain(size_: Size) -> Any:
    return mp.exp(size_.x) if size_.level else size_.x


def _sum(args: Sequence[Node]) -> Size | None:
    """The size of a sum, its largest part first; parts without a plain sign are left out where they are far smaller."""
    parts = [(found, _sign(arg)) for arg in args if (found := size(arg)) is not None]
    if len(parts) < len(args):
        return None
    (total, sign), *rest = sorted(parts, key=lambda part: (part[0].level, part[0].x), reverse=True)
    for part, other in rest:
        if part.level == 0 and part.x == 0:
            continue
        if not sign or not other:
            ways = [_together(total, part, direction) for direction in (1, -1)]
            if None in ways or ways[0] != ways[1]:
                return None
            continue
        found = _together(total, part, sign * other)
        if found is None:
            return None
        total = found
    return total


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


def as_powers(node: Node) -> dict[int, Node] | None:
    """A number as powers of primes, the exponent of each: 9^n is {3: 2n}, 6 7^n is {2: 1, 3: 1, 7: n}, 8^n / 2 is {2: 3n - 1}.

    None where that does not show: the base is no whole number above one, or has divisors that are not found.
    """
    if node.kind in ("multiply", "divide"):
        parts = [as_powers(arg) for arg in node.args]
        known = [part for part in parts if part is not None]
        if node.kind == "divide":
            known[1:] = [{prime: Node("negate", (one,)) for prime, one in part.items()} for part in known[1:]]
        return _multiplied(known) if len(known) == len(parts) else None
    if node.kind == "power":
        base = as_powers(node.args[0])
        return None if base is None else {prime: Node("multiply", (one, node.args[1])) for prime, one in base.items()}
    whole = _whole(node)
    return None if whole is None else _factored(whole)


def _multiplied(parts: Sequence[dict[int, Node]]) -> dict[int, Node]:
    """The exponents of a product: those of each prime added."""
    found: dict[int, list[Node]] = {}
    for part in parts:
        for prime, exponent in part.items():
            found.setdefault(prime, []).append(exponent)
    return {prime: Node("add", (number(0), *exponents)) for prime, exponents in found.items()}


def _factored(whole: int) -> dict[int, Node] | None:
    found: dict[int, Node] = {}
    for divisor in range(2, TRIED):
        times = 0
        while whole % divisor == 0:
            whole, times = whole // divisor, times + 1
        if times:
            found[divisor] = number(times)
        if whole == 1:
            return found
    for index in range(whole.bit_length(), 0, -1):
        root = integer_root(whole, index)
        if root > 1 and root ** index == whole:
            return found | {root: number(index)} if root < TRIED ** 2 else None
    return None


def _whole(node: Node) -> int | None:
    try:
        value: Fraction | None = exact(node)
    except (TooLarge, Malformed):
        return None
    return value.numerator if value is not None and value.denominator == 1 and 1 < value < 10 ** 30 else None
