"""The lineage of a run as a tree of lines for a terminal: data first, then every policy with what was made from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rollbook.ledger.lineage import Lineage, Node
from rollbook.report.text import visible

SHORT = 12      # digits of a hash that are shown


def tree(graph: Lineage) -> Iterator[str]:
    """The lines. A node stands below the first thing it was made from and names the others."""
    told: set[str] = set()
    yield _line(f"{graph.run}: {graph.title} ({graph.state})")
    roots = [node for node in graph.nodes if not graph.into(node.key)]
    yield from _branch("data", [node for node in roots if _is_data(node)], graph, told)
    yield from _branch("policies", [node for node in roots if node.kind == "policy"], graph, told)
    yield from _branch("joined to nothing above", [node for node in graph.nodes if node.key not in told], graph, told)
    for problem in graph.problems:
        yield _line(f"! {problem}")


def _branch(title: str, roots: Sequence[Node], graph: Lineage, told: set[str]) -> Iterator[str]:
    if roots:
        yield title
        for node in roots:
            if node.key not in told:
                yield from _lines(node, graph, told, ("  ", "  "))


def _lines(node: Node, graph: Lineage, told: set[str], margin: tuple[str, str]) -> Iterator[str]:
    told.add(node.key)
    first, rest = margin
    yield first + _line(_text(node, graph))
    below = [child for child in graph.out_of(node.key) if child.key not in told and _hangs(child, node, graph)]
    for number, child in enumerate(below):
        if child.key not in told:
            last = number == len(below) - 1
            yield from _lines(child, graph, told, (rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")))


def _hangs(child: Node, node: Node, graph: Lineage) -> bool:
    """Whether the child stands below this node: data below data, the rest below the policy, stage or report it continues."""
    if _is_data(node):
        return _is_data(child)
    if child.kind == "comparison":
        return node.stage == child.stage
    return True


def _line(text: str) -> str:
    """The text in one line, with nothing in it that acts on a terminal."""
    return visible(text).replace("\n", "⏎").replace("\t", " ")


def _is_data(node: Node) -> bool:
    return node.kind == "dataset"


def _text(node: Node, graph: Lineage) -> str:
    """Name, what it is, the data it used, its hash."""
    used = [one.name for one in graph.into(node.key) if _is_data(one)] if not _is_data(node) else []
    parts = [*node.lines, *([f"on {', '.join(used)}"] if used else [])]
    told = "; ".join(parts)
    kind = "" if node.kind in ("dataset", "stage", "policy", "gate") else f"{node.kind} "
    return f"{kind}{node.name}{'  ' if told else ''}{told}" + (f"  [{node.id.rpartition(':')[2][:SHORT]}]" if node.id else "")
