"""Sets of real numbers as unions of intervals: from brackets, inequalities, set builders and their unions and differences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mpmath import mp

from rollbook.rewards.verifiers.mathematics.equality import CONSTANTS
from rollbook.rewards.verifiers.mathematics.exact import TooLarge
from rollbook.rewards.verifiers.mathematics.nodes import Malformed, Node, Unsupported, symbols
from rollbook.rewards.verifiers.mathematics.numeric import NoValue, evaluate, is_real

DIGITS = 60
SAME = mp.mpf(10) ** -35
MAX_INTEGERS = 50
MIRRORED = {"<": ">", ">": "<", "le": "ge", "ge": "le", "ne": "ne", "=": "="}
ORDERS = frozenset({"<", ">", "le", "ge", "ne"})


@dataclass(frozen=True, slots=True)
class Piece:
    """An interval; a point where both ends are the same and included. Ends are numbers or infinities of mpmath."""

    low: Any
    low_in: bool
    high: Any
    high_in: bool

    @property
    def empty(self) -> bool:
        return bool(self.low > self.high or (equal(self.low, self.high) and not (self.low_in and self.high_in)))


Pieces = tuple[Piece, ...]
LINE = (Piece(mp.ninf, False, mp.inf, False),)


def equal(one: Any, other: Any) -> bool:
    if mp.isinf(one) or mp.isinf(other):
        return bool(one == other)
    return bool(abs(one - other) <= SAME * max(1, abs(one), abs(other)))


def same_set(left: Pieces, right: Pieces) -> bool:
    """Whether two sets have the same pieces after touching pieces are joined."""
    one, other = joined(left), joined(right)
    return len(one) == len(other) and all(
        equal(a.low, b.low) and equal(a.high, b.high) and (a.low_in, a.high_in) == (b.low_in, b.high_in)
        for a, b in zip(one, other, strict=True))


def joined(pieces: Iterable[Piece]) -> Pieces:
    """The same set with its pieces in order, none empty, none touching the next."""
    found: list[Piece] = []
    for piece in sorted((piece for piece in pieces if not piece.empty), key=lambda one: (one.low, not one.low_in)):
        last = found[-1] if found else None
        touching = last is not None and (piece.low < last.high
                                         or (equal(piece.low, last.high) and (piece.low_in or last.high_in)))
        if last is None or not touching:
            found.append(piece)
            continue
        if equal(piece.high, last.high):
            high, high_in = last.high, last.high_in or piece.high_in
        else:
            high, high_in = (piece.high, piece.high_in) if piece.high > last.high else (last.high, last.high_in)
        low_in = last.low_in or (equal(piece.low, last.low) and piece.low_in)
        found[-1] = Piece(last.low, low_in, high, high_in)
    return tuple(found)


def intersection(left: Pieces, right: Pieces) -> Pieces:
    found = []
    for a in left:
        for b in right:
            low, low_in = max((a.low, a.low_in), (b.low, b.low_in))
            high, high_in = min((a.high, a.high_in), (b.high, b.high_in))
            if equal(a.low, b.low):
                low_in = a.low_in and b.low_in
            if equal(a.high, b.high):
                high_in = a.high_in and b.high_in
            found.append(Piece(low, low_in, high, high_in))
    return joined(found)


def complement(pieces: Pieces) -> Pieces:
    found, low, low_in = [], mp.ninf, False
    for piece in joined(pieces):
        found.append(Piece(low, low_in, piece.low, not piece.low_in and not mp.isinf(piece.low)))
        low, low_in = piece.high, not piece.high_in and not mp.isinf(piece.high)
    return joined([*found, Piece(low, low_in, mp.inf, False)])


def pieces(node: Node, variable: str | None = None) -> Pieces:
    """The set of reals that a node states. Raises Unsupported where it states none, or with symbols as ends."""
    match node.kind:
        case "brackets" if len(node.args) == 2:
            marks = node.name
            return (Piece(end(node.args[0]), marks[0] == "[", end(node.args[1]), marks[1] == "]"),)
        case "field" if node.value == "R":
            return LINE
        case "field" if node.value == "R+":
            return (Piece(mp.mpf(0), False, mp.inf, False),)
        case "set":
            return tuple(Piece(value, True, value, True) for value in (end(arg) for arg in node.args))
        case "union" | "any_of":
            return joined(part for arg in node.args for part in pieces(arg, variable))
        case "intersection" | "all_of":
            found: Pieces = LINE
            for arg in node.args:
                found = intersection(found, pieces(arg, variable))
            return found
        case "difference":
            return intersection(pieces(node.args[0], variable), complement(pieces(node.args[1], variable)))
        case "builder":
            if node.args[0] != node.args[1]:
                raise Unsupported("the image of a set")
            return pieces(node.args[2], node.args[0].name)
        case "chain":
            return _chain(node, variable)
        case _:
            raise Unsupported(f"{node.kind} as a set of reals")


def integers(found: Pieces) -> list[int] | None:
    """The whole numbers in a set, None where there are more than MAX_INTEGERS."""
    result: list[int] = []
    for piece in joined(found):
        if mp.isinf(piece.low) or mp.isinf(piece.high) or piece.high - piece.low > MAX_INTEGERS:
            return None
        low, high = int(mp.ceil(piece.low - SAME)), int(mp.floor(piece.high + SAME))
        low += equal(mp.mpf(low), piece.low) and not piece.low_in
        high -= equal(mp.mpf(high), piece.high) and not piece.high_in
        result += range(low, high + 1)
    return result


def end(node: Node) -> Any:
    """A number or an infinity."""
    if node.kind == "infinity":
        return mp.inf
    if node.kind == "negate" and node.args[0].kind == "infinity":
        return mp.ninf
    if symbols(node) - CONSTANTS:
        raise Unsupported("an interval with symbols as ends")
    with mp.workdps(DIGITS):
        try:
            value = evaluate(node, {})
        except (NoValue, TooLarge):
            raise Unsupported("an end without a value") from None
        if not is_real(value):
            raise Malformed("a complex end of an interval")
        return mp.re(value)


def _chain(node: Node, variable: str | None) -> Pieces:
    """The solutions of every link of a chain of relations in one variable."""
    names = symbols(node) - CONSTANTS
    if variable is None:
        if len(names) != 1:
            raise Unsupported("relations in several variables")
        [variable] = names
    found: Pieces = LINE
    for left, operator, right in zip(node.args, node.operators, node.args[1:], strict=False):
        found = intersection(found, _link(left, operator, right, variable))
    return found


def _link(left: Node, operator: str, right: Node, variable: str) -> Pieces:
    if operator in ("in", "notin"):
        if left.kind != "symbol" or left.name != variable:
            raise Unsupported("membership of something else than the variable")
        inside = pieces(right)
        return inside if operator == "in" else complement(inside)
    for one, sign, other in ((left, operator, right), (right, MIRRORED[operator], left)):
        if one.kind == "symbol" and one.name == variable and variable not in symbols(other):
            return _half_line(sign, end(other))
    linear = _linear(left, right, variable)
    if linear is not None:
        slope, crossing = linear
        return _half_line(operator if slope > 0 else MIRRORED[operator], crossing)
    return _solved(left, operator, right, variable)


def _half_line(operator: str, value: Any) -> Pieces:
    """The reals that stand in a relation to a number."""
    match operator:
        case "<" | "le":
            return (Piece(mp.ninf, False, value, operator == "le"),)
        case ">" | "ge":
            return (Piece(value, operator == "ge", mp.inf, False),)
        case "=":
            return (Piece(value, True, value, True),)
        case _:
            return (Piece(mp.ninf, False, value, False), Piece(value, False, mp.inf, False))


def _linear(left: Node, right: Node, variable: str) -> tuple[Any, Any] | None:
    """Slope and zero of left - right where that is a line in the variable."""
    if (symbols(left) | symbols(right)) - CONSTANTS != {variable}:
        raise Unsupported("an inequality with parameters")
    try:
        with mp.workdps(DIGITS):
            at = [evaluate(left, {variable: mp.mpf(x)}) - evaluate(right, {variable: mp.mpf(x)}) for x in (0, 1, 2, -3, 7.5)]
            slope = at[1] - at[0]
            if not all(is_real(value) for value in at) or slope == 0:
                return None
            if all(equal(at[0] + slope * x, value) for x, value in zip((2, -3, 7.5), at[2:], strict=True)):
                return slope, -at[0] / slope
    except (NoValue, TooLarge):
        pass
    return None


def _solved(left: Node, operator: str, right: Node, variable: str) -> Pieces:
    """The solutions as SymPy finds them."""
    import sympy

    from rollbook.rewards.verifiers.mathematics.symbolic import number_of, solution_set

    found = solution_set(left, operator, right, variable)
    parts = found.args if isinstance(found, sympy.Union) else (found,)
    result: list[Piece] = []
    for part in parts:
        if isinstance(part, sympy.Interval):
            result.append(Piece(number_of(part.start), not part.left_open, number_of(part.end), not part.right_open))
        elif isinstance(part, sympy.FiniteSet):
            result += [Piece(number_of(value), True, number_of(value), True) for value in part]
        elif part == sympy.S.Reals:
            result += LINE
        elif part != sympy.S.EmptySet:
            raise Unsupported("solutions that are no intervals")
    return joined(result)
