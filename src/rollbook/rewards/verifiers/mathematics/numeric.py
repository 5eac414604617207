"""The value of an expression at a point, to as many digits as asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import mpmath
from mpmath import mp

from rollbook.rewards.verifiers.mathematics.exact import MAX_TERMS, TooLarge, exact
from rollbook.rewards.verifiers.mathematics.nodes import Malformed, Node, Unsupported

MAX_EXPONENT = 200_000      # of the base two, of any value that is computed
MAX_GAMMA = 10 ** 6
MAX_QUADRATURE_DIGITS = 130
Point = Mapping[str, Any]


class NoValue(Exception):
    """The expression has no finite value at this point: a pole, a logarithm of zero."""


def evaluate(node: Node, point: Point, *, decimal_log: bool = False) -> Any:
    """The value at the current precision of mpmath. Raises NoValue, TooLarge, or Unsupported for what is no expression.

    `decimal_log` reads \\log without a base as the logarithm to ten.
    """
    def inner(part: Node) -> Any:
        return evaluate(part, point, decimal_log=decimal_log)

    match node.kind:
        case "number":
            return mp.mpf(node.number.numerator) / node.number.denominator
        case "symbol":
            return _symbol(node.name, point)
        case "add":
            return mp.fsum(inner(arg) for arg in node.args)
        case "multiply":
            return mp.fprod(inner(arg) for arg in node.args)
        case "negate":
            return -inner(node.args[0])
        case "divide":
            return _quotient(inner(node.args[0]), inner(node.args[1]))
        case "power":
            return _power(inner(node.args[0]), inner(node.args[1]))
        case "call":
            return _call(node.name, [inner(arg) for arg in node.args], decimal_log)
        case "calculus":
            return _calculus(node, point, decimal_log)
        case _:
            raise Unsupported(f"a value of {node.kind}")


def _symbol(name: str, point: Point) -> Any:
    if name in point:
        return point[name]
    constants: dict[str, Callable[[], Any]] = {"pi": lambda: +mp.pi, "e": lambda: +mp.e, "i": lambda: mp.mpc(0, 1)}
    if name not in constants:
        raise Unsupported(f"no value for {name}")
    return constants[name]()


def _quotient(above: Any, below: Any) -> Any:
    if below == 0:
        raise NoValue
    return above / below


def _power(base: Any, exponent: Any) -> Any:
    if base == 0:
        if mp.re(exponent) > 0:
            return mp.mpf(0)
        raise NoValue
    if abs(mp.re(exponent) * mp.log(abs(base), 2)) + abs(mp.im(exponent)) > MAX_EXPONENT:
        raise TooLarge
    return mp.power(base, exponent)


def _trigonometric(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def applied(value: Any) -> Any:
        if abs(value) > mp.mpf(10) ** (mp.dps // 3):
            raise TooLarge
        return function(value)
    return applied


def _logarithm(value: Any) -> Any:
    if value == 0:
        raise NoValue
    return mp.log(value)


def _exponential(value: Any) -> Any:
    return _power(mp.e, value)


def _factorial(value: Any) -> Any:
    if abs(value) > MAX_GAMMA:
        raise TooLarge
    return mp.factorial(value)


def _binomial(above: Any, below: Any) -> Any:
    if abs(above) > MAX_GAMMA or abs(below) > MAX_GAMMA:
        raise TooLarge
    return mp.binomial(above, below)


def _root(value: Any, index: Any) -> Any:
    if value == 0:
        return mp.mpf(0)
    whole = mp.im(index) == 0 and index == int(mp.re(index))
    if whole and int(mp.re(index)) % 2 and mp.im(value) == 0 and mp.re(value) < 0:
        return -_power(-value, 1 / index)
    return _power(value, 1 / index)


def _real(function: Callable[..., Any]) -> Callable[..., Any]:
    def applied(*values: Any) -> Any:
        if any(mp.im(value) != 0 for value in values):
            raise NoValue
        return function(*(mp.re(value) for value in values))
    return applied


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "sin": _trigonometric(mp.sin), "cos": _trigonometric(mp.cos), "tan": _trigonometric(mp.tan), "cot": _trigonometric(mp.cot),
    "sec": _trigonometric(mp.sec), "csc": _trigonometric(mp.csc), "arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan,
    "arccot": mp.acot, "sinh": _trigonometric(mp.sinh), "cosh": _trigonometric(mp.cosh), "tanh": _trigonometric(mp.tanh),
    "ln": _logarithm, "lg": lambda value: _logarithm(value) / mp.log(10), "exp": _exponential,
    "log_base": lambda base, value: _quotient(_logarithm(value), _logarithm(base)), "root": _root, "factorial": _factorial,
    "binom": _binomial, "abs": abs, "floor": _real(mp.floor), "ceil": _real(mp.ceil), "max": _real(max), "min": _real(min),
    "mod": _real(lambda value, modulus: value - modulus * mp.floor(_quotient(value, modulus))),
    "degree": lambda value: value * mp.pi / 180, "Re": mp.re, "Im": mp.im, "arg": mp.arg, "sgn": _real(mp.sign),
    "cis": _trigonometric(lambda angle: mp.cos(angle) + mp.mpc(0, 1) * mp.sin(angle)),
}


def _call(name: str, values: list[Any], decimal_log: bool) -> Any:
    if name.startswith("of:"):
        return _unknown(name, values)
    if name == "log":
        return _logarithm(values[0]) / (mp.log(10) if decimal_log else 1)
    if name not in FUNCTIONS:
        raise Unsupported(f"the function {name}")
    try:
        value = FUNCTIONS[name](*values)
    except (ZeroDivisionError, ValueError, OverflowError):
        raise NoValue from None
    except TypeError:
        raise Malformed(f"{name} of {len(values)} arguments") from None
    if not mp.isfinite(value):
        raise NoValue
    return value


def _unknown(name: str, values: list[Any]) -> Any:
    """A function that is only named stands for one fixed smooth function of its arguments, another for every name."""
    seed = hashlib.sha256(name.encode()).digest()
    total = mp.mpf(seed[0]) / 256
    for index, value in enumerate(values):
        total += mp.sin((seed[1 + index % 30] + 300) * mp.mpf(value) / 256) + mp.mpf(value) ** 2 * seed[2 + index % 29] / 300
    return total


def _calculus(node: Node, point: Point, decimal_log: bool) -> Any:
    """Finite sums and products term by term, integrals between numbers by quadrature, everything else by SymPy."""
    if node.value in ("sum", "product") and len(node.args) == 4:
        whole = exact(node)
        if whole is not None:
            return mp.mpf(whole.numerator) / whole.denominator
        low, high = exact(node.args[2]), exact(node.args[3])
        if low is not None and high is not None and low.denominator == high.denominator == 1:
            if high - low > MAX_TERMS // 10:
                raise TooLarge
            terms = [evaluate(node.args[1], {**point, node.args[0].name: mp.mpf(step)}, decimal_log=decimal_log)
                     for step in range(low.numerator, high.numerator + 1)]
            return mp.fsum(terms) if node.value == "sum" else mp.fprod(terms)
    if node.value == "integral" and len(node.args) == 4:
        value = _integral(node, point, decimal_log)
        if value is not None:
            return value
    from rollbook.rewards.verifiers.mathematics.symbolic import calculus_value

    return calculus_value(node, point)


def _integral(node: Node, point: Point, decimal_log: bool) -> Any | None:
    """The integral by tanh-sinh quadrature, None where its own estimate of the error does not vouch for the digits."""
    variable, body, *ends = node.args
    limits = [_limit(end, point) for end in ends]
    if mp.dps > MAX_QUADRATURE_DIGITS:
        return None

    def integrand(x: Any) -> Any:
        return evaluate(body, {**point, variable.name: x}, decimal_log=decimal_log)

    try:
        value, error = mp.quad(integrand, limits, error=True)
    except (NoValue, TooLarge, ValueError, ZeroDivisionError, OverflowError):
        return None
    return value if mp.isfinite(value) and error < mp.mpf(10) ** (-0.9 * mp.dps) else None


def _limit(end: Node, point: Point) -> Any:
    if end.kind == "infinity":
        return mp.inf
    return mp.ninf if end.kind == "negate" and end.args[0].kind == "infinity" else evaluate(end, point)


def is_real(value: Any) -> bool:
    """Whether the imaginary part is rounding."""
    imaginary = abs(mp.im(value))
    return bool(imaginary == 0 or imaginary <= abs(mp.re(value)) * mpmath.mpf(10) ** (-mp.dps * 2 // 3))
