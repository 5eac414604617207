"""`rollbook grid`: an ablation grid of evaluations, and what every factor of it does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from rollbook.records.errors import Stopped

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("file", metavar="GRID", type=FILE)
@click.option("--out", type=FILE, help="Folder of the grid, continued if it is there. Default: grids/GRID.")
@click.option("--check", "only_checked", is_flag=True, help="Say which cells there are and which are impossible.")
@click.option("--dtype", default="auto", show_default=True, help="Precision of the computation: auto, float32, bfloat16.")
def grid(file: Path, out: Path | None, only_checked: bool, dtype: str) -> None:
    """Evaluate every combination of policies, harnesses, tools, judges and budgets of GRID, a YAML file, and compare them.

    Interrupted, the same command goes on; `rollbook compare FOLDER` shows a finished one again.
    """
    from rollbook.cli_progress import live_progress
    from rollbook.orchestration import grids

    told = grids.read(file)
    folder = out or Path("grids") / file.stem
    try:
        with live_progress() as progress:
            resolve = _resolver(progress)
            planned = grids.plan(told, resolve)
            cells = told.combinations()
            protocol = planned.base.protocol
            click.echo(f"{len(cells)} cells of {protocol.task_count} tasks, {len(planned.bundles)} protocols")
            grids.check_possible(planned)
            if only_checked:
                click.echo("\n".join(grids.said(levels) for levels in cells))
                return
            grids.run(planned, folder, resolve, progress, dtype=dtype)
    except (KeyboardInterrupt, Stopped):
        raise Stopped("stopped", why="every finished part is kept" if os.path.lexists(folder) else "nothing was written",
                      fix="go on with the same command") from None
    show(folder, as_json=False)
    click.echo(f"grid: {folder}")


def _resolver(progress: Any) -> Callable[[Any, Any], Any]:
    from rollbook.audit.replay import weights_of
    from rollbook.orchestration.evaluating import check_first
    from rollbook.orchestration.subjects import endpoint_subject, subject

    def resolve(told: Any, bundle: Any) -> Any:
        if isinstance(told, dict) or told.startswith(("http://", "https://")):
            said = told if isinstance(told, dict) else {"url": told}
            return endpoint_subject(said["url"], model=said.get("model", ""), key_variable=said.get("key_variable"), workers=8,
                                    seconds=120.0)

        def rebuild(path: Path, version: Any) -> Any:
            check_first(bundle, path)
            return weights_of(path, version, progress)

        return subject(told, rebuild=rebuild)
    return resolve


COLUMNS = ("before", "after", "gain in points (95%)", "p", "problems", "claim")


def show(folder: Path, *, as_json: bool) -> None:
    """What the factors of a finished grid do, as tables or as one JSON document."""
    from rollbook.cli_output import table
    from rollbook.orchestration.grid_sides import grid_result
    from rollbook.records import encode

    made = grid_result(folder)
    if as_json:
        document = {"levels": made.levels, "changes": made.changes, "notes": made.notes,
                    "cells": [{"levels": levels, "folder": held.name, "value": encode(held.side.result.value),
                               "spend": encode(held.side.result.spend)} for levels, held in made.cells],
                    **{name: [encode(one) for one in getattr(made, name)] for name in ("effects", "dependences", "steps")}}
        click.echo(json.dumps(document, ensure_ascii=False))
        return
    for factor, names in made.changes.items():
        click.echo(f"{factor}: {', '.join(made.levels[factor])}" + (f" (changes {', '.join(names)})" if names else ""))
    table("Cells", (*made.levels, "value", "95%", "tokens sampled"), [_cell(levels, held) for levels, held in made.cells])
    table("What each factor does, over all the others (p-values corrected, Holm)", ("step", "contexts", *COLUMNS),
          [(one.step, str(one.contexts), *_gain(one.gain)) for one in made.effects])
    _rows("Whether it depends on another factor: the difference of two effects", ("effect", "against", *COLUMNS),
          [(one.effect, f"{one.factor}: {one.before} to {one.after}", *_gain(one.gain, effects=True))
           for one in made.dependences])
    _rows("Every step", ("step", "with", *COLUMNS), [(one.step, one.gain.of, *_gain(one.gain)) for one in made.steps])
    for note in made.notes:
        click.echo(f"note: {note}")


def _rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rollbook.cli_output import table

    if rows:
        table(title, tuple(columns), [tuple(row) for row in rows])


def _cell(levels: Any, held: Any) -> tuple[str, ...]:
    value = held.side.result.value
    return (*levels.values(), f"{100 * value.estimate:.1f}%", f"{100 * value.low:.1f} to {100 * value.high:.1f}",
            f"{held.side.result.spend.tokens:,}")


def _gain(gain: Any, *, effects: bool = False) -> tuple[str, ...]:
    p, one = "—" if gain.p_value is None else f"{gain.p_value:.3g}", gain.gain
    form = "{:+.1f}" if effects else "{:.1f}%"
    return (form.format(100 * gain.before), form.format(100 * gain.after),
            f"{100 * one.estimate:+.1f} ({100 * one.low:+.1f} to {100 * one.high:+.1f})", p, str(one.count), gain.claim)
