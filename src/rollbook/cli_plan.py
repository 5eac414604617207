"""`rollbook plan`: a recipe's stages with what each will cost, without loading a model; its loops in simulated time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rollbook.orchestration.planning.given import Asked
    from rollbook.orchestration.planning.simulate import Forecast
    from rollbook.records import ResolvedRecipe


@click.command()
@click.argument("recipe", default="magistral-small")
@click.option("--scale", default="lab", show_default=True, help="lab, tiny, or full (the true scale).")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Override a value. Repeatable.")
@click.option("--assume", type=click.Path(path_type=Path), help="Values for what is unknown.")
@click.option("--generators", type=click.IntRange(1), help="Simulate the loop of its policy-gradient stages, with so many.")
@click.option("--trainers", type=click.IntRange(1), default=1, show_default=True, help="Trainers of that loop.")
@click.option("--given", multiple=True, metavar="NAME=VALUE", help="A number for the simulation. Repeatable.")
def plan(recipe: str, scale: str, overrides: tuple[str, ...], assume: Path | None, generators: int | None, trainers: int,
         given: tuple[str, ...]) -> None:
    """Print the stages of RECIPE in order, what each reads, and upper bounds of what it samples, trains and holds.

    With --generators, what its loops will do instead: utilisation, ages, queues, and the best split of the machines.
    """
    from rollbook.recipes import assumed, load, resolve

    resolved = resolve(load(recipe), scale, overrides, assumed.load(assume) if assume else None)
    if generators is not None:
        _loops(resolved, (generators, trainers), given)
    else:
        _stages(resolved)


def _stages(resolved: ResolvedRecipe) -> None:
    from rollbook.recipes.plan import plan as planned

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


def _loops(resolved: ResolvedRecipe, machines: tuple[int, int], given: Sequence[str]) -> None:
    from rollbook.orchestration.planning.given import asked

    for one in asked(resolved, given=_numbers(given), generators=machines[0], trainers=machines[1]):
        _loop(resolved.name, one, machines)


def _loop(name: str, one: Asked, machines: tuple[int, int]) -> None:
    from rollbook.orchestration.planning.simulate import best_split, simulate

    generators, trainers = machines
    found = simulate(one.load, one.machines, one.rules)
    click.echo(f"{name}, stages.{one.stage} on {generators} generators and {trainers} trainers, simulated:")
    for line in _told(found, one.rules.per_task):
        click.echo(f"  {line}")
    if generators + trainers > 2:
        click.echo("  best split of the machines, by trained attempts a second:")
        for count, forecast in best_split(one.load, one.machines, one.rules, total=generators + trainers)[:3]:
            click.echo(f"    {count} generators, {generators + trainers - count} trainers: {forecast.trained_per_s:.3g}")


def _told(found: Forecast, per_task: int) -> list[str]:
    ages = ", ".join(f"{age}: {share:.0%}" for age, share in found.age.items())
    return [f"{found.trained_per_s:.3g} trained attempts a second, {found.tokens_per_s:.3g} tokens a second",
            f"busy: generators {found.generators_busy:.0%}, verifiers {found.verifiers_busy:.0%}, trainers "
            f"{found.trainers_busy:.0%}; {found.broadcasting:.1%} of the time goes into publications",
            f"age of trained attempts in versions: {ages}; {found.wasted:.1%} of the attempts are not trained",
            f"{found.concurrency:.1f} attempts decode at a time, memory allows {found.rows}; {found.queue:.1f} groups of "
            f"{per_task} wait for the trainer"]


def _numbers(given: Sequence[str]) -> dict[str, float]:
    from rollbook.records import RecipeError

    found: dict[str, float] = {}
    for text in given:
        name, equals, value = text.partition("=")
        try:
            found[name] = float(value) if equals else float("nan")
        except ValueError:
            found[name] = float("nan")
        if not abs(found[name]) < float("inf"):
            raise RecipeError("--given is NAME=VALUE with a finite number", got=text, fix="for example --given pass_s=0.02")
    return found
