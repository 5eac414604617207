"""What an answer is once it has been read: a small tree with no mathematics in it yet, and the ways reading can fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from rollbook.records.reward import FailureCode

Kind = Literal[
    # expressions
    "number", "symbol", "add", "multiply", "negate", "divide", "power", "call", "plus_minus", "dots", "infinity", "matrix",
    "calculus",
    # collections; `value` of brackets holds the two bracket characters
    "brackets", "set", "builder", "list", "union", "intersection", "difference", "field",
    # statements
    "chain", "congruence", "ratio", "arrows", "cases", "family", "all_of", "any_of",
    # words and units
    "words", "quantity",
]


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `value` is the number, the name, the operators between `args`, the unit or the words; what it is depends on kind.

    Example: Node("power", (Node("symbol", value="x"), Node("number", value=Fraction(2)))) is x^2
    """

    kind: Kind
    args: tuple[Node, ...] = ()
    value: Fraction | str | tuple[str, ...] | None = None

    def walk(self) -> Iterator[Node]:
        """This node and everything below it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.args))

    @property
    def number(self) -> Fraction:
        assert isinstance(self.value, Fraction)
        return self.value

    @property
    def name(self) -> str:
        assert isinstance(self.value, str)
        return self.value

    @property
    def operators(self) -> tuple[str, ...]:
        assert isinstance(self.value, tuple)
        return self.value


class Malformed(Exception):
    """The text is no mathematics in any notation: a bracket is not closed, an operator has no operand."""


class Unsupported(Exception):
    """The text may be mathematics, in a notation that this reader does not know."""


class Undecided(Exception):
    """Both texts were read, and no method within its bounds can tell whether they are equal."""

    code: FailureCode = "undecided"


def number(value: int | Fraction) -> Node:
    return Node("number", value=Fraction(value))


def symbol(name: str) -> Node:
    return Node("symbol", value=name)


def times(left: Node, right: Node) -> Node:
    """The product, flat: a b c has three factors."""
    return Node("multiply", (*left.args, right) if left.kind == "multiply" else (left, right))


def call(name: str, *args: Node) -> Node:
    return Node("call", args, name)


def negate(node: Node) -> Node:
    return number(-node.number) if node.kind == "number" else Node("negate", (node,))


def symbols(node: Node) -> set[str]:
    """Names of the free symbols; a parameter that is bound by a sum, an integral or a set is not free."""
    if node.kind == "symbol":
        return {node.name}
    if node.kind in ("calculus", "builder", "family"):
        bound = {arg.name for arg in node.args[:1] if arg.kind == "symbol"}
        return set().union(*(symbols(arg) for arg in node.args[1:])) - bound
    return set().union(*(symbols(arg) for arg in node.args)) if node.args else set()


def substitute(node: Node, old: str, new: Node) -> Node:
    """The tree with the symbol `old` replaced."""
    if node.kind == "symbol":
        return new if node.name == old else node
    if not node.args:
        return node
    return Node(node.kind, tuple(substitute(arg, old, new) for arg in node.args), node.value)
