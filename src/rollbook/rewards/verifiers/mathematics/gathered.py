"""Several values in one answer: lists, sets, tuples, and what a plus-minus sign stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from itertools import product

from rollbook.rewards.verifiers.mathematics import realsets
from rollbook.rewards.verifiers.mathematics.nodes import (
    Node,
    Unsupported,
    negate,
    number,
    substitute,
    symbol,
    symbols,
)
from rollbook.rewards.verifiers.mathematics.relations import is_equation, name_of, value_of

MAX_ITEMS = 60
MAX_SPREAD = 4
MAX_UNROLLED = 1000
Same = Callable[[Node, Node], bool]
OPERATIONS = frozenset({"union", "intersection", "difference", "multiply"})
GATHERED = frozenset({"list", "set", "brackets"})


def same_items(left: Sequence[Node], right: Sequence[Node], same: Same) -> bool:
    """Whether two collections hold the same items in whatever order, each as often."""
    if len(left) != len(right):
        return False
    if len(left) > MAX_ITEMS:
        return all(same(one, other) for one, other in zip(left, right, strict=True))
    rest = list(left)
    for wanted in right:
        match = next((position for position, item in enumerate(rest) if same(item, wanted)), None)
        if match is None:
            return False
        rest.pop(match)
    return True


def same_in_order(left: Sequence[Node], right: Sequence[Node], same: Same) -> bool:
    return len(left) == len(right) and all(same(one, other) for one, other in zip(left, right, strict=True))


def distinct(items: Sequence[Node], same: Same) -> list[Node]:
    """The items without repetitions."""
    found: list[Node] = []
    for item in items:
        if not any(same(item, other) for other in found):
            found.append(item)
    return found


def spread(node: Node) -> Node:
    """The tree with every answer that has a plus-minus sign written as two; lists inside lists are one list."""
    if node.kind in ("list", "set"):
        named_once = node.kind == "list" and any(arg.kind == "brackets" for arg in node.args)       # (x,y) = (1,2) or (2,1)
        args = [value_of(arg) if named_once and is_equation(arg) else unpacked(arg) for arg in node.args]
        items = [part for arg in args for part in _parts(spread(arg), node.kind)]
        return Node(node.kind, tuple(items), node.value if len(items) == len(node.args) else None)
    signs = [part for part in node.walk() if part.kind == "plus_minus"]
    if not signs:
        return node
    if node.kind in ("brackets", "union", "cases", "family"):
        return Node(node.kind, tuple(spread(arg) for arg in node.args), node.value)
    if len(signs) > MAX_SPREAD:
        raise Unsupported("many plus-minus signs")
    return Node("list", (_signed(node, 1), _signed(node, -1)))


def unpacked(node: Node) -> Node:
    """(a,b) = (1,2) as the list a = 1, b = 2; x in {1,2} as the list x = 1, x = 2."""
    if is_equation(node) and len(node.args) == 2 and all(arg.kind == "brackets" for arg in node.args) \
            and len(node.args[0].args) == len(node.args[1].args) and all(arg.kind == "symbol" for arg in node.args[0].args):
        return Node("list", tuple(Node("chain", pair, ("=",)) for pair in zip(node.args[0].args, node.args[1].args, strict=True)))
    if node.kind == "chain" and node.operators == ("in",) and node.args[1].kind == "set":
        if node.args[0].kind == "symbol":
            return Node("list", tuple(Node("chain", (node.args[0], item), ("=",)) for item in node.args[1].args))
        return node.args[1] if node.args[0].kind == "brackets" else node
    return node


def unrolled(node: Node) -> Node:
    """A collection with an ellipsis between numbers at equal steps, written out: {1, 2, .., 5} as {1, 2, 3, 4, 5}.

    Two numbers before the ellipsis show a step of one alone; 2, 4, .., 64 may double.
    """
    places = [place for place, arg in enumerate(node.args) if arg.kind == "dots"]
    if node.kind not in GATHERED or len(places) != 1:
        return node
    head, tail = node.args[:places[0]], node.args[places[0] + 1:]
    if len(head) < 2 or not tail or any(arg.kind != "number" for arg in (*head, *tail)):
        return node
    first, step, last = head[0].number, head[1].number - head[0].number, tail[-1].number
    count = (last - first) / step if step else Fraction(-1)
    if (len(head) < 3 and step != 1) or count.denominator != 1 or not len(head) < count <= MAX_UNROLLED:
        return node
    items = tuple(number(first + step * place) for place in range(int(count) + 1))
    return Node(node.kind, items, node.value) if items[:len(head)] == head and items[-len(tail):] == tail else node


def described(node: Node) -> Node:
    """{x : x = 2k, k in Z} as {2k : k in Z}."""
    if node.kind != "builder" or node.args[0] != node.args[1] or node.args[2].kind not in ("all_of", "list"):
        return node
    bound, _, condition = node.args
    given = [part for part in condition.args if is_equation(part) and len(part.args) == 2 and part.args[0] == bound]
    rest = tuple(part for part in condition.args if part not in given)
    if len(given) != 1 or not rest or any(bound.name in symbols(part) for part in (given[0].args[1], *rest)):
        return node
    names = sorted(set().union(*(symbols(part) for part in rest)))
    if len(names) != 1 or names[0] not in symbols(given[0].args[1]):
        return node
    return Node("builder", (symbol(names[0]), given[0].args[1], rest[0] if len(rest) == 1 else Node("all_of", rest)))


def alternatives(node: Node, same: Same) -> Node:
    """One value where several forms of it are offered with "or" between them: 3/5 or 0.6."""
    if node.kind == "list" and node.value == ("or",) and all(same(node.args[0], other) for other in node.args[1:]):
        return node.args[0]
    return node


def _parts(node: Node, kind: str) -> Sequence[Node]:
    return node.args if node.kind == "list" and kind in ("list", "set") else (node,)


def _signed(node: Node, sign: int) -> Node:
    if node.kind == "plus_minus":
        left, right = (_signed(arg, sign) for arg in node.args)
        plus = (sign > 0) == (node.value == "pm")
        return Node("add", (left, right if plus else negate(right)))
    return Node(node.kind, tuple(_signed(arg, sign) for arg in node.args), node.value) if node.args else node


def computed(node: Node, same: Same) -> Node:
    """The tree with operations on finite sets carried out; a minus between sets is a difference."""
    sets = node.kind == "add" and node.args[0].kind in ("field", "set", "brackets")
    if sets and all(arg.kind == "negate" for arg in node.args[1:]):
        node = reduce(lambda left, arg: Node("difference", (left, arg.args[0])), node.args[1:], node.args[0])
    if node.kind not in OPERATIONS and node.kind not in ("list", "set", "brackets", "chain", "builder"):
        return node
    args = tuple(computed(arg, same) for arg in node.args)
    if node.kind in OPERATIONS and len(args) == 2 and all(arg.kind == "set" for arg in args):
        return Node("set", tuple(_operated(node.kind, args[0].args, args[1].args, same)))
    node = Node(node.kind, args, node.value)
    return image(node) if node.kind == "builder" else node


def _operated(kind: str, left: Sequence[Node], right: Sequence[Node], same: Same) -> list[Node]:
    """The elements of a union, a product, an intersection or a difference of two finite sets."""
    match kind:
        case "union":
            return distinct([*left, *right], same)
        case "multiply":
            return [Node("brackets", pair, "()") for pair in product(left, right)]
        case _:
            return [item for item in left if any(same(item, other) for other in right) == (kind == "intersection")]


def image(node: Node) -> Node:
    """A set builder whose parameter runs over listed values, or over all whole or natural numbers, as that set or family."""
    bound, element, condition = node.args
    parts = condition.args if condition.kind == "all_of" else (condition,)
    first = parts[0]
    values: tuple[Node, ...] | None = None
    if first.kind == "chain" and len(first.args) == 2 and first.args[0] == bound:
        if first.operators == ("in",) and first.args[1].kind == "set" and len(parts) == 1:
            values = first.args[1].args
        elif first.operators == ("=",) and all(part.kind in ("number", "negate") for part in parts[1:]):
            values = (first.args[1], *parts[1:])
        elif first.operators == ("in",) and first.args[1].kind == "field" and len(parts) == 1 and element != bound \
                and first.args[1].name[0] in "ZN":
            return Node("family", (bound, element), first.args[1].name)
        elif first.operators == ("in",) and first.args[1].value == "Z" and element == bound:
            values = _integers(Node("all_of", parts[1:]), bound.name)
    if values is None:
        return node
    return Node("set", tuple(substitute(element, bound.name, value) for value in values))


def _integers(condition: Node, variable: str) -> tuple[Node, ...] | None:
    """The whole numbers that meet a condition, None where they are many or no method says which."""
    try:
        found = realsets.integers(realsets.pieces(condition, variable))
    except Unsupported:
        return None
    return None if found is None else tuple(map(number, found))


def named(node: Node) -> list[tuple[str, Node]] | None:
    """The names and values of a list in which every item is a name with its value; None for any other answer."""
    items = node.args if node.kind in ("list", "all_of") else ()
    names = [name_of(item) for item in items]
    if len(items) < 2 or any(name is None for name in names):
        return None
    return [(str(name), value_of(item)) for name, item in zip(names, items, strict=True)]


def same_named(answer: Node, wanted: Node, same: Same) -> bool | None:
    """Lists of named values: the same names with the same values; where one side has no names, roots of one variable in any
    order, values of several variables in the order of their names."""
    left, right = named(answer), named(wanted)
    if left is None and right is None:
        return None
    if left is not None and right is not None:
        if len(left) != len(right):
            return False
        return _matched(left, right, same)
    pairs, other = (left, wanted) if left is not None else (right, answer)
    assert pairs is not None
    if other.kind not in GATHERED or any(is_equation(item) for item in other.args) or len(other.args) != len(pairs):
        return None if other.kind == "chain" else False
    values = [value for _, value in pairs]
    if len({name.split("_")[0] for name, _ in pairs}) == 1 and other.kind != "brackets":
        return same_items(values, other.args, same)
    ordered = [value for _, value in sorted(pairs, key=lambda pair: pair[0])]
    return other.kind != "set" and (same_in_order(ordered, other.args, same) or same_in_order(values, other.args, same))


def _matched(left: list[tuple[str, Node]], right: list[tuple[str, Node]], same: Same) -> bool:
    rest = list(left)
    for name, value in right:
        match = next((index for index, (other, found) in enumerate(rest) if other == name and same(found, value)), None)
        if match is None:
            return False
        rest.pop(match)
    return True


def same_gathered(answer: Node, wanted: Node, same: Same) -> bool | None:
    """Lists in any order, sets without repetitions, tuples in their order; a list may be written as a set or as a tuple."""
    kinds = {answer.kind, wanted.kind}
    if not kinds & GATHERED:
        return None
    if not kinds <= GATHERED:
        single = next(node for node in (answer, wanted) if node.kind in GATHERED)
        other = wanted if single is answer else answer
        if "brackets" in kinds:
            return False
        return single.kind == "set" and len(single.args) == 1 and other.kind not in ("matrix", "words") and (
            same(single.args[0], other) if single is answer else same(other, single.args[0]))
    if any(item.kind == "dots" for node in (answer, wanted) for item in node.args):
        return answer.kind == wanted.kind and _same_with_dots(answer.args, wanted.args, same)
    if kinds == {"brackets"}:
        loose = len(answer.args) > 2 and {answer.name, wanted.name} <= {"()", "[]"}
        return (answer.value == wanted.value or loose) and same_in_order(answer.args, wanted.args, same)
    if kinds == {"brackets", "set"}:
        elements = next(node for node in (answer, wanted) if node.kind == "set").args
        tuple_ = next(node for node in (answer, wanted) if node.kind == "brackets")
        return len(elements) == 1 and elements[0].kind == "brackets" and same(elements[0], tuple_)
    if "brackets" in kinds:
        marks = next(node for node in (answer, wanted) if node.kind == "brackets")
        return marks.value in ("()", "[]") and (marks.value == "()" or len(marks.args) > 2) \
            and same_in_order(answer.args, wanted.args, same)
    if "set" in kinds:
        return same_items(distinct(answer.args, same), distinct(wanted.args, same), same)
    return same_items(answer.args, wanted.args, same)


def _same_with_dots(left: Sequence[Node], right: Sequence[Node], same: Same) -> bool:
    """Sequences with an ellipsis: in their order, dots against dots."""
    if len(left) != len(right):
        return False
    return all((one.kind == other.kind == "dots") or ("dots" not in (one.kind, other.kind) and same(one, other))
               for one, other in zip(left, right, strict=True))
