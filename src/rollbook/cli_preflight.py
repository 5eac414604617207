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
    """Sample a few groups of RECIPE and say whether there is a learning signal. Exits 1 if not."""
    from rollbook.cli_progress import live_progress
    from rollbook.recipes import assumed, load, resolve

    resolved = resolve(load(recipe), scale, overrides, assumed.load(assume) if assume else None)
    from rollbook.orchestration.preflight import preflight as look

    with live_progress() as progress:
        found = look(resolved, progress=progress, **how)
    lines = [("groups", f"{found.groups}, of which {found.useful} have a spread of rewards, {found.solved} are all right, "
                        f"{found.failed} all wrong"),
             ("reward", "nothing was scored" if found.mean is None else
              f"mean {found.mean:.3f}, variance {found.total:.4f}, within groups {found.within:.4f}"),
             ("verifier", f"{sum(found.unscored.values())} of {found.attempts} attempts without a verdict"
              + "".join(f", {code} {count}" for code, count in found.unscored.items())
              + ("" if found.agreement is None else f"; judged again, {found.agreement:.1%} the same")),
             ("truncated", f"{found.truncated:.1%} of the attempts"),
             ("cost", "no group to train on" if found.cost_tokens is None else
              f"{found.cost_tokens:.0f} tokens and {found.cost_seconds:.2f} s per group with a spread")]
    for name, text in lines:
        click.echo(f"{name:<11}{text}")
    click.echo(f"{'signal':<11}{'yes' if not found.doubts else 'no: ' + '; '.join(found.doubts)}")
    ctx.exit(1 if found.doubts else 0)
