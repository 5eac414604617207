"""What the command line checks before a run and what it prints: start tables and tables of values."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from rollbook.records.errors import LedgerError
from rollbook.records.recipe import Pretrained, ResolvedRecipe, Tiny

MIB = 1 << 20
NEEDED_BYTES = {Tiny: 128 * MIB, Pretrained: 3072 * MIB}  # checkpoints of a lab run, rounded up


def check_new_run(folder: Path, model: Pretrained | Tiny) -> None:
    """Refuses a run folder that exists or could not be written, before anything is written."""
    if os.path.lexists(folder):
        raise LedgerError("the run folder exists", got=str(folder), why="a run is written once and never over another",
                          fix=f"choose another with --out, go on with `rollbook resume {folder}`, or remove it")
    parent = folder.absolute().parent
    while not os.path.lexists(parent):
        parent = parent.parent
    if not parent.is_dir():
        raise LedgerError("the run folder cannot be made", got=str(folder), why=f"{parent} is not a folder",
                          fix="choose another with --out")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise LedgerError("the run folder cannot be made", got=str(folder), why=f"{parent} is read-only",
                          fix="choose another with --out, or change its permissions")
    free, needed = shutil.disk_usage(parent).free, NEEDED_BYTES[type(model)]
    if free < needed:
        raise LedgerError("too little disk space for a run", got=f"{free // MIB} MiB free in {parent}",
                          why=f"records and checkpoints take up to {needed // MIB} MiB", fix="free some space, or choose --out")


def check_existing_run(folder: Path) -> None:
    """Refuses a folder that is no run."""
    if not (folder / "manifest.json").is_file():
        raise LedgerError("not a run folder", got=str(folder), why="it has no manifest.json",
                          fix="give the folder that `rollbook run` printed")


def show_start(recipe: ResolvedRecipe, folder: Path) -> None:
    """What runs, which values are smaller than the source's, and which are inferences or the user's."""
    click.echo(f"{recipe.title} ({recipe.name}, scale {recipe.scale}) -> {folder}")
    values = dict(_values(recipe.settings))
    scaled_rows = [(path, text(values.get(path)), text(about.scaled_from)) for path, about in recipe.provenance.items()
                   if about.scaled_from is not None]
    inferred = [(path, text(values.get(path)), about.reason or "") for path, about in recipe.provenance.items()
                if about.label == "I"]
    own = [(path, text(values.get(path))) for path, about in recipe.provenance.items() if about.origin == "user"]
    table("Scaled from the source", ("value", "here", "source"), scaled_rows)
    table("Inferred, not disclosed", ("values", "reason"), grouped(inferred))
    table("Set by you", ("value", "is"), own)


def grouped(rows: Iterable[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """Rows of one parent and one reason joined: `a.b: c 1, d 2`."""
    groups: dict[tuple[str, str], list[str]] = {}
    for path, value, reason in rows:
        parent, _, name = path.rpartition(".")
        groups.setdefault((parent, reason), []).append(f"{name} {value}")
    return [(f"{parent}: {', '.join(items)}", reason) for (parent, reason), items in groups.items()]


def text(value: Any) -> str:
    """A value as YAML would show it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


def _values(record: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    from rollbook.recipes.resolve import leaves

    for leaf in leaves(record, path):
        node: Any = record
        for key in leaf.split("."):
            node = node[key] if isinstance(node, dict) else getattr(node, key)
        yield leaf, node


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table for a person, tab-free aligned lines for a file; nothing when there are no rows."""
    if not rows:
        return
    if not sys.stdout.isatty():
        click.echo(f"{title}:")
        widths = [max(len(row[index]) for row in rows) for index in range(len(columns))]
        for row in rows:
            click.echo("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    Console().print(shown)
