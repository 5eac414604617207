"""The drawing of a lineage: one self-contained SVG in which nothing overlaps and nothing acts; the tree names everything."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inspected_run import begin, whole_run

from rollbook.ledger.lineage import Edge, Lineage, Node, run_lineage
from rollbook.report.lineage_svg import CARD, COLUMN_OF, WIDTH, _placed, lineage_svg
from rollbook.report.lineage_tree import tree

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    folder = tmp_path_factory.mktemp("drawing") / "run"
    whole_run(folder)
    return run_lineage(folder)


def test_every_node_and_line_is_drawn(graph: Lineage) -> None:
    root = ET.fromstring(lineage_svg(graph))
    assert len(root.findall(f"{SVG}g")) == len(graph.nodes)
    assert len([path for path in root.findall(f"{SVG}path") if path.get("class") == "edge"]) == len(graph.edges)
    names = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "name"]
    assert {"tasks/train", "demonstrations", "v2 to v3", "rl/probe"} <= set(names)


def test_the_drawing_asks_the_network_for_nothing_and_knows_dark_and_light(graph: Lineage) -> None:
    drawn = lineage_svg(graph)
    assert "prefers-color-scheme: dark" in drawn
    assert not any(word in drawn for word in ("<script", "<image", "href", "@import", "@font-face", "url(http"))
    assert drawn.count("http") == drawn.count("http://www.w3.org/2000/svg")


def test_lines_run_level_or_upright_and_stay_inside(graph: Lineage) -> None:
    root = ET.fromstring(lineage_svg(graph))
    height = float(root.get("height", "0"))
    for path in root.findall(f"{SVG}path"):
        numbers = [float(word) for word in path.get("d", "").replace("M", " ").replace("L", " ").replace("Q", " ").split()]
        assert all(0 <= x <= WIDTH for x in numbers[::2]) and all(0 <= y <= height for y in numbers[1::2])


def test_a_long_line_is_squeezed_into_its_card_and_a_short_one_is_not(graph: Lineage) -> None:
    held = replace(graph.nodes[0], lines=("last 53.1% (44.5 to 61.6, n 128)", "512 x Task"))
    drawn = ET.fromstring(lineage_svg(replace(graph, nodes=(held, *graph.nodes[1:]))))
    told = {text.text: text.get("textLength") for text in drawn.iter(f"{SVG}text") if text.get("class") == "about"}
    assert float(told["last 53.1% (44.5 to 61.6, n 128)"] or 0) < CARD - 14 and told["512 x Task"] is None


def test_a_run_in_progress_is_drawn_with_what_has_not_begun(tmp_path: Path) -> None:
    begin(tmp_path / "run").ledger.close()
    graph = run_lineage(tmp_path / "run")
    drawn = lineage_svg(graph)
    assert drawn.count('class="open"') == len(graph.stages) and "0 of 6 stages complete" in drawn


STAGES = ("one", "two", "three")
KINDS = st.sampled_from(sorted(COLUMN_OF))
TEXTS = st.text(max_size=60)


@st.composite
def any_graph(draw: st.DrawFn) -> Lineage:
    stages = tuple(f"stage:{name}" for name in STAGES)
    nodes = [Node(key=key, kind="stage", name=key, lines=("Sft",), id=None, stage=key.partition(":")[2]) for key in stages]
    nodes += [Node(key=f"n{index}", kind=draw(KINDS), name=draw(TEXTS), lines=tuple(draw(st.lists(TEXTS, max_size=3))),
                   id=draw(st.none() | TEXTS), stage=draw(st.sampled_from((None, "start", *STAGES, "one/probe"))))
              for index in range(draw(st.integers(0, 9)))]
    keys = st.sampled_from([node.key for node in nodes])
    pairs = draw(st.sets(st.tuples(keys, keys).filter(lambda pair: pair[0] != pair[1]), max_size=14))
    return Lineage(run=draw(TEXTS), title=draw(TEXTS), state="completed", stages=STAGES, nodes=tuple(nodes),
                   edges=tuple(Edge(source=a, target=b) for a, b in sorted(pairs)),
                   problems=tuple(draw(st.lists(TEXTS, max_size=2))))


@given(any_graph())
@settings(max_examples=60, deadline=None)
def test_any_graph_with_any_text_is_well_formed_and_no_two_boxes_overlap(graph: Lineage) -> None:
    ET.fromstring(lineage_svg(graph))
    boxes, bottom = _placed(graph)
    for a, b in itertools.combinations(boxes.values(), 2):
        assert a.x + CARD <= b.x or b.x + CARD <= a.x or a.y + a.height <= b.y or b.y + b.height <= a.y
    assert all(box.y + box.height <= bottom for box in boxes.values())


@given(any_graph())
@settings(max_examples=60, deadline=None)
def test_the_tree_of_any_graph_ends_and_tells_every_node_once(graph: Lineage) -> None:
    lines = list(tree(graph))
    titles = ("data", "policies", "joined to nothing above")
    told = [line for line in lines[1:] if line not in titles and not line.startswith("! ")]
    assert len(told) == len(graph.nodes)
    assert not any(ord(char) < 32 for line in lines for char in line)
