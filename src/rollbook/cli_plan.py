"""`rollbook plan`: the graph of a recipe's stages with what each will cost, without loading a model."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("recipe", default="magistral-small")
@click.option("--scale", default="lab", show_default=True, help="lab, tiny, or full (the true scale).")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Override a value. Repeatable.")
@click.option("--assume", type=click.Path(path_type=Path), help="Values for what is unknown.")
def plan(recipe: str, scale: str, overrides: tuple[str, ...], assume: Path | None) -> None:
    """Print the stages of RECIPE in order, what each reads, and upper bounds of what it samples, trains and holds."""
    from rollbook.recipes import assumed, load, resolve
    from rollbook.recipes.plan import plan as planned

    resolved = resolve(load(recipe), scale, overrides, assumed.load(assume) if assume else None)
    stages = planned(resolved)
    width = max(len(one.name) for one in stages)
    click.echo(f"{resolved.name}, scale {resolved.scale}: {len(stages)} stages")
    for one in stages:
        reads = ", ".join(f"{field}: {name}" for field, name in one.reads.items()) or "the initial model"
        click.echo(f"  {one.name:<{width}}  {one.kind} <- {reads}")
        costs = [(one.attempts, "attempts"), (one.sampled_tokens, "sampled tokens"), (one.updates, "optimizer steps"),
                 (one.trained_tokens, "trained tokens")]
        told = [f"{count:,} {what} at most" for count, what in costs if count]
        told.append("size known once the model is loaded" if one.flop is None or one.bytes is None
                    else f"{one.flop:.2g} FLOP, {one.bytes / 2**20:.1f} MiB of models")
        click.echo(f"  {'':<{width}}  {'; '.join(told)}")
    total = [one.flop for one in stages if one.flop is not None]
    if len(total) == len(stages):
        click.echo(f"  in all {sum(total):.2g} FLOP at most, {max(one.bytes or 0 for one in stages) / 2**20:.1f} MiB at once")
