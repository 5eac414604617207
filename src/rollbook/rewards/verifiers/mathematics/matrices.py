"""Matrix arithmetic on trees: sums, products, multiples, transposes and determinants become plain matrices and expressions."""

from __future__ import annotations

from functools import reduce
from itertools import product

from rollbook.rewards.verifiers.mathematics.nodes import Malformed, Node, negate, number, times

MAX_DETERMINANT = 5
MAX_POWER = 8


def shape(matrix: Node) -> tuple[int, int]:
    rows, _, columns = matrix.name.partition("x")
    return int(rows), int(columns)


def flatten(node: Node) -> Node:
    """The tree with its matrix arithmetic done: a matrix of expressions, or an expression without matrices."""
    if not any(part.kind == "matrix" for part in node.walk()):
        return node
    if node.kind == "matrix" and len(node.args) == 1:
        return flatten(node.args[0])
    args = tuple(flatten(arg) for arg in node.args)
    matrices = [arg for arg in args if arg.kind == "matrix"]
    match node.kind:
        case "negate" if matrices:
            return _each(args[0], negate)
        case "add" if matrices:
            return _sum(args)
        case "multiply" if matrices:
            return reduce(_times, args)
        case "divide" if args[0].kind == "matrix":
            return _each(args[0], lambda cell: Node("divide", (cell, args[1])))
        case "power" if args[0].kind == "matrix":
            return _power(args[0], args[1])
        case "call" if node.value == "transpose" and matrices:
            return _transposed(args[0])
        case "call" if node.value == "det" and matrices:
            return _determinant(args[0])
        case _:
            return Node(node.kind, args, node.value)


def _each(matrix: Node, change: object) -> Node:
    assert callable(change)
    return Node("matrix", tuple(change(cell) for cell in matrix.args), matrix.value)


def _sum(parts: tuple[Node, ...]) -> Node:
    if any(part.kind != "matrix" or part.value != parts[0].value for part in parts):
        raise Malformed("a sum of matrices of different shapes")
    cells = zip(*(part.args for part in parts), strict=True)
    return Node("matrix", tuple(Node("add", tuple(column)) for column in cells), parts[0].value)


def _times(left: Node, right: Node) -> Node:
    if left.kind == "matrix" and right.kind == "matrix":
        return _product(left, right)
    if "matrix" not in (left.kind, right.kind):
        return times(left, right)
    scalar, matrix = (left, right) if right.kind == "matrix" else (right, left)
    return _each(matrix, lambda cell: Node("multiply", (scalar, cell)))


def _product(left: Node, right: Node) -> Node:
    (rows, inner), (others, columns) = shape(left), shape(right)
    if inner != others:
        raise Malformed("a product of matrices that do not fit")
    cells = []
    for row, column in product(range(rows), range(columns)):
        terms = tuple(Node("multiply", (left.args[row * inner + k], right.args[k * columns + column])) for k in range(inner))
        cells.append(terms[0] if len(terms) == 1 else Node("add", terms))
    return Node("matrix", tuple(cells), f"{rows}x{columns}") if rows * columns > 1 else cells[0]


def _power(matrix: Node, exponent: Node) -> Node:
    """A square matrix to a small whole power, or its inverse."""
    rows, columns = shape(matrix)
    if exponent.kind == "symbol" and exponent.name in ("T", "top"):
        return _transposed(matrix)
    if exponent.kind != "number" or exponent.number.denominator != 1 or rows != columns or exponent.number == 0:
        raise Malformed(f"a {matrix.value} matrix to this power")
    whole = exponent.number.numerator
    if not -MAX_POWER <= whole <= MAX_POWER or (whole < 0 and rows > MAX_DETERMINANT):
        raise Malformed("a matrix to a large power")
    return reduce(_product, [matrix if whole > 0 else _inverse(matrix)] * abs(whole))


def _inverse(matrix: Node) -> Node:
    """The adjugate over the determinant."""
    rows, _ = shape(matrix)
    if rows == 1:
        return _each(matrix, lambda cell: Node("divide", (number(1), cell)))
    whole = _determinant(matrix)
    cells = []
    for row, column in product(range(rows), range(rows)):
        minor = tuple(matrix.args[i * rows + j] for i in range(rows) for j in range(rows) if i != column and j != row)
        part = _determinant(Node("matrix", minor, f"{rows - 1}x{rows - 1}"))
        cells.append(Node("divide", (negate(part) if (row + column) % 2 else part, whole)))
    return Node("matrix", tuple(cells), matrix.value)


def _transposed(matrix: Node) -> Node:
    rows, columns = shape(matrix)
    cells = tuple(matrix.args[row * columns + column] for column, row in product(range(columns), range(rows)))
    return Node("matrix", cells, f"{columns}x{rows}")


def _determinant(matrix: Node) -> Node:
    rows, columns = shape(matrix)
    if rows != columns or rows > MAX_DETERMINANT:
        raise Malformed(f"the determinant of a {matrix.value} matrix")
    if rows == 1:
        return matrix.args[0]
    terms = []
    for column in range(columns):
        minor = tuple(matrix.args[row * columns + other] for row in range(1, rows) for other in range(columns) if other != column)
        part = _determinant(Node("matrix", minor, f"{rows - 1}x{rows - 1}"))
        term = Node("multiply", (matrix.args[column], part))
        terms.append(negate(term) if column % 2 else term)
    return Node("add", tuple(terms)) if len(terms) > 1 else terms[0]


