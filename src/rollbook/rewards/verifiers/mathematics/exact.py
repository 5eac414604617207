"""Rational arithmetic without rounding and without numbers that do not fit: a value, no value, or too large."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from rollbook.rewards.verifiers.mathematics.nodes import Malformed, Node

MAX_BITS = 140_000
MAX_FACTORIAL = 2000
MAX_TERMS = 2000
MAX_MODULUS = 10**9       # of a tower, factored by trial division
NOTHING: Mapping[str, Fraction] = {}


class TooLarge(Exception):
    """A number that would need more digits than are computed with."""


def exact(node: Node, bound: Mapping[str, Fraction] = NOTHING) -> Fraction | None:
    """The rational value of an expression, None where it is irrational, symbolic or no number.

    Raises TooLarge, and Malformed for what has no value: a division by zero.
    Example: exact(read("2^{10}/4")) == 256; exact(read("\\\\sqrt{2}")) is None
    """
    match node.kind:
        case "number":
            return node.number
        case "symbol":
            return bound.get(node.name)
        case "call":
            return _call(node, bound)
        case "calculus":
            return _finite(node, bound)
        case "power" if (unit := _unit_power(node, bound)) is not None:
            return unit
        case "add" | "multiply" | "negate" | "divide" | "power":
            values = [exact(arg, bound) for arg in node.args]
            known = [value for value in values if value is not None]
            if len(known) < len(values):
                return Fraction(0) if node.kind == "multiply" and any(value == 0 for value in known) and _plain(node) else None
            return _arithmetic(node, known)
        case _:
            return None


def _unit_power(node: Node, bound: Mapping[str, Fraction]) -> Fraction | None:
    """1 or -1 to an integer that is too large to be written; None for any other power."""
    base = node.args[0]
    if not (base.kind == "number" or (base.kind == "negate" and base.args[0].kind == "number")) or abs(exact(base,
                                                                                                             bound) or 0) != 1:
        return None
    try:
        exact(node.args[1], bound)
    except TooLarge:
        parity = _parity(node.args[1], bound)
        if parity is not None:
            return Fraction(-1 if parity and exact(base, bound) == -1 else 1)
    return None


def _parity(node: Node, bound: Mapping[str, Fraction]) -> int | None:
    """0 or 1 for an even or odd integer, however large; None where that is not known."""
    try:
        value = exact(node, bound)
        return None if value is None or value.denominator != 1 else value.numerator % 2
    except TooLarge:
        pass
    if node.kind == "call" and node.value == "factorial":
        return 0                                    # too large to be computed: it has a factor of two
    if node.kind == "power":
        return _parity(node.args[0], bound) if _is_positive(node.args[1], bound) else None
    if node.kind not in ("add", "multiply", "negate"):
        return None
    parts = [_parity(arg, bound) for arg in node.args]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return min(known) if node.kind == "multiply" else sum(known) % 2


def _is_positive(node: Node, bound: Mapping[str, Fraction]) -> bool:
    """Whether a number is surely a positive integer, however large."""
    try:
        value = exact(node, bound)
        return value is not None and value > 0 and value.denominator == 1
    except TooLarge:
        return (node.kind == "call" and node.value == "factorial") or (
            node.kind in ("power", "multiply", "add") and all(_is_positive(arg, bound) for arg in node.args))


def _plain(node: Node) -> bool:
    """Whether nothing below is infinite or undefined by shape, so that zero times it is zero."""
    return all(part.kind in ("number", "symbol", "add", "multiply", "negate") for part in node.walk())


def _arithmetic(node: Node, values: list[Fraction]) -> Fraction | None:
    match node.kind:
        case "add":
            return _fits(sum(values, Fraction(0)))
        case "multiply":
            return _fits(math.prod(values, start=Fraction(1)))
        case "negate":
            return -values[0]
        case "divide":
            if values[1] == 0:
                raise Malformed("a division by zero")
            return _fits(values[0] / values[1])
        case _:
            return power(values[0], values[1])


def _fits(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise TooLarge
    return value


def power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """The power where it is rational; roots only of perfect powers."""
    if base == 0:
        if exponent <= 0:
            raise Malformed("zero to a power that is not positive")
        return base
    if base in (1, -1) and exponent.denominator == 1:
        return base if exponent.numerator % 2 else Fraction(1)
    if exponent.denominator > 1:
        inner = root(base, exponent.denominator) if base > 0 and exponent.denominator <= 64 else None
        return None if inner is None else power(inner, Fraction(exponent.numerator))
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent.numerator) * (bits - 1) > MAX_BITS:
        raise TooLarge
    return base ** exponent.numerator


def root(value: Fraction, index: int) -> Fraction | None:
    """The real root of a rational number where it is rational."""
    if value < 0:
        inner = root(-value, index) if index % 2 else None
        return None if inner is None else -inner
    above, below = integer_root(value.numerator, index), integer_root(value.denominator, index)
    if above ** index == value.numerator and below ** index == value.denominator:
        return Fraction(above, below)
    return None


def integer_root(value: int, index: int) -> int:
    """The largest integer whose power is not above the value."""
    if index == 2:
        return math.isqrt(value)
    low, high = 0, 1 << (value.bit_length() // index + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle ** index <= value else (low, middle - 1)
    return low


def _call(node: Node, bound: Mapping[str, Fraction]) -> Fraction | None:
    if node.name == "mod" and node.args[0].kind == "power":
        return _power_modulo(node.args[0], exact(node.args[1], bound), bound)
    values = [exact(arg, bound) for arg in node.args]
    if any(value is None for value in values):
        return None
    known = [value for value in values if value is not None]
    function = CALLS.get(node.name)
    return function(known) if function and (len(known) == 1 or node.name in SEVERAL) else None


def _factorial(values: list[Fraction]) -> Fraction | None:
    value = values[0]
    if value.denominator != 1 or value < 0:
        return None
    if value > MAX_FACTORIAL:
        raise TooLarge
    return Fraction(math.factorial(value.numerator))


def _binomial(values: list[Fraction]) -> Fraction | None:
    if len(values) != 2 or any(value.denominator != 1 or value < 0 for value in values):
        return None
    above, below = values
    if above > 20_000 or min(below, above - below) > 2000:
        raise TooLarge
    return _fits(Fraction(math.comb(above.numerator, below.numerator)))


def _root(values: list[Fraction]) -> Fraction | None:
    value, index = values
    if index.denominator != 1 or not 0 < index <= 64:
        return None
    return root(value, index.numerator)


def _integers(function: Callable[..., int]) -> Callable[[list[Fraction]], Fraction | None]:
    def applied(values: list[Fraction]) -> Fraction | None:
        if any(value.denominator != 1 for value in values):
            return None
        return Fraction(function(*(value.numerator for value in values)))
    return applied


def _modulo(values: list[Fraction]) -> Fraction | None:
    if len(values) != 2 or values[1] == 0:
        raise Malformed("a remainder modulo zero")
    return values[0] % values[1]


def _power_modulo(node: Node, modulus: Fraction | None, bound: Mapping[str, Fraction]) -> Fraction | None:
    """A remainder of a power, which need not fit itself, nor need its exponent: 9^9^9 modulo 10."""
    base = exact(node.args[0], bound)
    if base is None or modulus is None or base.denominator != 1 or modulus.denominator != 1 or modulus <= 0:
        return None
    try:
        power = exact(node.args[1], bound)
    except TooLarge:
        if modulus > MAX_MODULUS:
            raise
        tower = _capped(node.args[1], _totient(modulus.numerator), bound)
        return Fraction(pow(base.numerator, tower, modulus.numerator))
    if power is None or power.denominator != 1 or power < 0:
        return None
    return Fraction(pow(base.numerator, power.numerator, modulus.numerator))


def _capped(node: Node, modulus: int, bound: Mapping[str, Fraction]) -> int:
    """What a whole number of at least 0 counts as in an exponent whose powers repeat by `modulus`: itself below the modulus, else
    its remainder plus the modulus (Euler's theorem, whatever the base shares with the modulus). TooLarge where that is not known.
    """
    try:
        value = exact(node, bound)
    except TooLarge:
        base = exact(node.args[0], bound) if node.kind == "power" else None
        if base is None or base.denominator != 1 or base < 0:
            raise
        return _power_capped(base.numerator, _capped(node.args[1], _totient(modulus), bound), modulus)
    if value is None or value.denominator != 1 or value < 0:
        raise TooLarge
    return value.numerator if value < modulus else value.numerator % modulus + modulus


def _power_capped(base: int, power: int, modulus: int) -> int:
    """base ** power below the modulus as it is, else its remainder plus the modulus; by repeated squaring."""
    def held(value: int) -> int:
        return value if value < modulus else value % modulus + modulus
    result, factor = held(1), held(base)
    while power:
        if power & 1:
            result = held(result * factor)
        factor, power = held(factor * factor), power >> 1
    return result


def _totient(value: int) -> int:
    """How many of 1 .. value share no factor with it; by trial division."""
    found, rest, factor = value, value, 2
    while factor * factor <= rest:
        if rest % factor == 0:
            found -= found // factor
            while rest % factor == 0:
                rest //= factor
        factor += 1
    return found - found // rest if rest > 1 else found


SEVERAL = frozenset({"max", "min", "gcd", "lcm", "mod", "binom", "root"})
CALLS: Mapping[str, Callable[[list[Fraction]], Fraction | None]] = {
    "factorial": _factorial, "binom": _binomial, "root": _root, "mod": _modulo,
    "abs": lambda values: abs(values[0]), "floor": lambda values: Fraction(math.floor(values[0])),
    "ceil": lambda values: Fraction(math.ceil(values[0])), "gcd": _integers(math.gcd), "lcm": _integers(math.lcm),
    "max": max, "min": min, "sgn": lambda values: Fraction((values[0] > 0) - (values[0] < 0)),
}


def _finite(node: Node, bound: Mapping[str, Fraction]) -> Fraction | None:
    """Finite sums and products with rational terms."""
    if node.value not in ("sum", "product") or len(node.args) != 4:
        return None
    index, body, low_node, high_node = node.args
    low, high = exact(low_node, bound), exact(high_node, bound)
    if low is None or high is None or low.denominator != 1 or high.denominator != 1:
        return None
    if high - low > MAX_TERMS:
        raise TooLarge
    total = Fraction(0 if node.value == "sum" else 1)
    for step in range(low.numerator, high.numerator + 1):
        term = exact(body, {**bound, index.name: Fraction(step)})
        if term is None:
            return None
        total = _fits(total + term if node.value == "sum" else total * term)
    return total
