"""Sums, products, powers and signs: the part of the grammar where operators bind by precedence."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from rollbook.rewards.verifiers.mathematics.lexer import Token, TokenKind
from rollbook.rewards.verifiers.mathematics.nodes import Malformed, Node, call, negate, number, symbol, times

MAX_DEPTH = 40
END = Token("mark", "")
ORDINALS = ("st", "nd", "rd", "th")
FACTOR_MARKS = ("(", "{", "[")
FACTOR_COMMANDS = frozenset({"frac", "sqrt", "cbrt", "binom", "lfloor", "lceil", "langle", "{", "sum", "prod", "int", "lim",
                             "infty",
                             "angle", "overline", "vec", "hat", "tilde", "widehat", "overrightarrow", "dots", "partial",
                             "triangle",
                             "operatorname", "begin:vmatrix", "begin:pmatrix", "begin:bmatrix", "begin:matrix", "begin:Bmatrix",
                             "begin:smallmatrix", "begin:array", "dot", "underbrace", "mathbf", "pmod", "iint"})
Expression = Node


class Cursor:
    """A position in the tokens. `level` counts open brackets; `bars` says whether a vertical bar closes rather than opens."""

    def __init__(self, found: list[Token]):
        self.found, self.at, self.level = found, 0, 0
        self.bars = 0
        self.colons = True

    def peek(self, ahead: int = 0) -> Token:
        return self.found[self.at + ahead] if self.at + ahead < len(self.found) else END

    def take(self) -> Token:
        token = self.peek()
        if token is END:
            raise Malformed("the text ends too early")
        self.at += 1
        return token

    def next_is(self, *texts: str, kind: TokenKind | None = None, ahead: int = 0) -> bool:
        """Whether the next token is one of these marks or commands (or of the given kind)."""
        token = self.peek(ahead)
        kinds = (kind,) if kind else ("mark", "command")
        return token is not END and token.text in texts and token.kind in kinds

    def accept(self, *texts: str) -> bool:
        if self.next_is(*texts):
            self.at += 1
            return True
        return False

    def expect(self, *texts: str) -> str:
        if not self.next_is(*texts):
            raise Malformed(f"{self.peek().text!r} where {' or '.join(texts)!r} belongs")
        return self.take().text


class Terms(Cursor):
    """Expressions by precedence: sum, product, sign, power, postfix. Atoms are read by the class below."""

    def additive(self) -> Expression:
        """A sum of terms; a leading sign belongs to the whole first term, so that -2^4 is -16."""
        left = self.signed_term()
        while self.next_is("+", "-", "pm", "mp"):
            sign = self.take().text
            right = self.signed_term() if self.next_is("-", "+") else self.term()
            if sign in ("pm", "mp"):
                left = Node("plus_minus", (left, right), sign)
            else:
                right = negate(right) if sign == "-" else right
                left = Node("add", (*left.args, right) if left.kind == "add" else (left, right))
        return left

    def signed_term(self) -> Expression:
        if self.accept("+"):
            return self.signed_term() if self.next_is("+", "-") else self.term()
        if self.accept("-"):
            return negate(self.signed_term() if self.next_is("+", "-") else self.term())
        if self.next_is("pm", "mp"):
            sign = self.take().text
            return Node("plus_minus", (number(0), self.term()), sign)
        return self.term()

    def term(self) -> Expression:
        """Factors, written with or without a sign between them; division and juxtaposition bind alike, from the left."""
        left = self.unary()
        while True:
            if self.accept("cdot", "times", "*"):
                left = times(left, self.unary())
            elif self.next_is("/", "div") and self.peek(1).kind != "text":
                self.take()
                left = self._quotient(left)
            elif self.accept("bmod"):
                left = call("mod", left, self.unary())
            elif self._starts_factor() and not self._names_scale(left):
                left = self._juxtaposed(left)
            else:
                return left

    def unary(self) -> Expression:
        if self.accept("-"):
            return negate(self.unary())
        if self.accept("+"):
            return self.unary()
        return self.power()

    def power(self) -> Expression:
        node = self.postfix()
        while self.accept("^"):
            node = self._postfixed(self._raised(node))
        return node

    def postfix(self) -> Expression:
        """An atom with what may stand behind it: factorial, percent, degrees, primes."""
        return self._postfixed(self.atom())

    def atom(self) -> Expression:
        raise NotImplementedError

    def macro_argument(self) -> Expression:
        """The argument of a LaTeX command: a group, or one token, or one digit of a number."""
        token = self.peek()
        if token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
            self.found[self.at] = dataclasses.replace(token, text=token.text[1:], value=Fraction(token.text[1:]))
            return number(int(token.text[0]))
        return self.atom()

    def exponent(self) -> Expression:
        """What is raised: a group, a signed number, or one atom; plain 2^3^2 is 2^(3^2), plain x^10 is x to the tenth."""
        if self.accept("-"):
            return negate(self.exponent())
        if self.accept("+"):
            return self.exponent()
        node = self.atom()
        return Node("power", (node, self.exponent())) if self.accept("^") else node

    def _raised(self, base: Expression) -> Expression:
        """The base with its superscript, which may also be a degree sign, a prime, a transposition or an ordinal's ending."""
        inner = 1 if self.next_is("{", kind="mark") else 0
        token = self.peek(inner)
        single = not inner or self.next_is("}", kind="mark", ahead=2)
        ordinal = token.kind == "text" and token.text in ORDINALS
        letters = "".join(self.peek(inner + offset).text for offset in range(2))
        if inner and letters in ORDINALS and self.next_is("}", kind="mark", ahead=3):
            self.at += 4
            return base
        if single and (ordinal or token.text in ("circ", "degree", "prime", "'", "top", "intercal")):
            self.at += 1 + 2 * inner
            if ordinal:
                return base
            if token.text in ("circ", "degree"):
                return call("degree", base)
            return call("transpose", base) if token.text in ("top", "intercal") else self.primed(base)
        raised = self.exponent()
        if raised.kind == "symbol" and raised.name == "T" and base.kind == "matrix":
            return call("transpose", base)
        return Node("power", (base, raised))

    def primed(self, node: Expression) -> Expression:
        if node.kind != "symbol":
            raise Malformed("a prime behind what is no name")
        return symbol(node.name + "'")

    def _postfixed(self, node: Expression) -> Expression:
        while True:
            if self.next_is("!"):
                self.take()
                node = call("factorial", node)
            elif self.accept("%"):
                node = Node("multiply", (node, number(Fraction(1, 100))))
            elif self.accept("degree"):
                node = call("degree", node)
            elif self.next_is("'"):
                self.take()
                node = self.primed(node)
            else:
                return node

    def _quotient(self, above: Expression) -> Expression:
        return Node("divide", (above, self.unary()))

    def _starts_factor(self) -> bool:
        token = self.peek()
        if token is END:
            return False
        if token.kind in ("number", "letter", "function"):
            return True
        if token.kind == "mark":
            return token.text in FACTOR_MARKS or (token.text == "|" and not self.bars)
        return token.kind == "command" and token.text in FACTOR_COMMANDS and not (token.text == "pmod")

    def _names_scale(self, left: Expression) -> bool:
        """Whether what follows belongs to a unit: the scale behind degrees, a prefix before words, a fraction of words."""
        if self.peek().text == "mu" and self.peek(1).kind == "text":
            return True
        if self.next_is("frac") and self.next_is("{", ahead=1) and self.peek(2).kind == "text":
            return True
        return left.kind == "call" and left.value == "degree" and self.peek().kind == "letter" and self.peek().text in "CFK"

    def _juxtaposed(self, left: Expression) -> Expression:
        """A product without a sign; a whole number before a fraction of whole numbers is a mixed number."""
        before, token = self.found[self.at - 1], self.peek()
        whole = left.kind == "number" and before.kind == "number" and before.text.isdigit()
        if whole and self.next_is("frac"):
            part = self.atom()
            proper = (part.kind == "divide" and all(arg.kind == "number" for arg in part.args)
                      and 0 < part.args[0].number < part.args[1].number)
            node = Node("add", (left, part)) if proper else Node("multiply", (left, part))
            return self._postfixed(node)
        if whole and token.kind == "number" and token.spaced and self.next_is("/", ahead=1) and self.peek(2).kind == "number":
            above = self.take().value
            self.take()
            below = self.take().value
            assert above is not None and below is not None
            if not 0 < above < below or left.number.denominator != 1:
                raise Malformed("two numbers side by side")
            return self._postfixed(Node("add", (left, number(above / below))))
        if token.kind == "number" and before.kind == "number":
            raise Malformed("two numbers side by side")
        braces = self.next_is("{", kind="command")
        right = self.power()
        if braces and right.kind == "set" and len(right.args) == 1:
            right = right.args[0]       # behind a factor, visible braces group
        return times(left, right)
