"""`rollbook plan`: a recipe's stages with what each will cost, without loading a model; its loops in simulated time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
@click.option("--given", multiple=True, metavar="NAME=VALUE",
              help="A number of your own: for the simulation, or sampled_tokens_per_s and trained_tokens_per_s. Repeatable.")
@click.option("--probe", is_flag=True, help="Time a few steps and attempts of every stage here, and estimate time and memory.")
def plan(recipe: str, scale: str, overrides: tuple[str, ...], assume: Path | None, **how: Any) -> None:
    """Print the stages of RECIPE in order, what each reads, and upper bounds of what it samples, trains and holds.

    With --probe or --given, also the time of every stage. With --generators, what its loops will do instead: utilisation, ages,
    queues, and the best split of the machines.
    """
    from rollbook.recipes import assumed, load, resolve

    resolved = resolve(load(recipe), scale, overrides, assumed.load(assume) if assume else None)
    if how["generators"] is not None:
        _loops(resolved, (how["generators"], how["trainers"]), how["given"])
        return
    rates = _rates(how["given"], probe=how["probe"])
    _stages(resolved, rates)
    if resolved.settings.environment is not None:
        _here(resolved)
    if how["probe"]:
        _probe(resolved)


RATES = ("sampled_tokens_per_s", "trained_tokens_per_s")


def _rates(given: Sequence[str], *, probe: bool) -> tuple[float, float] | None:
    """Tokens sampled and trained in a second as the user says; None where nothing is said."""
    from rollbook.records import RecipeError

    if not given:
        return None
    found = _numbers(given)
    if probe or set(found) != set(RATES) or min(found.values()) <= 0:
        raise RecipeError("an estimate needs a probe, or both of its rates", why="what is left out would be guessed",
                          got=", ".join(given) + (" and --probe" if probe else ""),
                          fix="--probe alone, or " + " ".join(f"--given {name}=1000" for name in RATES))
    return found[RATES[0]], found[RATES[1]]


def _stages(resolved: ResolvedRecipe, rates: tuple[float, float] | None) -> None:
    from rollbook.recipes.plan import along, parameters
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
        if rates is not None:
            told.append(f"{duration(one.sampled_tokens / rates[0] + one.trained_tokens / rates[1])} at most, by the rates given")
        click.echo(f"  {'':<{width}}  {'; '.join(told)}")
    asked, beside = along(resolved.settings)
    if asked:
        click.echo(f"  suites asked along the run: {asked:,} attempts at most; {beside:,} sampled tokens at most")
    if rates is not None:
        seconds = beside / rates[0] + sum(one.sampled_tokens / rates[0] + one.trained_tokens / rates[1] for one in stages)
        click.echo(f"  in all {duration(seconds)} at most, by the rates that you gave ({rates[0]:g} tokens sampled and "
                   f"{rates[1]:g} trained in a second): nothing was measured")
    total = [one.flop for one in stages if one.flop is not None]
    if len(total) == len(stages):
        total.append(2.0 * (parameters(resolved.settings) or 0) * beside)
        click.echo(f"  in all {sum(total):.2g} FLOP at most, {max(one.bytes or 0 for one in stages) / 2**20:.1f} MiB at once")


def _here(resolved: ResolvedRecipe) -> None:
    """What a run would be refused for on this machine: its environment's packages, servers and program."""
    from textwrap import indent

    from rollbook.orchestration.readiness import unready

    for error in unready(resolved.settings):
        click.echo("on this machine a run would be refused:\n" + indent(str(error), "  "))


def _probe(resolved: ResolvedRecipe) -> None:
    """The time and memory of every stage, estimated from a probe of this machine."""
    import time

    from rollbook.cli_progress import live_progress
    from rollbook.orchestration.planning.probe import estimates

    began, own = time.monotonic(), time.process_time()
    with live_progress() as progress:
        found = estimates(resolved, progress)
    width = max(len(one.stage) for one in found)
    took = time.monotonic() - began
    share = (time.process_time() - own) / took
    click.echo(f"estimated from a probe of this machine, {duration(took)} long, which had {share:.0%} of a core beside all that "
               "ran:")
    for one in found:
        if one.seconds is None or one.at_most is None:
            click.echo(f"  {one.stage:<{width}}  not estimated: {one.why}")
            continue
        upto = f" to {duration(one.at_most)} where every wave is needed" if one.at_most > 1.05 * one.seconds else ""
        held = "" if one.bytes is None else f", {one.bytes / 2**30:.2f} GiB of memory in all"
        length = "" if one.tokens is None else f", sequences of {one.tokens:.0f} tokens"
        click.echo(f"  {one.stage:<{width}}  {duration(one.seconds)}{upto}{held}{length}")
    known = [one for one in found if one.seconds is not None]
    missing = f"; {len(found) - len(known)} stages are not in it" if len(known) < len(found) else ""
    low, high = sum(one.seconds or 0.0 for one in known), sum(one.at_most or 0.0 for one in known)
    click.echo(f"  in all {duration(low)} to {duration(high)}, at most "
               f"{max((one.bytes or 0 for one in known), default=0) / 2**30:.2f} GiB{missing}")


def duration(seconds: float) -> str:
    """Seconds in a unit that can be read.

    Example: duration(75) == "1.2 min"
    """
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


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
