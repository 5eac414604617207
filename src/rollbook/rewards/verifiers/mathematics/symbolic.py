"""What only a computer algebra system can do: integrals, limits, infinite sums, derivatives, inequalities of higher degree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import mpmath
import sympy
from mpmath import mp

from rollbook.rewards.verifiers.mathematics.nodes import Node, Unsupported

CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec, "csc": sympy.csc,
    "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "sinh": sympy.sinh, "cosh": sympy.cosh, "tanh": sympy.tanh,
    "ln": sympy.log, "log": sympy.log, "exp": sympy.exp, "abs": sympy.Abs, "factorial": sympy.factorial, "binom": sympy.binomial,
    "root": lambda value, index: sympy.root(value, index), "floor": sympy.floor, "ceil": sympy.ceiling,
    "log_base": lambda base, value: sympy.log(value) / sympy.log(base), "degree": lambda value: value * sympy.pi / 180,
}


def expression(node: Node, names: Mapping[str, Any]) -> Any:
    """The SymPy expression of a node; `names` maps symbols that mean something special."""
    def inner(part: Node) -> Any:
        return expression(part, names)

    match node.kind:
        case "number":
            return sympy.Rational(node.number.numerator, node.number.denominator)
        case "symbol":
            return names.get(node.name) or CONSTANTS.get(node.name) or sympy.Symbol(node.name, real=True)
        case "infinity":
            return sympy.oo
        case "add":
            return sympy.Add(*map(inner, node.args))
        case "multiply":
            return sympy.Mul(*map(inner, node.args))
        case "negate":
            return -inner(node.args[0])
        case "divide":
            return inner(node.args[0]) / inner(node.args[1])
        case "power":
            return sympy.Pow(inner(node.args[0]), inner(node.args[1]))
        case "call" if node.name in FUNCTIONS:
            return FUNCTIONS[node.name](*map(inner, node.args))
        case "calculus":
            return _calculus(node, names)
        case _:
            raise Unsupported(f"{node.kind} {node.value or ''} in a computation with symbols")


def _calculus(node: Node, names: Mapping[str, Any]) -> Any:
    integral = node.value in ("sum", "product")
    variable = sympy.Symbol(node.args[0].name, integer=True) if integral else sympy.Symbol(node.args[0].name, real=True)
    body, *ends = (expression(arg, {**names, node.args[0].name: variable}) for arg in node.args[1:])
    match node.value:
        case "sum":
            return sympy.Sum(body, (variable, *ends)).doit()
        case "product":
            return sympy.Product(body, (variable, *ends)).doit()
        case "derivative":
            return sympy.diff(body, variable)
        case "limit":
            return sympy.limit(body, variable, ends[0])
        case "integral" if ends:
            return sympy.integrate(body, (variable, *ends))
        case _:
            return sympy.integrate(body, variable)


@lru_cache(maxsize=64)
def _resolved(node: Node) -> Any:
    return _calculus(node, {})


def calculus_value(node: Node, point: Mapping[str, Any]) -> Any:
    """The value of an integral, limit, sum or derivative at a point, at mpmath's current precision."""
    from rollbook.rewards.verifiers.mathematics.numeric import NoValue

    resolved = _resolved(node)
    values = {free: sympy.Float(point[free.name], mp.dps) for free in resolved.free_symbols if free.name in point}
    value = resolved.subs(values).evalf(mp.dps)
    if value.is_number is not True or not value.is_finite:
        raise NoValue
    real, imaginary = value.as_real_imag()
    parts = [number_of(part) for part in (real, imaginary)]
    return mp.mpc(*parts) if parts[1] else parts[0]


def number_of(value: Any) -> Any:
    """A real SymPy number as mpmath's, at the current precision; infinities stay infinite."""
    if value in (sympy.oo, -sympy.oo):
        return mp.inf if value > 0 else mp.ninf
    return mpmath.mpf(str(sympy.N(value, mp.dps)))


def limit_of(node: Node) -> Any:
    """Plus or minus SymPy's infinity where a calculus node has it as its value, None otherwise."""
    resolved = _resolved(node)
    return resolved if resolved in (sympy.oo, -sympy.oo) else None


def solution_set(left: Node, operator: str, right: Node, variable: str) -> Any:
    """The real solutions of an inequality in one variable, as a SymPy set."""
    symbol = sympy.Symbol(variable, real=True)
    sides = expression(left, {variable: symbol}), expression(right, {variable: symbol})
    relations = {"<": sympy.Lt, ">": sympy.Gt, "le": sympy.Le, "ge": sympy.Ge, "ne": sympy.Ne, "=": sympy.Eq}
    try:
        relation = relations[operator](*sides)
    except TypeError:
        raise Unsupported("an order of numbers that are not real") from None
    if relation in (sympy.true, sympy.false):
        return sympy.S.Reals if relation == sympy.true else sympy.S.EmptySet
    return sympy.solveset(relation, symbol, domain=sympy.S.Reals)
