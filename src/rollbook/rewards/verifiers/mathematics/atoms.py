"""What an expression is built from: names, functions, fractions, roots, sums, matrices."""

from __future__ import annotations

from rollbook.rewards.verifiers.mathematics.nodes import Malformed, Node, Unsupported, call, number, symbol
from rollbook.rewards.verifiers.mathematics.operators import Operators
from rollbook.rewards.verifiers.mathematics.terms import MAX_DEPTH, Expression

CLOSERS = {"(": (")", "]"), "[": ("]", ")"), "langle": ("rangle",)}
APPLIED = frozenset("fghFGHP")
DECORATIONS = ("overline", "vec", "hat", "tilde", "widehat", "overrightarrow", "dot")
MATRICES = frozenset({"pmatrix", "bmatrix", "matrix", "Bmatrix", "smallmatrix", "array", "vmatrix"})
ROWS = frozenset({"aligned", "align", "gathered", "gather", "split", "equation", "alignat"})
SEVERAL = frozenset({"max", "min", "gcd", "lcm", "binom"})
OPERATORS = frozenset({"}", "cr", "cup", "cap", "setminus", "to", "in", "notin", "le", "ge", "ne", "cdot", "times", "div",
                       "bmod", "pm",
                       "mp", "land", "lor", "equiv", "approx", "rangle", "rfloor", "rceil"})
INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot"}


