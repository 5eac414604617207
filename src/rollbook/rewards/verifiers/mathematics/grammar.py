"""Clauses and lists of clauses: relations, unions of sets, ratios, units, families; and the reader of a whole answer."""

from __future__ import annotations

from rollbook.rewards.verifiers.mathematics.atoms import Atoms
from rollbook.rewards.verifiers.mathematics.lexer import Token, tokens
from rollbook.rewards.verifiers.mathematics.nodes import Malformed, Node, Unsupported, call, number, symbol
from rollbook.rewards.verifiers.mathematics.terms import END
from rollbook.rewards.verifiers.mathematics.units import REFUSED, parse_unit

RELATIONS = ("=", "<", ">", "le", "ge", "ne", "in", "notin", "approx")
JOINS = {"and": "and", "or": "or", "where": "where", "for": "where", "with": "where", "for any": "where", "for all": "where",
         "for every": "where", "for integer": "where", "for some": "where", "for any integer": "where", "such that": "where",
         "for integers": "where", "for all integers": "where", "where n is any integer": "where"}
CURRENCIES = ("$", "€", "£", "¥", "₹")
LEADS = frozenset({"if", "when", "otherwise", "about", "approximately", "answer"})
HARMLESS = LEADS | {"is", "solution", "solutions", "total"}
MONEY = frozenset({"dollar", "euro", "pound_sterling", "yen", "rupee"})
PERCENT = frozenset({"percent", "per cent", "percentage", "percents", "pct"})
INTEGERS = frozenset({"is an integer", "is any integer", "integer", "is an arbitrary integer", "any integer", "are integers"})


def read(text: str) -> Node:
    """The answer that a cleaned text states. Raises Malformed or Unsupported.

    Words that follow a number are read as a unit first and, where that is no reading, as letters.
    """
    try:
        return Grammar(tokens(text)).all()
    except Malformed:
        if "\\text" in text:
            raise
        return Grammar(tokens(text, spoken=False)).all()


