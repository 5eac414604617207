"""A grid of evaluations as a page: its cells while they are made, what every factor does once all are finished."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rollbook.records import LedgerError, RollbookError
from rollbook.report.svg import element, ticks
from rollbook.view.comparing import ATTEMPTS
from rollbook.view.held import HeldRun, log_size

FILE, CELLS, POLICY = "grid.json", "cells", "policy"         # as `rollbook grid` writes them
MARKS = {"gain": "▲", "loss": "▼", "none": "●"}
ROW, HEAD, FOOT = 36, 6, 34         # of a drawing, in user units


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRow:
    """A cell in one line. `run` is None where it was not begun, `value` None where it is not finished."""

    levels: Mapping[str, str]
    run: HeldRun | None
    state: str
    value: Any | None
    spend: Any | None
    unscored: int


class HeldGrid:
    """A grid under a name of its own. `cell_of` gives the run that is shown of a cell's folder."""

    def __init__(self, key: str, root: Path):
        self.key, self.root = key, root
        self.cell_of: dict[str, HeldRun] = {}
        self._made: tuple[Any, Any] | None = None

    def document(self) -> Mapping[str, Any]:
        """What grid.json says; refuses one that cannot be read."""
        try:
            held = json.loads((self.root / FILE).read_text(encoding="utf-8"))
            levels, cells = held["levels"], held["cells"]
            whole = all(isinstance(names, list) for names in levels.values()) and all(set(cell) == set(levels) for cell in cells)
            if whole and all(isinstance(level, str) and Path(level).name == level for cell in cells for level in cell.values()):
                return dict(held)
            raise ValueError("levels and cells do not fit together")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LedgerError(f"{self.root.name} holds no grid that can be read", got=f"{type(error).__name__}: {error}"[:120],
                              fix="give the folder that `rollbook grid` wrote") from error

    def refresh(self, runs: MutableMapping[str, HeldRun], name_of: Callable[[str], str]) -> HeldGrid:
        """Takes in the cells that were begun since, as runs under names of their own."""
        for levels in self.document()["cells"]:
            cell = cell_name(levels)
            folder = self.root / CELLS / cell
            if cell not in self.cell_of and (folder / "manifest.json").is_file():
                key = name_of(f"{self.key}.{cell}")
                self.cell_of[cell] = runs[key] = HeldRun(key, folder)
        return self

    def result(self) -> Any:
        """The `GridResult`, made again only when a cell has grown; refuses an unfinished grid and one too large for a page."""
        large = [run.key for run in self.cell_of.values() if run.trajectories > ATTEMPTS]
        if large:
            raise LedgerError(f"{large[0]} holds more than {ATTEMPTS:,} attempts", got=str(len(large)),
                              fix=f"rollbook compare {self.root}")
        state = {cell: log_size(run.root) for cell, run in self.cell_of.items()}
        if self._made is None or self._made[0] != state:
            from rollbook.orchestration.grid_sides import grid_result

            self._made = state, grid_result(self.root)
        return self._made[1]


def cell_name(levels: Mapping[str, str]) -> str:
    """The folder of a cell, and its name among the runs of a grid."""
    return ".".join(levels.values())


def grid_context(grid: HeldGrid) -> dict[str, Any]:
    """What the page of a grid shows."""
    document = grid.document()
    rows = [_row(grid, levels) for levels in document["cells"]]
    finished = sum(row.value is not None for row in rows)
    base = {"grid": grid, "protocol": document.get("name"), "levels": document["levels"], "rows": rows, "finished": finished,
            "excepted": [", ".join(f"{name} {level}" for name, level in one.items()) for one in document.get("except") or ()],
            "result": None, "refused": "", "drawn": (), "marks": MARKS}
    if finished < len(rows):
        return base
    try:
        made = grid.result()
    except (RollbookError, OSError) as error:
        return base | {"refused": str(error)}
    gains = [(effect.step, effect.gain) for effect in made.effects]
    return base | {"result": made, "drawn": tuple(forest(gains, width) for width in (760, 360)) if gains else ()}


def brief(grid: HeldGrid) -> dict[str, Any]:
    """A grid in one line."""
    document = grid.document()
    rows = [_row(grid, levels) for levels in document["cells"]]
    return {"fault": None, "protocol": document.get("name"), "cells": len(rows), "levels": document["levels"],
            "finished": sum(row.value is not None for row in rows)}


def _row(grid: HeldGrid, levels: Mapping[str, str]) -> CellRow:
    run = grid.cell_of.get(cell_name(levels))
    if run is None:
        return CellRow(levels=levels, run=None, state="not begun", value=None, spend=None, unscored=0)
    try:
        results = run.refresh().evaluations()
    except RollbookError:
        return CellRow(levels=levels, run=run, state="cannot be read", value=None, spend=None, unscored=0)
    if not results:
        return CellRow(levels=levels, run=run, state="in progress", value=None, spend=None, unscored=0)
    result = results[-1][1]
    return CellRow(levels=levels, run=run, state="finished", value=result.value, spend=result.spend,
                   unscored=result.unscored_attempts)


def forest(gains: Sequence[tuple[str, Any]], width: int) -> Markup:
    """Gains in percentage points with their intervals, one below the other over one axis; what is claimed is told by a sign."""
    low = min(0.0, *(100 * gain.gain.low for _, gain in gains))
    high = max(0.0, *(100 * gain.gain.high for _, gain in gains))
    pad = 0.05 * (high - low) or 1.0
    low, high = low - pad, high + pad
    height = HEAD + ROW * len(gains) + FOOT

    def x(value: float) -> float:
        return round(14 + (value - low) / (high - low) * (width - 28), 1)

    base = HEAD + ROW * len(gains)
    body = []
    for value in ticks(low, high, 6 if width > 500 else 4):
        body += [element("line", x1=x(value), x2=x(value), y1=HEAD, y2=base, class_="axis" if value == 0 else "grid"),
                 element("text", f"{value:+g}".replace("-", "−") if value else "0", x=x(value), y=base + 14, class_="tick mid")]
    body.append(element("text", "gain in percentage points, 95% interval", x=width / 2, y=height - 5, class_="tick mid"))
    for place, (name, gain) in enumerate(gains):
        body += _gain(name, gain, HEAD + ROW * place, x)
    css = "chart wide" if width > 500 else "chart narrow"
    return element("svg", element("title", "What each factor does: gain in percentage points with 95% intervals"), *body,
                   viewBox=f"0 0 {width} {height}", role="img", class_=css, xmlns="http://www.w3.org/2000/svg")


def _gain(name: str, gain: Any, top: int, x: Callable[[float], float]) -> list[Markup]:
    one, colour = gain.gain, {"gain": "s2", "loss": "s1"}.get(gain.claim, "s0")
    said = f"{100 * one.estimate:+.1f} ({100 * one.low:+.1f} to {100 * one.high:+.1f})".replace("-", "−")
    middle = top + 25
    start, end, at = x(100 * one.low), x(100 * one.high), x(100 * one.estimate)
    shape = {"gain": f"M{at - 5} {middle + 4}h10l-5 -9z", "loss": f"M{at - 5} {middle - 4}h10l-5 9z"}
    mark = (element("path", d=shape[gain.claim], class_=f"dot {colour}") if gain.claim in shape
            else element("circle", cx=at, cy=middle, r=4, class_=f"dot {colour}"))
    return [element("text", f"{name}: {said}", x=14, y=top + 13, class_="label"),
            element("line", element("title", f"{name}: {said} points over {one.count} problems"), x1=start, x2=end, y1=middle,
                    y2=middle, class_=f"bar {colour}"), mark]
