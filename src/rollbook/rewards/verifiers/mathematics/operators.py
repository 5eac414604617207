"""Roots, fractions, sums, products, integrals, limits and derivatives: LaTeX commands with an argument or an index."""

from __future__ import annotations

from rollbook.rewards.verifiers.mathematics.nodes import Malformed, Node, Unsupported, call, number, symbol
from rollbook.rewards.verifiers.mathematics.terms import END, Terms


class Operators(Terms):
    """The commands that take arguments; each reads what follows its name."""

    def _read_sqrt(self) -> Node:
        index = number(2)
        if self.next_is("["):
            self.take()
            index = self.additive()
            self.expect("]")
        return call("root", self.atom(), index)

    def _read_cbrt(self) -> Node:
        return call("root", self.atom(), number(3))

    def _read_binom(self) -> Node:
        above = self.macro_argument()
        return call("binom", above, self.macro_argument())

    def _read_frac(self) -> Node:
        if self._is_derivative():
            self.at += 4
            variable = symbol(self.found[self.at].text)
            self.at += 2
            return Node("calculus", (variable, self.term()), "derivative")
        above = self.macro_argument()
        return Node("divide", (above, self.macro_argument()))

    def _is_derivative(self) -> bool:
        shape = ["{", "d", "}", "{", "d", None, "}"]
        seen = [self.peek(offset).text for offset in range(len(shape))]
        if all(want in (None, got) for want, got in zip(shape, seen, strict=True)) and self.peek(5).kind == "letter":
            self.at += 1
            return True
        return False

    # sums, products, integrals, limits -------------------------------------------------------------------------------------

    def _read_sum(self) -> Node:
        return self._indexed("sum")

    def _read_prod(self) -> Node:
        return self._indexed("product")

    def _indexed(self, kind: str) -> Node:
        self.expect("_")
        self.expect("{")
        index = self.take()
        if index.kind != "letter" or not self.accept("="):
            raise Unsupported(f"a {kind} over something else than an index")
        low = self.additive()
        self.expect("}")
        self.expect("^")
        high = self.exponent()
        return Node("calculus", (symbol(index.text), self.term(), low, high), kind)

    def _read_lim(self) -> Node:
        self.expect("_")
        self.expect("{")
        variable = self.take()
        self.expect("to")
        to = self.additive()
        if variable.kind != "letter" or not self.accept("}"):
            raise Unsupported("a limit from one side")
        return Node("calculus", (symbol(variable.text), self.term(), to), "limit")

    def _read_int(self) -> Node:
        bounds: dict[str, Node] = {}
        while self.next_is("_", "^"):
            mark = self.take().text
            bounds[mark] = self.atom()
        start, depth = self.at, 0
        while not (depth == 0 and self.peek().text == "d" and self.peek(1).kind == "letter"):
            if self.peek() is END:
                raise Unsupported("an integral without a differential")
            depth += (self.peek().text in ("(", "{")) - (self.peek().text in (")", "}"))
            self.at += 1
        end, variable = self.at, self.peek(1)
        rest = self.found[end + 2:]
        self.found, self.at = [*self.found[:end]], start
        body = number(1) if start == end else self.additive()
        if self.at != end:
            raise Malformed("an integrand that does not end at its differential")
        self.found = [*self.found[:end], *self.found[end:end], *rest]
        ends = (bounds["_"], bounds["^"]) if len(bounds) == 2 else ()
        return Node("calculus", (symbol(variable.text), body, *ends), "integral")
