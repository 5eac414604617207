"""`rollbook preflight`: whether a recipe's reward tells attempts apart, before a run is paid for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rollbook.rewards.signal import Signal


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

    with live_progress() as progress:
        found = look(resolved, progress=progress, **how)
    for name, text in lines_of(found):
        click.echo(f"{name:<11}{text}")
    ctx.exit(1 if found.doubts else 0)


def lines_of(found: Signal) -> list[tuple[str, str]]:
    """A signal in words; what was not scored is not known, and called neither zero nor equal."""
    unknown = found.groups - found.known if found.groups < found.attempts else 0
    said = "unknown" if not found.known else "no"
    return [
        ("groups", f"{found.groups}, of which {found.useful} have a spread of rewards, {found.solved} are all right, "
                   f"{found.failed} all wrong" + (f"; of {unknown} the spread is not known" if unknown else "")),
        ("reward", "nothing was scored" if found.mean is None else
         f"mean {found.mean:.3f}, variance {found.total:.4f}, within groups "
         + ("not known" if found.within is None else f"{found.within:.4f}")),
        ("verifier", f"{sum(found.unscored.values())} of {found.attempts} attempts without a verdict"
         + "".join(f", {code} {count}" for code, count in found.unscored.items())
         + ("" if found.agreement is None else f"; judged again, {found.agreement:.1%} the same")),
        ("truncated", f"{found.truncated:.1%} of the attempts"),
        ("cost", f"{found.cost_tokens:.0f} tokens and {found.cost_seconds:.2f} s per group with a spread"
         if found.cost_tokens is not None else "no group with a spread was seen" if found.known else
         "not known: nothing was scored" if found.mean is None else "not known"),
        ("signal", "yes" if not found.doubts else f"{said}: " + "; ".join(found.doubts))]