class Grammar(Atoms):
    """A whole answer: clauses with separators between them."""

    def all(self) -> Node:
        """The whole text as one node."""
        if self.peek() is END:
            raise Malformed("nothing")
        found, joins = self._joined(())
        if self.peek() is not END:
            raise Malformed(f"unexpected {self.peek().text!r}")
        return _combined(found, joins)

    def items(self, *closers: str) -> list[Node]:
        found, joins = self._joined(closers)
        return [_combined(found, joins)] if set(joins) - {","} else found

    def _joined(self, closers: tuple[str, ...]) -> tuple[list[Node], list[str]]:
        """Clauses up to a closing bracket, and what stands between them."""
        found, joins = [self.clause()], list[str]()
        while self.peek() is not END and not (closers and self.next_is(*closers)):
            join = self._join()
            if join is None:
                break
            found.append(self.clause())
            joins.append(join)
        return found, joins

    def _join(self) -> str | None:
        """The separator at this place; a comma before a joining word belongs to it."""
        join = None
        while True:
            token = self.peek()
            word = _join_word(token)
            if self.next_is(",", ";") or (self.next_is("cr") and not self.level):
                if join is not None:
                    raise Malformed("two separators side by side")
                join = ","
            elif word is not None:
                join = word
            elif token.kind == "command" and token.text in ("land", "lor"):
                join = "and" if token.text == "land" else "or"
            else:
                return join
            self.at += 1

    def clause(self) -> Node:
        """One statement or value: an expression, or a chain of relations, with its label and its unit."""
        currency = self._currency()
        words = None if currency else self._label()
        if words is not None:
            return words
        operands, operators = [self._with_unit(self.ratio(), currency or self._currency())], list[str]()
        while self.next_is(*RELATIONS):
            rounded = self.next_is("approx")
            operators.append("=" if rounded else self.peek().text)
            self.take()
            operands.append(self._with_unit(self.ratio(), self._currency()))
            if rounded and operands[-2].kind not in ("symbol", "brackets"):     # what stands before the sign is the exact value
                operands.pop()
                operators.pop()
        if operators:
            return Node("chain", tuple(operands), tuple(operators))
        return self._special(operands[0])

    def ratio(self) -> Node:
        """Values with colons between them, outside the braces of a set."""
        parts = [self.setwise()]
        while self.colons and self.next_is(":") and self.peek(1) is not END:
            self.take()
            parts.append(self.setwise())
        return Node("ratio", tuple(parts)) if len(parts) > 1 else parts[0]

    def setwise(self) -> Node:
        """Expressions joined by union, intersection and difference of sets, from the left."""
        left = self.additive()
        while self.next_is("cup", "cap", "setminus"):
            kind = {"cup": "union", "cap": "intersection", "setminus": "difference"}[self.take().text]
            left = Node(kind, (left, self.additive()))  # type: ignore[arg-type]
        return left

    def _special(self, first: Node) -> Node:
        """Congruences, ratios and sequences, which are read only where no relation was."""
        if self.accept("equiv"):
            second = self.additive()
            return Node("congruence", (first, second, self._modulus()))
        if self.next_is("pmod"):
            return Node("congruence", (symbol(""), first, self._modulus()))
        parts = [first]
        if self.peek().kind == "text" and self.peek().text == "to" and self.peek(1).kind == "number":
            self.take()
            return Node("ratio", (first, self.additive()))
        while self.accept("to"):
            parts.append(self.additive())
        return Node("arrows", tuple(parts)) if len(parts) > 1 else first

    def _modulus(self) -> Node:
        if self.accept("pmod"):
            return self.macro_whole()
        if self.accept("("):
            self.expect("bmod")
            modulus = self.additive()
            self.expect(")")
            return modulus
        self.expect("bmod")
        return self.additive()

    def _label(self) -> Node | None:
        """Skips the words before a value (`Total:`, `Area =`); where nothing but words follow, they are the clause."""
        start = self.at
        while self.peek().kind == "text" and _join_word(self.peek()) is None:
            self.at += 1
        if self.at == start:
            return None
        said = " ".join(token.text for token in self.found[start:self.at])
        lowered = said.lower().strip()
        if self.next_is("=", ":"):
            self.take()
        elif not lowered.endswith((":", "=")):
            if self._clause_ends():
                return Node("words", value=said)
            if lowered not in LEADS and not lowered.endswith(" is"):
                raise Malformed("words before an expression")
        if (REFUSED - HARMLESS) & set(lowered.replace(":", " ").split()):
            raise Malformed("words that may deny what follows")
        return None

    def _clause_ends(self) -> bool:
        token = self.peek()
        return token is END or self.next_is(",", ";", ")", "]", "}", "cr", "&") or token.text.startswith("end:") \
            or _join_word(token) is not None

    def _currency(self) -> str:
        """A sign or a word of money before its amount."""
        if self.next_is(*CURRENCIES):
            return self.take().text
        money = parse_unit(self.peek().text) if self.peek().kind == "text" and self.peek(1).kind == "number" else None
        return self.take().text if money is not None and money.dimensions and money.dimensions[0][0] in MONEY else ""

    def _with_unit(self, node: Node, currency: str) -> Node:
        """The value with the unit that stands before or behind it."""
        text = currency if currency != "$" else "\\$"
        if self.next_is("frac") and self.next_is("{", ahead=1) and self.peek(2).kind == "text":
            text += self._unit_fraction()
        if self.peek().text == "mu" and self.peek(1).kind == "text":
            self.take()
            text += " u" + self.take().text
        if self.next_is("/") and self.peek(1).kind == "text":
            text += self.take().text
        while self.peek().kind == "text" and _join_word(self.peek()) is None and self.peek().text != "to":
            text += " " + self.take().text
            text += self._unit_power()
            if self.next_is("/", "cdot") and self.peek(1).kind in ("text", "letter"):
                text += " / " if self.take().text == "/" else " "
                if self.peek().kind == "letter":
                    text += self.take().text + self._unit_power()
        if text.strip() and self.peek().kind == "number":
            return self._compound(measured(node, text.strip()))
        if node.kind == "call" and node.value == "degree" and self.peek().kind == "letter" and self.peek().text in "CFK":
            return Node("quantity", node.args, "°" + self.take().text)
        said = text.strip()
        if not said:
            return node
        if said.lower() in INTEGERS and node.kind == "symbol":
            return Node("chain", (node, Node("field", value="Z")), ("in",))
        return measured(node, said)

    def _compound(self, first: Node) -> Node:
        """A measure in two units, 2 h 30 min, in the first of them."""
        second = self._with_unit(self.additive(), "")
        units = [parse_unit(node.name) if node.kind == "quantity" else None for node in (first, second)]
        if units[0] is None or units[1] is None or not units[0].comparable(units[1]) or units[0].factor <= units[1].factor:
            raise Malformed("two measures side by side")
        part = Node("multiply", (number(units[1].factor / units[0].factor), second.args[0]))
        return Node("quantity", (Node("add", (first.args[0], part)),), first.value)

    def _unit_fraction(self) -> str:
        """A fraction of units: what stands in the two groups, with a stroke between them."""
        self.take()
        sides = []
        for _ in range(2):
            self.expect("{")
            said = ""
            while not self.next_is("}", kind="mark"):
                said += " " + self.take().text + self._unit_power()
            self.take()
            sides.append(said)
        return "/".join(sides)

    def _unit_power(self) -> str:
        if not self.next_is("^"):
            return ""
        self.take()
        power = self.exponent()
        if power.kind != "number" or power.number.denominator != 1 or abs(power.number) > 9:
            raise Malformed("a unit with a strange exponent")
        return f"^{power.number}"


