"""`rollbook curate`: from rows as they were collected to an immutable task set, stage by stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("pipeline", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--out", type=click.Path(path_type=Path),
              help="Folder of the task set. Default: tasks/NAME. Goes on where it stood.")
def curate(pipeline: Path, out: Path | None) -> None:
    """Run the curation that PIPELINE (a YAML file) describes, or complete it."""
    from rollbook.orchestration.curation import run_curation

    made, folder = run_curation(pipeline, out, show)
    shown = ", ".join(f"{side} {count}" for side, count in sorted(made.sides.items()))
    if made.unread:
        click.echo("unreadable rows: " + ", ".join(f"{why} {count}" for why, count in made.unread.items()))
    click.echo(f"{made.rows} tasks ({shown}) in {folder / 'tasks.jsonl'}, SHA-256 {made.tasks[:16]}; "
               f"record in {folder / 'taskset.json'}")


def show(record: Any) -> None:
    """One line per stage: rows in and out, why the others went, what was changed."""
    parts = [f"{why} {count}" for why, count in sorted(record.rejected.items(), key=lambda pair: -pair[1])]
    parts += [f"{what} {count}" for what, count in record.changed.items()]
    parts += [f"{what} {value}" for what, value in record.notes.items()]
    seconds = record.observed.get("seconds", 0.0)
    click.echo(f"{record.number:2d} {record.kind:<18} {record.count_in:>8} -> {record.count_out:<8} {seconds:7.1f} s"
               + (f"  {', '.join(parts)}" if parts else ""))
