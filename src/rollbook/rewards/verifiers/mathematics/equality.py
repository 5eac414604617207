"""Whether two expressions have the same value: the same form, the same rational number, or the same values at many points."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

from mpmath import mp

from rollbook.rewards.verifiers.mathematics.exact import TooLarge, exact
from rollbook.rewards.verifiers.mathematics.huge import as_powers, different
from rollbook.rewards.verifiers.mathematics.nodes import Malformed, Node, Undecided, Unsupported, number, symbols
from rollbook.rewards.verifiers.mathematics.numeric import NoValue, evaluate, is_real

POINTS = 8
GROWING = frozenset({"exp", "sinh", "cosh", "factorial"})
MOST_GROWN = 12         # powers and functions of one answer whose size is looked at
ENOUGH = 3
MAX_DIGITS = 1500
CONSTANTS = frozenset({"pi", "e", "i"})


def same_value(left: Node, right: Node) -> bool:
    """Whether two expressions are equal wherever both are real. Raises Undecided where no method within its bounds can tell."""
    if form(left) == form(right):
        return True
    infinite = _infinite(left), _infinite(right)
    if any(infinite):
        return infinite[0] == infinite[1]
    if any(part.kind == "dots" for node in (left, right) for part in node.walk()):
        return _same_with_dots(left, right)
    try:
        values = exact(left), exact(right)
        if None not in values:
            return values[0] == values[1]
        return _same_at_points(left, right)
    except TooLarge:
        return _same_huge(left, right)


def form(node: Node) -> tuple[Any, ...]:
    """The tree as a tuple in which the order of summands and factors does not show, except around dots."""
    parts = [form(arg) for arg in node.args]
    if node.kind in ("add", "multiply") and not any(arg.kind == "dots" for arg in node.args):
        parts.sort(key=repr)
    return (node.kind, node.value, *parts)


def _infinite(node: Node) -> int:
    """1 and -1 for plus and minus infinity, 0 for everything else."""
    if node.kind == "infinity":
        return 1
    if node.kind == "negate":
        return -_infinite(node.args[0])
    if node.kind == "calculus" and node.value != "derivative" and not symbols(node) - CONSTANTS:
        try:
            exact(node)
        except TooLarge:
            return 0
        from rollbook.rewards.verifiers.mathematics.symbolic import limit_of

        found = limit_of(node) if node.value in ("limit",
                                                 "integral") or any(part.kind == "infinity" for part in node.walk()) else None
        return 0 if found is None else (1 if found > 0 else -1)
    if any(part.kind == "infinity" for part in node.walk()) and not any(part.kind == "calculus" for part in node.walk()):
        raise Malformed("arithmetic with infinity")
    return 0


def _same_with_dots(left: Node, right: Node) -> bool:
    """Expressions with an ellipsis are compared part by part in their order."""
    if left.kind == right.kind == "dots":
        return True
    if (left.kind, left.value, len(left.args)) != (right.kind, right.value, len(right.args)) or not left.args:
        return False
    return all(same_value(one, other) for one, other in zip(left.args, right.args, strict=True))


def _same_huge(left: Node, right: Node) -> bool:
    """Numbers that are too large to compute: powers of the same base by their exponents, others by their size."""
    powers = _same_powers(left, right)
    if powers is not None:
        return powers
    free = [bool(symbols(node) - CONSTANTS) for node in (left, right)]
    if not any(free) and different(left, right):
        return False
    if free[0] != free[1] and _varies(left if free[0] else right):
        return False
    if all(free) and left.kind == right.kind == "power":
        bases_equal = same_value(left.args[0], right.args[0])
        if bases_equal:
            return same_value(left.args[1], right.args[1])
    rest = _without_common(left, right)
    if rest is not None:
        return same_value(*rest)
    raise Undecided("numbers too large to be computed")


def _same_powers(left: Node, right: Node) -> bool | None:
    """Whether two products of powers have the same exponents of the same primes; None where that decides nothing, as where
    exponents of different primes are no rational numbers: 2^(log_2 3) is 3."""
    one, other = as_powers(left), as_powers(right)
    if one is None or other is None:
        return None
    if all(same_value(one.get(prime, number(0)), other.get(prime, number(0))) for prime in one.keys() | other.keys()):
        return True
    if len(one.keys() | other.keys()) == 1 or all(_rational(exponent) for exponent in (*one.values(), *other.values())):
        return False
    return None


def _rational(node: Node) -> bool:
    try:
        return exact(node) is not None
    except (TooLarge, Malformed):
        return False


def _without_common(left: Node, right: Node) -> tuple[Node, Node] | None:
    """Both sums without the summands that they share, None where they share none."""
    sides = [list(node.args) if node.kind == "add" else [node] for node in (left, right)]
    for part in list(sides[0]):
        match = next((other for other in sides[1] if form(other) == form(part)), None)
        if match is not None:
            sides[0].remove(part)
            sides[1].remove(match)
    if sum(map(len, sides)) == sum(len(node.args) if node.kind == "add" else 1 for node in (left, right)):
        return None
    left, right = (Node("add", (number(0), *side)) for side in sides)
    return left, right


def _varies(node: Node) -> bool:
    """Whether an expression surely has different values at different points, so that it is no constant."""
    names = sorted(symbols(node) - CONSTANTS)
    found = []
    with mp.workdps(40):
        for index in range(POINTS):
            try:
                found.append(evaluate(node, point(names, index)))
            except (NoValue, TooLarge):
                continue
        return any(abs(one - found[0]) > mp.mpf(10) ** -15 * max(abs(one), abs(found[0])) for one in found[1:])


def _same_at_points(left: Node, right: Node) -> bool:
    """Both readings of a logarithm without a base are tried: natural, and to ten."""
    ambiguous = any(part.kind == "call" and part.value == "log" for node in (left, right) for part in node.walk())
    return _agree_everywhere(left, right, False) or (ambiguous and _agree_everywhere(left, right, True))


def _agree_everywhere(left: Node, right: Node, decimal_log: bool) -> bool:
    names = sorted((symbols(left) | symbols(right)) - CONSTANTS)
    digits = _digits(left, right)

    def at(node: Node, index: int) -> Callable[[], Any]:
        return lambda: evaluate(node, point(names, index), decimal_log=decimal_log)

    found: dict[bool, int] = {True: 0, False: 0}
    for real in (True, False):
        for index in range(POINTS if names else 1):
            agreed = _agree(at(left, index), at(right, index), digits, real=real, named=bool(names))
            if agreed is False:
                return False
            found[real] += agreed is True
        if found[real] >= (ENOUGH if names else 1):
            return True
    raise Undecided("no point where both have a value")


def point(names: Iterable[str], index: int) -> dict[str, Any]:
    """The values of the symbols at a sample point: fixed, of no visible pattern, positive at first, of both signs later."""
    values = {}
    for name in names:
        seed = hashlib.sha256(f"{name}/{index}".encode()).digest()
        value = mp.mpf(int.from_bytes(seed[:6], "big")) / 2 ** 48 * 2.4 + mp.mpf(1) / 3
        values[name] = -value if index >= POINTS // 2 and seed[7] % 2 else value
    return values


def _digits(left: Node, right: Node) -> int:
    """How many digits can matter: those of the numbers, and the orders of magnitude that their powers reach."""
    total = 30
    for node in (*left.walk(), *right.walk()):
        if node.kind == "number":
            total += (node.number.numerator.bit_length() + node.number.denominator.bit_length()) // 4
        elif node.kind == "power" and node.args[1].kind in ("number", "negate"):
            base, raised = exact(node.args[0]), exact(node.args[1])
            if base is not None and raised is not None:
                bits = max(base.numerator.bit_length(), base.denominator.bit_length())
                total += int(abs(raised) * bits * 0.31) if abs(raised) < 10 ** 6 else MAX_DIGITS
    total += max(_magnitude(left), _magnitude(right))
    if total > MAX_DIGITS:
        raise TooLarge
    return total


def _magnitude(node: Node) -> int:
    """The most decimal digits before or behind the point in any power or function below, at the sample points."""
    grown = [part for part in node.walk() if (part.kind == "power" and part.args[1].kind not in ("number", "negate"))
             or (part.kind == "call" and part.value in GROWING)]
    names = sorted(symbols(node) - CONSTANTS)
    most = 0
    with mp.workdps(30):
        for part, index in product(grown[:MOST_GROWN], range(POINTS if names else 1)):
            try:
                size = abs(evaluate(part, point(names, index)))
            except (NoValue, Unsupported, Malformed):
                continue
            if size and mp.isfinite(size):
                most = max(most, int(abs(mp.log10(size))))
    return most


def _agree(left: Callable[[], Any], right: Callable[[], Any], digits: int, *, real: bool, named: bool) -> bool | None:
    """Whether two values are the same at one point, None where one of them does not exist (or, if asked, is not real).

    A difference is rounding if it is small against the values, or shrinks as the precision grows.
    """
    gap_before = None
    for precision in (digits, 2 * digits + 30, 4 * digits + 100):
        with mp.workdps(precision):
            try:
                one, other = left(), right()
            except NoValue:
                if not named:
                    raise Malformed("no value") from None
                return None
            if real and not (is_real(one) and is_real(other)):
                return None
            gap, scale = abs(one - other), max(abs(one), abs(other))
            close = gap <= scale * mp.mpf(10) ** (-0.7 * precision)
            if gap_before is None:
                if gap > max(scale, 1) * mp.mpf(10) ** (-0.4 * precision):
                    return False
            elif close or gap <= gap_before * mp.mpf(10) ** (-0.3 * precision):
                return True
            elif gap > gap_before * mp.mpf(10) ** -5:
                return False
            gap_before = max(gap, mp.mpf(10) ** -precision)     # a gap of zero may be luck
    return False