class Atoms(Operators):
    """Atoms of expressions. What stands between brackets is read by the class below."""

    def items(self, *closers: str) -> list[Node]:
        raise NotImplementedError

    def clause(self) -> Node:
        raise NotImplementedError

    def atom(self) -> Expression:
        self.level += 1
        if self.level > MAX_DEPTH:
            raise Malformed("nested too deeply")
        node = self._atom()
        self.level -= 1
        return node

    def _atom(self) -> Expression:
        token = self.take()
        match token.kind:
            case "number":
                assert token.value is not None
                if self.next_is("_"):
                    raise Unsupported("a numeral with a base inside an expression")
                return number(token.value)
            case "letter":
                return self._named(token.text)
            case "function":
                return self._function(token.text)
            case "text":
                raise Malformed("words inside an expression")
            case "mark":
                return self._marked(token.text)
            case "command":
                return self._command(token.text)

    def _marked(self, text: str) -> Expression:
        if text in ("(", "["):
            return self._bracketed(text)
        if text == "{":
            return self._group()
        if text == "|":
            return self._between_bars()
        raise Malformed(f"unexpected {text!r}")

    def _command(self, text: str) -> Expression:
        reader = getattr(self, f"_read_{text}", None) if text.isalpha() else None
        if reader is not None:
            node: Node = reader()
            return node
        if text in DECORATIONS:
            return symbol(f"{text}({self._spelled(self.macro_argument())})")
        if text == "{":
            return self._braced()
        if text.startswith("begin:"):
            return self._environment(text[6:])
        if text.startswith("field:"):
            return self._field(text[6:])
        if text in ("R", "Z"):
            return self._field(text)
        if text in OPERATORS or text.startswith("end:"):
            raise Malformed(f"unexpected \\{text}")
        raise Unsupported(f"\\{text}")

    # names -----------------------------------------------------------------------------------------------------------------

    def _named(self, name: str) -> Expression:
        """A symbol with its subscript; f(x) is a value of f, not a product."""
        if self.next_is("_"):
            self.take()
            name += f"_{self._spelled(self.macro_whole())}"
        primes = 0
        while self.next_is("'"):
            self.take()
            primes += 1
        if name == "C" and self.next_is("(") and self.peek(1).kind == "number" and self.next_is(",", ahead=2):
            self.take()
            return call("binom", *self._inside("("))
        if name in APPLIED and [self.peek(ahead).text for ahead in range(6)] == ["^", "{", "-", "1", "}", "("]:
            self.at += 6
            return call(f"of:{name}^-1", *self._inside("("))
        applied = name[0] in APPLIED and len(name.split("_")[0]) == 1 and self.next_is("(") and not self.peek().spaced
        if applied or self._is_defined():
            self.take()
            return call("of:" + name + "'" * primes, *self._inside("("))
        return symbol(name + "'" * primes)

    def _is_defined(self) -> bool:
        """Whether `(x)=` follows, as behind the name of a function that is being defined."""
        return self.next_is("(") and self.peek(1).kind == "letter" and self.next_is(")", ahead=2) and self.next_is("=", ahead=3)

    def macro_whole(self) -> Expression:
        """A subscript: a group or one atom, a number taken whole."""
        return self.atom()

    def _spelled(self, node: Node) -> str:
        """A subscript or a decorated name as text."""
        if node.kind == "number":
            return str(node.number)
        if node.kind == "symbol" or node.kind == "words":
            return node.name
        return ",".join(self._spelled(arg) for arg in node.args) if node.args else node.kind

    def _field(self, name: str) -> Node:
        if self.accept("^"):
            if self.accept("+"):
                return Node("field", value=name + "+")
            raised = self.exponent()
            return Node("field", value=f"{name}^{self._spelled(raised)}")
        return Node("field", value=name)

    def _read_infty(self) -> Node:
        return Node("infinity")

    def _read_emptyset(self) -> Node:
        return Node("set")

    def _read_dots(self) -> Node:
        return Node("dots")

    def _read_angle(self) -> Node:
        name = ""
        while self.peek().kind == "letter" or (self.peek().kind == "text" and self.peek().text.isupper()):
            name += self.take().text
        return symbol(f"angle({name})")

    _read_triangle = _read_angle

    # functions -------------------------------------------------------------------------------------------------------------

    def _function(self, name: str) -> Expression:
        """A function with its exponent, its base and its argument: sin^2 x, log_2 8, max(3,7)."""
        raised = base = None
        while self.next_is("^", "_"):
            if self.take().text == "^":
                raised = self.exponent()
            else:
                base = self.macro_whole()
        if name in SEVERAL or name in ("floor", "ceil", "abs", "factorial") or (self.next_is("(") and not self.bars):
            self.expect("(", "{") if not self.next_is("(") else self.take()
            args = self._inside("(" if self.found[self.at - 1].text == "(" else "{")
        else:
            args = (self._argument(),)
        if raised is not None and raised.kind == "number" and raised.number == -1 and name in INVERSES:
            return call(INVERSES[name], *args)
        node = call(name, *args) if base is None else call("log_base", base, *args)
        if base is not None and name != "log":
            raise Unsupported(f"\\{name} with a subscript")
        return Node("power", (node, raised)) if raised is not None else node

    def _argument(self) -> Expression:
        """The argument of a function written without brackets: factors up to the next function, operator or bracket."""
        if self.accept("-"):
            return Node("negate", (self._argument(),))
        node = self.power()
        while self._starts_factor() and not self.next_is("(", "[", "{", "sum", "int") and self.peek().kind != "function":
            node = self._juxtaposed(node)
        constant = all(part.kind != "symbol" or part.name == "pi" for part in node.walk())
        if constant and any(part.kind == "symbol"
                            for part in node.walk()) and self.next_is("/") and self.peek(1).kind == "number":
            self.take()
            node = Node("divide", (node, self.power()))
        return node

    # brackets --------------------------------------------------------------------------------------------------------------

    def _inside(self, opener: str) -> tuple[Node, ...]:
        """The items up to the closing bracket."""
        bars, colons, self.bars, self.colons = self.bars, self.colons, 0, True
        closers = ("}",) if opener == "{" else CLOSERS[opener]
        found = [] if self.next_is(*closers) else self.items(*closers)
        self.expect(*closers)
        self.bars, self.colons = bars, colons
        return tuple(found)

    def _bracketed(self, opener: str) -> Node:
        """Grouping, a tuple, a list in square brackets or an interval: which of them is decided by what it is compared with."""
        found = self._inside(opener)
        closer = self.found[self.at - 1].text
        if len(found) == 1:
            if (opener, closer) not in (("(", ")"), ("[", "]")):
                raise Malformed(f"{opener} closed by {closer}")
            return found[0]
        return Node("brackets", found, opener + closer)

    def _read_langle(self) -> Node:
        return Node("brackets", self._inside("langle"), "()")

    def _group(self) -> Node:
        """What stands in braces, with the old infix commands for fractions and binomials."""
        bars, colons, self.bars, self.colons = self.bars, self.colons, 0, True
        if self.next_is("}", kind="mark"):
            raise Malformed("an empty group")
        found = self.items("}", "choose", "over")
        infix = self.take().text if self.next_is("choose", "over") else ""
        if infix:
            below = self.additive()
            found = [call("binom", found[0], below) if infix == "choose" else Node("divide", (found[0], below))]
        if not self.next_is("}", kind="mark"):
            raise Malformed("a group that is not closed")
        self.take()
        self.bars, self.colons = bars, colons
        return found[0] if len(found) == 1 else Node("list", tuple(found))

    def _between_bars(self) -> Node:
        self.bars += 1
        inner = self.additive()
        self.expect("|")
        self.bars -= 1
        return call("det" if inner.kind == "matrix" else "abs", inner)

    def _read_lfloor(self) -> Node:
        inner = self.additive()
        self.expect("rfloor")
        return call("floor", inner)

    def _read_lceil(self) -> Node:
        inner = self.additive()
        self.expect("rceil")
        return call("ceil", inner)

    def _braced(self) -> Node:
        r"""A set between \{ and \}: its elements, or an element and the condition on it."""
        bars, colons, self.bars, self.colons = self.bars, self.colons, 1, False
        if self.accept("}"):
            self.bars, self.colons = bars, colons
            return Node("set")
        found = self.items("}", "|", ":")
        node = Node("set", tuple(found))
        if self.accept("|", ":"):
            self.bars = 0
            conditions = self.items("}")
            condition = conditions[0] if len(conditions) == 1 else Node("all_of", tuple(conditions))
            node = _builder(found[0], condition)
        if not self.next_is("}", kind="command"):
            raise Malformed("a set that is not closed")
        self.take()
        self.bars, self.colons = bars, colons
        return node

    # environments ----------------------------------------------------------------------------------------------------------

    def _environment(self, name: str) -> Node:
        if name not in MATRICES | ROWS | {"cases", "dcases", "rcases"}:
            raise Unsupported(f"environment {name}")
        rows: list[list[Node]] = []
        while not self.next_is(f"end:{name}"):
            cells = self._row(name)
            if cells:
                rows.append(cells)
            if not self.accept("cr") and not self.next_is(f"end:{name}"):
                raise Malformed(f"environment {name} is not closed")
        self.take()
        if not rows:
            raise Malformed(f"environment {name} is empty")
        if name in MATRICES:
            if len({len(row) for row in rows}) > 1:
                raise Malformed("rows of different lengths")
            matrix = Node("matrix", tuple(cell for row in rows for cell in row), f"{len(rows)}x{len(rows[0])}")
            return call("det", matrix) if name == "vmatrix" else matrix
        if name in ROWS or all(len(row) == 1 for row in rows):
            cells = [cell for row in rows for cell in row]
            return cells[0] if len(cells) == 1 else Node("list", tuple(cells))
        return Node("cases", tuple(Node("list", tuple(row)) for row in rows))

    def _row(self, name: str) -> list[Node]:
        if name in ROWS:
            end = next((i for i in range(self.at, len(self.found)) if self.found[i].text in ("cr", f"end:{name}")),
                       len(self.found))
            self.found[self.at:end] = [token for token in self.found[self.at:end] if token.text != "&"]
        if self.next_is("cr", f"end:{name}"):
            return []
        cells = [self._cell()]
        while self.accept("&"):
            if self.next_is("cr", f"end:{name}"):
                break
            cells.append(self._cell())
        return cells

    def _cell(self) -> Node:
        """One cell; in words where it is no mathematics."""
        start, level = self.at, self.level
        ends = ("&", "cr", *{token.text for token in self.found[start:] if token.text.startswith("end:")})
        try:
            found = self.items(*ends)
            if not self.next_is(*ends):
                raise Malformed("a cell that does not end")
        except Malformed:
            self.at, self.level = start, level
            said = []
            while not self.next_is(*ends):
                said.append(self.take().text)
            if not any(len(word) > 1 for word in said):
                raise
            return Node("words", value=" ".join(said).removeprefix("if "))
        return found[0] if len(found) == 1 else Node("all_of", tuple(found))


def _builder(element: Node, condition: Node) -> Node:
    """The set of what meets a condition; the bound symbol is the element, or what is said to be in a set."""
    bound = element
    if element.kind == "chain" and element.operators == ("in",):
        bound = element.args[0]
        condition = condition if element.args[1].value == "R" else Node("all_of", (element, condition))
    if bound.kind != "symbol":
        names = sorted({part.name for part in condition.walk() if part.kind == "symbol"})
        bound = symbol(names[0]) if len(names) == 1 else symbol("")
    return Node("builder", (bound, element if element.kind != "chain" else bound, condition))