def measured(node: Node, said: str) -> Node:
    """A value with its unit in words; per cent and degrees are part of the value."""
    lowered = said.lower().strip(" .")
    if lowered in PERCENT or lowered == "%":
        return Node("multiply", (node, Node("divide", (number(1), number(100)))))
    if lowered in ("degree", "degrees", "deg"):
        return call("degree", node)
    if node.kind == "call" and node.value == "degree":
        if lowered.upper() in ("C", "F", "CELSIUS", "FAHRENHEIT"):
            return Node("quantity", node.args, "°" + lowered[0].upper())
        raise Malformed("degrees of something else")
    if lowered in ("st", "nd", "rd", "th"):
        return node
    if parse_unit(said) is None:
        raise Malformed("words that are no unit")
    return Node("quantity", (node,), said)


def _join_word(token: Token) -> str | None:
    return JOINS.get(token.text.lower().strip(" ,")) if token.kind == "text" else None


def _combined(found: list[Node], joins: list[str]) -> Node:
    """One node for the clauses of an answer: a value, a list, a family with its parameter, alternatives or joint conditions."""
    if len(found) == 1:
        return found[0]
    last = found[-1]
    if last.kind == "chain" and last.operators == ("in",) and last.args[0].kind == "symbol" and last.args[1].kind == "field" \
            and last.args[1].name[0] in "ZN":
        rest = _combined(found[:-1], joins[:-1])
        return Node("family", (last.args[0], rest), last.args[1].name)
    if any(join == "where" for join in joins):
        raise Unsupported("a condition in words")
    ordered = any(node.kind == "chain" and set(node.operators) & {"<", ">", "le", "ge", "ne"} for node in found)
    if ordered and "or" in joins and "and" not in joins:
        return Node("any_of", tuple(found))
    if set(joins) == {"or"}:
        return Node("list", tuple(found), ("or",))
    return Node("all_of" if ordered and set(joins) <= {"and", ","} else "list", tuple(found))
