"""`rollbook preflight`: whether a recipe's reward tells attempts apart, before a run is paid for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("recipe", default="magistral-small")
@click.option("--scale", default="lab", show_default=True, help="lab, tiny, or full (the true scale).")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Override a value. Repeatable.")
@click.option("--assume", type=click.Path(path_type=Path), help="Values for what is unknown.")
@click.option("--stage", help="The policy-gradient stage. Default: the only one.")
@click.option("--groups", default=8, show_default=True, type=click.IntRange(min=1), help="Tasks that are attempted.")
@click.option("--model", help="Sample from this model instead of the recipe's first: a folder or a built-in name.")
@click.pass_context
def preflight(ctx: click.Context, recipe: str, scale: str, overrides: tuple[str, ...], assume: Path | None, **how: Any) -> None:
    """Sample a few groups of RECIPE and say whether there is a learning signal. Exits 1 if not, or if that is not known."""
    from rollbook.cli_progress import live_progress
    from rollbook.recipes import assumed, load, resolve

    resolved = resolve(load(recipe), scale, overrides, assumed.load(assume) if assume else None)
    from rollbook.orchestration.preflight import preflight as look
    from rollbook.orchestration.preflight import told

    with live_progress() as progress:
        found = look(resolved, progress=progress, **how)
    for name, text in told(found):
        click.echo(f"{name:<11}{text}")
    ctx.exit(1 if found.doubts else 0)
