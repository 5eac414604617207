"""The lineage of a run as one self-contained SVG: columns for data, stages, policies, evaluations, conclusions; a row per stage.

Lines run in the gutters: whatever leaves one box shares a lane, so that a test set reads as one line with many ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from rollbook.ledger.lineage import Edge, Lineage, Node
from rollbook.report.svg import element
from rollbook.report.text import clip, visible

WIDTH, LEFT, RIGHT, GUTTER = 1200, 40, 16, 48
COLUMNS = ("Data", "Stages", "Policies", "Evaluations", "Conclusions")
COLUMN_OF = {"dataset": 0, "stage": 1, "policy": 2, "evaluation": 3, "gate": 4, "comparison": 4}
CARD = (WIDTH - LEFT - RIGHT - (len(COLUMNS) - 1) * GUTTER) / len(COLUMNS)
HEAD, STACK, ROW_GAP, LANE, MARGIN, RADIUS = 92, 10, 30, 8, 13, 6
NAME_CHARS, LINE_CHARS, WIDE_CHARS = 22, 34, 26      # a line of more than the last is squeezed into its card
STYLE = """
svg { --bg:#ffffff; --card:#f6f7f9; --ink:#1b1f24; --soft:#57606a; --rule:#d5dae0; --dataset:#4d5a68; --stage:#8a5a00;
 --policy:#0072b2; --evaluation:#00795a; --comparison:#a3457f; --warn:#a83c00;
 font:12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
@media (prefers-color-scheme: dark) { svg { --bg:#14171b; --card:#1c2026; --ink:#e8ebee; --soft:#a3adb8; --rule:#343b44;
 --dataset:#a9b6c4; --stage:#e0b04b; --policy:#56b4e9; --evaluation:#3fc79a; --comparison:#e39ac4; --warn:#f2a06a; } }
.bg { fill:var(--bg); } .card { fill:var(--card); stroke:var(--rule); }
.title { font-size:17px; font-weight:600; fill:var(--ink); }
.head { font-size:13px; font-weight:600; } .name { font-size:13px; font-weight:600; fill:var(--ink); }
.about { fill:var(--soft); } .hash { fill:var(--soft); font:11px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
.warn { fill:var(--warn); font-size:13px; } .edge { fill:none; stroke-width:1.6; }
.halo { fill:none; stroke:var(--bg); stroke-width:5; }
.open .card { stroke-dasharray:5 4; }
"""
KINDS = ("dataset", "stage", "policy", "evaluation", "comparison")
Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node where it is drawn; `column` counts from the left."""

    node: Node
    column: int
    row: int
    y: float
    height: float

    @property
    def x(self) -> float:
        return LEFT + self.column * (CARD + GUTTER)


def lineage_svg(graph: Lineage) -> str:
    """The drawing as an SVG document."""
    boxes, bottom = _placed(graph)
    height = bottom + 22 * len(graph.problems) + 16
    parts = [element("style", Markup(STYLE)), element("title", f"Lineage of {graph.run}"),
             element("rect", x=0, y=0, width=WIDTH, height=height, class_="bg"), element("defs", *map(_arrow, KINDS)),
             element("text", visible(clip(f"{graph.run}: {graph.title}", 110)), x=LEFT, y=34, class_="title"),
             element("text", f"{graph.state}; {_counted(graph)}", x=LEFT, y=54, class_="about")]
    parts += [element("text", name, x=LEFT + column * (CARD + GUTTER), y=HEAD - 10, class_="head", style=f"fill:var(--{kind})")
              for column, (name, kind) in enumerate(zip(COLUMNS, KINDS, strict=True))]
    parts += _edges(graph.edges, boxes)
    parts += [_card(box) for box in boxes.values()]
    parts += [element("text", f"! {clip(problem, 160)}", x=LEFT, y=bottom + 22 * number + 8, class_="warn")
              for number, problem in enumerate(graph.problems)]
    drawn = element("svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height:g}", width=WIDTH,
                    height=f"{height:g}", role="img")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{drawn}\n'


def _counted(graph: Lineage) -> str:
    done = sum("complete" in _state(graph, stage) for stage in graph.stages)
    return f"{done} of {len(graph.stages)} stages complete"


def _state(graph: Lineage, stage: str) -> str:
    lines = graph.node(f"stage:{stage}").lines
    return lines[-1] if lines and lines[-1] in ("begun", "not begun") else "complete"


def _row_of(graph: Lineage, node: Node) -> int:
    """Row 0 is what was there before the first stage; what belongs to no stage comes last."""
    stage = node.stage or ""
    for name in (stage, stage.partition("/")[0]):
        if name in graph.stages:
            return graph.stages.index(name) + 1
    return 0 if node.kind in ("dataset", "policy") else len(graph.stages) + 1


def _placed(graph: Lineage) -> tuple[dict[str, Box], float]:
    """Every node with its place, and where the last row ends. The boxes of a cell stand below each other."""
    cells: dict[tuple[int, int], list[Node]] = defaultdict(list)
    for node in graph.nodes:
        cells[_row_of(graph, node), COLUMN_OF[node.kind]].append(node)
    boxes: dict[str, Box] = {}
    top = float(HEAD)
    for row in sorted({row for row, _ in cells}):
        end = top
        for column in range(len(COLUMNS)):
            y = top
            for node in cells.get((row, column), ()):
                box = Box(node=node, column=column, row=row, y=y, height=30 + 16 * (len(node.lines) + (node.id is not None)))
                boxes[node.key] = box
                y += box.height + STACK
                end = max(end, y - STACK)
        top = end + ROW_GAP
    return boxes, top


def _card(box: Box) -> Markup:
    node = box.node
    kind = "comparison" if node.kind == "gate" else node.kind
    lines = [_line(line, box.x + 14, box.y + 38 + 16 * number) for number, line in enumerate(node.lines)]
    if node.id is not None:
        lines.append(element("text", short_id(node.id), x=box.x + 14, y=box.y + 38 + 16 * len(node.lines), class_="hash"))
    told = "\n".join([node.name, *node.lines, *([node.id] if node.id else [])])
    state = "open" if node.kind == "stage" and node.lines and node.lines[-1] in ("begun", "not begun") else "done"
    return element(
        "g", element("title", told),
        element("rect", x=f"{box.x:g}", y=f"{box.y:g}", width=f"{CARD:g}", height=box.height, rx=7, class_="card"),
        element("rect", x=f"{box.x:g}", y=f"{box.y + 6:g}", width=4, height=box.height - 12, rx=2, style=f"fill:var(--{kind})"),
        element("text", clip_short(node.name, NAME_CHARS), x=box.x + 14, y=box.y + 21, class_="name"), *lines, class_=state)


def _line(line: str, x: float, y: float) -> Markup:
    squeezed = {"textLength": f"{CARD - 24:g}", "lengthAdjust": "spacingAndGlyphs"} if len(line) > WIDE_CHARS else {}
    return element("text", visible(clip_short(line, LINE_CHARS)), x=x, y=y, class_="about", **squeezed)


def clip_short(text: str, longest: int) -> str:
    """The text, its end replaced by an ellipsis where it is longer."""
    return text if len(text) <= longest else f"{text[:longest - 1]}…"


def short_id(identity: str) -> str:
    """The beginning of a hash."""
    return identity.rpartition(":")[2][:12]


def _arrow(kind: str) -> Markup:
    head = element("path", d="M0 0 L8 4 L0 8 z", style=f"fill:var(--{kind})")
    return element("marker", head, id=f"to-{kind}", viewBox="0 0 8 8",
                   refX=7, refY=4, markerWidth=8, markerHeight=8, markerUnits="userSpaceOnUse", orient="auto")


def _edges(edges: Sequence[Edge], boxes: Mapping[str, Box]) -> list[Markup]:
    """The lines; those of a later source have a halo, so that crossings stay readable."""
    ports, lanes = _Ports(edges, boxes), _Lanes(edges, boxes)
    paths: dict[str, list[str]] = defaultdict(list)
    for edge in edges:
        paths[edge.source].append(_path(_points(boxes[edge.source], boxes[edge.target], (ports, lanes), tuple(boxes.values()))))
    drawn = []
    for key, found in paths.items():
        kind = boxes[key].node.kind
        drawn += [element("path", d=path, class_="halo") for path in found]
        drawn += [element("path", d=path, class_="edge", style=f"stroke:var(--{kind})", marker_end=f"url(#to-{kind})")
                  for path in found]
    return drawn


def sides(source: Box, target: Box) -> tuple[int, int]:
    """On which side (-1 left, 1 right) a line leaves and arrives; within a column both are on the left."""
    if source.column == target.column:
        return -1, -1
    return (1, -1) if source.column < target.column else (-1, 1)


class _Ports:
    """Where on a side of a box its lines begin (one place) and end (one place each), spread evenly."""

    def __init__(self, edges: Sequence[Edge], boxes: Mapping[str, Box]):
        ends: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)       # source of the line, "" for its own -> height
        for edge in edges:
            source, target = boxes[edge.source], boxes[edge.target]
            leave, arrive = sides(source, target)
            ends[edge.source, leave].setdefault("", target.y)
            ends[edge.target, arrive][edge.source] = source.y
        self.at: dict[tuple[str, int, str], float] = {}
        for (key, side), found in ends.items():
            box = boxes[key]
            for number, name in enumerate(sorted(found, key=lambda name: (found[name], name)), 1):
                self.at[key, side, name] = round(box.y + box.height * number / (len(found) + 1), 1)
        for edge in edges:
            self._straighten(edge, boxes, ends)

    def _straighten(self, edge: Edge, boxes: Mapping[str, Box], ends: Mapping[tuple[str, int], Mapping[str, float]]) -> None:
        """Puts a line's end at the height of its beginning where nothing else ends on that side and both stand in one row."""
        source, target = boxes[edge.source], boxes[edge.target]
        leave, arrive = sides(source, target)
        height, alone = self.at[edge.source, leave, ""], len(ends[edge.target, arrive]) == 1
        if alone and source.row == target.row and target.y + 8 < height < target.y + target.height - 8:
            self.at[edge.target, arrive, edge.source] = height

    def out_of(self, key: str, side: int) -> float:
        return self.at[key, side, ""]

    def into(self, key: str, side: int, source: str) -> float:
        return self.at[key, side, source]


class _Lanes:
    """The vertical lane of each source in each gutter; gutter -1 is the left margin."""

    def __init__(self, edges: Sequence[Edge], boxes: Mapping[str, Box]):
        users: dict[int, list[str]] = defaultdict(list)
        for edge in edges:
            source, target = boxes[edge.source], boxes[edge.target]
            for gutter in {gutter_of(source, target), gutter_by(target, sides(source, target)[1])}:
                if edge.source not in users[gutter]:
                    users[gutter].append(edge.source)
        self.at = {(gutter, key): _lane(gutter, number, len(keys)) for gutter, keys in users.items()
                   for number, key in enumerate(keys)}

    def of(self, gutter: int, key: str) -> float:
        return self.at[gutter, key]


def gutter_by(box: Box, side: int) -> int:
    """The gutter beside a box."""
    return box.column if side > 0 else box.column - 1


def gutter_of(source: Box, target: Box) -> int:
    return gutter_by(source, sides(source, target)[0])


def _lane(gutter: int, number: int, count: int) -> float:
    if gutter < 0:
        return LEFT - 10 - number * LANE if count * LANE < LEFT - 10 else LEFT - 10 - number * (LEFT - 14) / count
    start = LEFT + gutter * (CARD + GUTTER) + CARD
    return round(start + MARGIN + (GUTTER - 2 * MARGIN) * (number + 0.5) / count, 1)


def _points(source: Box, target: Box, routes: tuple[_Ports, _Lanes], boxes: Sequence[Box]) -> list[Point]:
    """The corners of a line. Past other columns it runs level with its target, or above that row where a box is in the way."""
    ports, lanes = routes
    leave, arrive = sides(source, target)
    start = (source.x + (CARD if leave > 0 else 0), ports.out_of(source.node.key, leave))
    end = (target.x + (CARD if arrive > 0 else 0), ports.into(target.node.key, arrive, source.node.key))
    first = lanes.of(gutter_of(source, target), source.node.key)
    last = lanes.of(gutter_by(target, arrive), source.node.key)
    if first == last:
        return [start, (first, start[1]), (first, end[1]), end]
    between = range(min(source.column, target.column) + 1, max(source.column, target.column))
    blocked = any(box.row == target.row and box.column in between for box in boxes)
    level = min(box.y for box in boxes if box.row == target.row) - ROW_GAP / 2 if blocked else end[1]
    return [start, (first, start[1]), (first, level), (last, level), (last, end[1]), end]


def _path(points: Sequence[Point]) -> str:
    """A path through the corners, rounded; corners on a straight line are left out."""
    kept = [points[0]]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        if not (before[0] == here[0] == after[0] or before[1] == here[1] == after[1]) and here != kept[-1]:
            kept.append(here)
    kept.append(points[-1])
    steps = [f"M{kept[0][0]:g} {kept[0][1]:g}"]
    for before, here, after in zip(kept, kept[1:], kept[2:], strict=False):
        radius = min(RADIUS, _length(before, here) / 2, _length(here, after) / 2)
        into, out = _towards(here, before, radius), _towards(here, after, radius)
        steps.append(f"L{into[0]:g} {into[1]:g} Q{here[0]:g} {here[1]:g} {out[0]:g} {out[1]:g}")
    steps.append(f"L{kept[-1][0]:g} {kept[-1][1]:g}")
    return " ".join(steps)


def _length(a: Point, b: Point) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _towards(a: Point, b: Point, by: float) -> Point:
    """The point `by` units from `a` on the level or upright line to `b`."""
    return (round(a[0] + by * ((b[0] > a[0]) - (b[0] < a[0])), 2), round(a[1] + by * ((b[1] > a[1]) - (b[1] < a[1])), 2))
