"""Whether two answers that were read state the same: one rule per kind of answer, the first that applies decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpmath import mp

from rollbook.rewards.verifiers.mathematics import gathered, realsets, relations
from rollbook.rewards.verifiers.mathematics.equality import CONSTANTS, form, same_value
from rollbook.rewards.verifiers.mathematics.exact import exact
from rollbook.rewards.verifiers.mathematics.gathered import same_items
from rollbook.rewards.verifiers.mathematics.matrices import flatten
from rollbook.rewards.verifiers.mathematics.nodes import Node, Unsupported, number, substitute, symbol, symbols
from rollbook.rewards.verifiers.mathematics.piecewise import same_piecewise
from rollbook.rewards.verifiers.mathematics.units import parse_unit

SETS = frozenset({"union", "intersection", "difference", "builder", "field", "any_of", "all_of"})
Rule = Callable[[Node, Node], bool | None]


def same(answer: Node, wanted: Node) -> bool:
    """Whether the answer states what is wanted. Raises Undecided where the bounds of the methods are reached.

    What the answer asks for but mathematics does not give (a division by zero) is Malformed, from whichever side it comes.
    """
    with mp.workdps(realsets.DIGITS):
        return _same(prepared(answer), prepared(wanted))


def _same(answer: Node, wanted: Node) -> bool:
    for rule in RULES:
        decided = rule(answer, wanted)
        if decided is not None:
            return decided
    return False


def prepared(node: Node) -> Node:
    """The tree with matrix arithmetic done, plus-minus written out as two answers, and operations on finite sets carried out."""
    node = gathered.described(gathered.unrolled(flatten(node)))
    node = gathered.computed(gathered.spread(gathered.unpacked(node)), _same)
    node = gathered.alternatives(node, _same)
    if node.kind == "builder" and node.args[0] != node.args[1]:
        return gathered.image(node)
    return node


def _words(answer: Node, wanted: Node) -> bool | None:
    if "words" not in (answer.kind, wanted.kind):
        return None
    return answer.kind == wanted.kind and answer.name.casefold().strip(" .") == wanted.name.casefold().strip(" .")


def _family(answer: Node, wanted: Node) -> bool | None:
    """Infinite families: the parameter is bound, its name does not matter; a shift or a change of sign of it does not either."""
    if "family" not in (answer.kind, wanted.kind):
        return None
    if answer.kind != wanted.kind or answer.value != wanted.value:
        return False
    parameter = wanted.args[0].name
    one, other = substitute(answer.args[1], answer.args[0].name, wanted.args[0]), wanted.args[1]
    if one.kind == "list" or other.kind == "list":
        left, right = (node.args if node.kind == "list" else (node,) for node in (one, other))
        return same_items([_member(wanted, part) for part in left], [_member(wanted, part) for part in right], _same)
    if _same(one, other):
        return True
    values = [relations.value_of(node) if relations.name_of(node) else node for node in (one, other)]
    if relations.name_of(one) and relations.name_of(other) and relations.name_of(one) != relations.name_of(other):
        return False
    return answer.value == "Z" and _same_progression(values[0], values[1], parameter)


def _member(family: Node, part: Node) -> Node:
    return Node("family", (family.args[0], part), family.value)


def _same_progression(one: Node, other: Node, parameter: str) -> bool:
    """Whether a + b k and c + d k run over the same values: b = d or b = -d, and a - c a multiple of b."""
    at = [[substitute(node, parameter, number(k)) for k in (0, 1, 2)] for node in (one, other)]
    steps = [relations.difference(values[1], values[0]) for values in at]
    for values, step in zip(at, steps, strict=True):
        if not same_value(relations.difference(values[2], values[1]), step) or same_value(step, relations.ZERO):
            return False
    if not (same_value(steps[0], steps[1]) or same_value(steps[0], Node("negate", (steps[1],)))):
        return False
    shift = Node("divide", (relations.difference(at[0][0], at[1][0]), steps[1]))
    return any(same_value(shift, number(k)) for k in range(-6, 7))


def _cases(answer: Node, wanted: Node) -> bool | None:
    """Piecewise definitions: the same value under the same condition, in any order; or the same values throughout."""
    if "cases" not in (answer.kind, wanted.kind):
        return None
    if answer.kind != wanted.kind:
        return bool({answer.kind, wanted.kind} & EXPRESSIONS) and same_piecewise(answer, wanted) is True

    def same_row(one: Node, other: Node) -> bool:
        return len(one.args) == len(other.args) and all(_same(a, b) for a, b in zip(one.args, other.args, strict=True))

    return same_items(list(answer.args), list(wanted.args), same_row) or same_piecewise(answer, wanted) is True


def _residue(node: Node) -> Node:
    """`3 mod 7` beside a congruence is one."""
    return Node("congruence", (symbol(""), *node.args)) if node.kind == "call" and node.value == "mod" else node


def _congruence(answer: Node, wanted: Node) -> bool | None:
    if "congruence" not in (answer.kind, wanted.kind):
        return None
    answer, wanted = (_residue(node) for node in (answer, wanted))
    if answer.kind != wanted.kind or not same_value(answer.args[2], wanted.args[2]):
        return False
    unnamed = "" in (answer.args[0].value, wanted.args[0].value)
    if not unnamed and form(answer.args[0]) != form(wanted.args[0]):
        return False
    gap, modulus = exact(relations.difference(answer.args[1], wanted.args[1])), exact(wanted.args[2])
    if gap is None or not modulus:
        return same_value(answer.args[1], wanted.args[1])
    return (gap / modulus).denominator == 1


def _ratio(answer: Node, wanted: Node) -> bool | None:
    """Ratios are equal when they are proportional; a ratio of two is also their quotient."""
    if "ratio" not in (answer.kind, wanted.kind) or "chain" in (answer.kind, wanted.kind):
        return None
    parts = [node.args if node.kind == "ratio" else (node, number(1)) for node in (answer, wanted)]
    if len(parts[0]) != len(parts[1]) or any(part.kind not in EXPRESSIONS for side in parts for part in side):
        return False
    (first, *rest), (wanted_first, *wanted_rest) = parts
    return all(same_value(Node("multiply", (one, wanted_first)), Node("multiply", (other, first)))
               for one, other in zip(rest, wanted_rest, strict=True))


def _point(answer: Node, wanted: Node) -> bool | None:
    """A point may lose its name: P(2,5) and (2,5)."""
    plain = [_coordinates(node) for node in (answer, wanted)]
    if plain[0] is None and plain[1] is None:
        return None
    sides = [coordinates if coordinates is not None else node for coordinates, node in zip(plain, (answer, wanted), strict=True)]
    if None not in plain and answer.value != wanted.value:
        return False
    return _same(*sides) if all(node.kind == "brackets" for node in sides) else None


def _coordinates(node: Node) -> Node | None:
    """The pair of a named point, `P(2,5)`; None for anything else, a function of symbols among it."""
    named = node.kind == "call" and node.name.startswith("of:") and len(node.name) == 4 and node.name[3].isupper()
    if not named or len(node.args) < 2 or any(symbols(arg) - CONSTANTS for arg in node.args):
        return None
    return Node("brackets", node.args, "()")


def _arrows(answer: Node, wanted: Node) -> bool | None:
    if "arrows" not in (answer.kind, wanted.kind):
        return None
    return answer.kind == wanted.kind and len(answer.args) == len(wanted.args) and all(
        _same(one, other) for one, other in zip(answer.args, wanted.args, strict=True))


def _quantity(answer: Node, wanted: Node) -> bool | None:
    """A unit may be left out; where both have one it must measure the same thing, and is converted."""
    if "quantity" not in (answer.kind, wanted.kind):
        return None
    if not {answer.kind, wanted.kind} <= EXPRESSIONS | {"quantity"}:
        return None
    units = [parse_unit(node.name) if node.kind == "quantity" else None for node in (answer, wanted)]
    values = [node.args[0] if node.kind == "quantity" else node for node in (answer, wanted)]
    if any(value.kind not in EXPRESSIONS for value in values):
        return False
    bare = all(unit is None or unit.bare for unit in units)
    if not bare and units[0] is not None and units[1] is not None and not units[0].comparable(units[1]):
        return False
    if bare or None not in units:
        values = [Node("multiply", (number(unit.factor), value)) if unit else value for unit,
                  value in zip(units, values, strict=True)]
    return same_value(values[0], values[1])


def _named(answer: Node, wanted: Node) -> bool | None:
    """Equations: a named value may lose its name; two named values need the same name; others need the same solutions."""
    left, right = relations.is_equation(answer), relations.is_equation(wanted)
    if not (left or right) or "list" in (answer.kind, wanted.kind) or relations.is_order(answer) or relations.is_order(wanted):
        return None
    names = relations.name_of(answer), relations.name_of(wanted)
    if left and right:
        if names[0] and names[1] and names[0] == names[1]:
            return _same(relations.renamed(answer, wanted), relations.value_of(wanted))
        if names[0] and names[1] and (names[0].startswith(("of:", "(")) or names[1].startswith(("of:", "("))):
            return "y" in names and "of:" in {str(name)[:3] for name in names} \
                and _same(relations.value_of(answer), relations.value_of(wanted))
        return relations.same_equation(answer, wanted)
    equation, other, name = (answer, wanted, names[0]) if left else (wanted, answer, names[1])
    if name is None and not _true_throughout(equation):
        return False
    if other.kind in SETS and equation.args[-1].kind in EXPRESSIONS:
        return None
    value = relations.value_of(equation)
    return _same(value, other) if left else _same(other, value)


def _true_throughout(equation: Node) -> bool:
    """Whether an equation without symbols holds, so that its last side is what was computed."""
    if symbols(equation) - CONSTANTS or any(arg.kind not in EXPRESSIONS for arg in equation.args):
        return False
    return all(same_value(one, equation.args[-1]) for one in equation.args[:-1])


def _real_set(answer: Node, wanted: Node) -> bool | None:
    """Intervals, inequalities, unions and set builders as sets of real numbers; equations with several solutions as these."""
    solved = _are_equations(answer, wanted)
    if not solved and not any(map(_is_real_set, (answer, wanted))) and not _is_set_with_interval(answer, wanted):
        return None
    if answer.kind == wanted.kind == "field":
        return answer.value == wanted.value
    sides: list[realsets.Pieces | None] = []
    for node in (answer, wanted):
        joined = node.kind == "list" and (solved or all(arg.kind == "brackets" for arg in node.args))
        try:
            sides.append(realsets.pieces(Node("union", node.args) if joined else node))
        except Unsupported:
            sides.append(None)
    if sides[0] is not None and sides[1] is not None:
        return realsets.same_set(sides[0], sides[1]) and _same_variable(answer, wanted)
    return _same_statement(answer, wanted)


def _is_real_set(node: Node) -> bool:
    return node.kind in SETS or relations.is_order(node) or (node.kind == "chain" and bool(set(node.operators) & {"in", "notin"}))


def _is_set_with_interval(answer: Node, wanted: Node) -> bool:
    """{2} against [2,2]; a set of one pair against that pair is something else."""
    found, marks = sorted((answer, wanted), key=lambda node: node.kind != "set")
    return (found.kind, marks.kind) == ("set", "brackets") and len(marks.args) == 2 \
        and not (len(found.args) == 1 and found.args[0].kind == "brackets")


def _are_equations(answer: Node, wanted: Node) -> bool:
    """An equation in one variable against a list of values of that variable: x^2 = 16 and x = 4, x = -4."""
    if sorted((answer.kind, wanted.kind)) != ["chain", "list"]:
        return False
    parts = [part for node in (answer, wanted) for part in (node.args if node.kind == "list" else (node,))]
    return all(map(relations.is_equation, parts)) and len(symbols(answer) - CONSTANTS) == len(symbols(wanted) - CONSTANTS) == 1


def _same_variable(answer: Node, wanted: Node) -> bool:
    """Whether the inequalities on both sides speak of the same variable, where both name one."""
    names = [symbols(node) - CONSTANTS for node in (answer, wanted)]
    return not (names[0] and names[1]) or names[0] == names[1]


def _same_statement(answer: Node, wanted: Node) -> bool:
    """Conditions that are no sets of reals: the same inequalities, or the same parts in the same order."""
    try:
        return relations.same_conditions(answer, wanted)
    except Unsupported:
        pass
    if answer.kind == wanted.kind and answer.kind in ("union", "intersection"):
        return same_items(_operands(answer), _operands(wanted), _same)
    if (answer.kind, answer.value, len(answer.args)) != (wanted.kind, wanted.value, len(wanted.args)):
        return False
    return all(_same(one, other) for one, other in zip(answer.args, wanted.args, strict=True))


def _named_list(answer: Node, wanted: Node) -> bool | None:
    return gathered.same_named(answer, wanted, _same)


def _operands(node: Node) -> list[Node]:
    """The sets that a chain of unions (or of intersections) joins."""
    return [part for arg in node.args for part in (_operands(arg) if arg.kind == node.kind else [arg])]


def _gathered(answer: Node, wanted: Node) -> bool | None:
    return gathered.same_gathered(answer, wanted, _same)


def _matrix(answer: Node, wanted: Node) -> bool | None:
    if "matrix" not in (answer.kind, wanted.kind):
        return None
    return (answer.kind, answer.value) == (wanted.kind, wanted.value) and all(
        _same(one, other) for one, other in zip(answer.args, wanted.args, strict=True))


def _expression(answer: Node, wanted: Node) -> bool | None:
    """Two expressions; an angle in degrees may lose its sign."""
    if answer.kind not in EXPRESSIONS or wanted.kind not in EXPRESSIONS:
        return None
    stripped = [node.args[0] if node.kind == "call" and node.value == "degree" else node for node in (answer, wanted)]
    if (stripped[0] is answer) != (stripped[1] is wanted) and same_value(stripped[0], stripped[1]):
        return True
    return same_value(answer, wanted)


EXPRESSIONS = frozenset({"number", "symbol", "add", "multiply", "negate", "divide", "power", "call", "calculus", "infinity",
                         "dots"})
RULES: Sequence[Rule] = (_words, _point, _family, _cases, _congruence, _ratio, _arrows, _named_list, _quantity, _named, _real_set,
                         _gathered,
                         _matrix, _expression)
