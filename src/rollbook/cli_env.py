"""`rollbook env` and `rollbook doctor`: whether an environment can be trusted, and what this machine lacks."""

from __future__ import annotations

import json
from typing import Any

import click

COLOURS = {"pass": "green", "fail": "red", "note": "yellow"}


@click.group()
def env() -> None:
    """Environments: which there are, and whether one keeps its promises."""


@env.command("list")
def listed() -> None:
    """Print the environments that come with the package."""
    from rollbook.environments.naming import known_definitions

    for name, path in known_definitions().items():
        click.echo(f"{name:<16} {path}")


@env.command()
@click.argument("name")
@click.option("--set", "parameters", multiple=True, metavar="KEY=VALUE", help="A parameter of the definition, JSON or text.")
@click.option("--tasks", "count", default=4, show_default=True, help="How many tasks are tried.")
@click.option("--seed", default=0, show_default=True, help="Seed of the tasks.")
@click.option("--quick", is_flag=True, help="Leave out the fresh processes under changed conditions.")
@click.pass_context
def check(ctx: click.Context, name: str, parameters: tuple[str, ...], count: int, seed: int, quick: bool) -> None:
    """Try NAME, a built-in environment or package.module:Class, with its own solutions. Exits 1 where it fails."""
    from rollbook.environments.naming import spec_named
    from rollbook.orchestration.environment_check import check as findings

    failed = False
    for one in findings(spec_named(name, dict(map(_parameter, parameters))), count=count, seed=seed, deep=not quick):
        click.echo(f"{click.style(one.result, fg=COLOURS[one.result])}  {one.name}: {one.detail}")
        failed = failed or one.result == "fail"
    ctx.exit(1 if failed else 0)


def _parameter(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(f"--set takes KEY=VALUE, got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


@click.command()
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Say what this machine lacks, what cannot be done without it, and what to install. Exits 1 where something is missing."""
    from rollbook.environments.doctoring import lacking
    from rollbook.models.native.build import built

    missing = lacking()
    if (kernels := built()).library is None:
        click.echo(f"{click.style('missing', fg='yellow')}  kernels of the processor: torch's operations compute bf16 instead\n"
                   f"  why: {kernels.why}\n  fix: install g++ (Debian: apt install g++)")
    for one in missing:
        kind = click.style("missing", fg="red" if one.required else "yellow")
        click.echo(f"{kind}  {one.tool}: needed for {one.needed_for}\n  fix: {one.fix}")
    if not missing and kernels.library is not None:
        click.echo("nothing is missing")
    ctx.exit(1 if any(one.required for one in missing) else 0)
