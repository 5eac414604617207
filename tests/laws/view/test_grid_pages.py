"""A grid in the viewer: its cells while they are made, what every factor does once they are, as a server and as files."""

import json
import shutil
from types import SimpleNamespace as Bag

import pytest
from asked_episodes import made_grid
from viewed_runs import client

from rollbook.records import RollbookError
from rollbook.view.grids import forest
from rollbook.view.shown import held_runs
from rollbook.view.site import write_site


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    return made_grid(tmp_path_factory.mktemp("grid"))


def test_a_finished_grid_shows_effects_with_units_counts_and_every_cell(grid):
    text = client(grid).get("/grid?id=out").text
    for words in ("4 cells under the protocol", "4 finished", "policy: before to after: +50.0", "budget: whole to short",
                  "gain in percentage points, 95% interval", "p, corrected (Holm)", "unscored attempts", "changes max_tokens"):
        assert words in text, words
    assert text.count('class="chart ') == 2 and "Not compared" not in text


def test_cells_of_a_grid_are_runs_with_pages_of_their_own_and_the_grid_is_found_from_everywhere(grid):
    shown = client(grid)
    first = shown.get("/").text
    assert "Grids and runs" in first and "4 of 4" in first and "/grid?id=out" in first
    cell = shown.get("/run/out.after.whole/overview").text
    assert "100.0%" in cell and "/grid?id=out" in cell
    assert shown.get("/grid?id=strange").status_code == 404 and shown.get("/grid").status_code == 404


def test_a_grid_that_is_being_made_shows_what_there_is_and_takes_in_what_comes(grid, tmp_path):
    shutil.copytree(grid, tmp_path / "live", ignore=shutil.ignore_patterns("after.*"))
    shown = client(tmp_path / "live")
    text = shown.get("/grid?id=live").text
    assert "2 finished" in text and "not begun" in text and "once every cell is finished" in text
    for name in ("after.whole", "after.short"):
        shutil.copytree(grid / "cells" / name, tmp_path / "live" / "cells" / name)
    assert "4 finished" in shown.get("/grid?id=live").text and shown.get("/run/live.after.whole/overview").status_code == 200


@pytest.mark.parametrize("damage", ["{", "{}", '{"levels": {"a": ["x"]}, "cells": [{"a": "../../x"}]}', "[]",
                                    '{"levels": {"a": 3}, "cells": []}', '{"levels": {"a": ["x"]}, "cells": [{"b": "x"}]}'])
def test_a_grid_that_cannot_be_read_is_refused_at_the_start_and_said_so_later(grid, tmp_path, damage):
    shutil.copytree(grid, tmp_path / "grid")
    shown = client(tmp_path / "grid")
    (tmp_path / "grid" / "grid.json").write_text(damage)
    assert "cannot be read" in shown.get("/").text and shown.get("/grid?id=grid").status_code == 500
    with pytest.raises(RollbookError, match="no grid that can be read"):
        held_runs([tmp_path / "grid"])


def test_a_cell_that_holds_another_evaluation_is_said_and_nothing_is_compared(grid, tmp_path):
    shutil.copytree(grid, tmp_path / "grid")
    document = json.loads((tmp_path / "grid" / "grid.json").read_text())
    document["bundles"]["budget short"] = "0" * 64
    (tmp_path / "grid" / "grid.json").write_text(json.dumps(document))
    text = client(tmp_path / "grid").get("/grid?id=grid").text
    assert "Not compared" in text and "holds another evaluation" in text


def test_a_grid_as_files_links_its_cells(grid, tmp_path):
    pages, left = write_site([grid], tmp_path / "site")
    files = [path.read_text() for path in (tmp_path / "site").glob("grid-*.html")]
    assert pages > 5 and left == 0 and len(files) == 1
    assert all((tmp_path / "site" / f"out.{name}-overview.html").is_file() and f"out.{name}-overview.html" in files[0]
               for name in ("before.whole", "after.short"))


def test_a_forest_of_one_gain_of_nothing_is_drawn():
    one = Bag(claim="none", gain=Bag(estimate=0.0, low=0.0, high=0.0, count=1))
    assert "a: +0.0 (+0.0 to +0.0)" in forest([("a", one)], 360)
