"""`rollbook recipes`: the list, a card of one recipe, and whether recipes can be run."""

from __future__ import annotations

import click

SCALE = click.option("--scale", default="full", show_default=True, help="lab, tiny, or full (the true scale).")


@click.group(invoke_without_command=True)
@click.pass_context
def recipes(ctx: click.Context) -> None:
    """List the built-in recipes with their state; show one, check some, or write a file of assumptions."""
    if ctx.invoked_subcommand is None:
        _list()


def _list() -> None:
    from rollbook.recipes import builtin_names, load
    from rollbook.recipes.state import UNBUILT, state

    documents = [load(name) for name in builtin_names()]
    longest = max(len(one.name) for one in documents)
    states = [state(one) for one in documents]
    for one, what in zip(documents, states, strict=True):
        dim = what == UNBUILT or what.startswith("needs")
        click.echo(f"{one.name:<{longest}}  {click.style(what, dim=dim)}")
        click.echo(f"{'':<{longest}}  {click.style(one.subject, fg='bright_black')}")
    runs = sum(what.startswith("runs") for what in states)
    unbuilt = states.count(UNBUILT)
    click.echo(f"\n{len(documents)} recipes: {runs} run as they are, {len(documents) - runs - unbuilt} need values from you, "
               f"{unbuilt} are not built here.\n"
               "`rollbook recipes show NAME` prints a card, `rollbook recipes template NAME` the values.")


@recipes.command("show")
@click.argument("name")
@SCALE
def show(name: str, scale: str) -> None:
    """Show recipe NAME: its pipeline, every value with its label and source, and what is unknown."""
    from rollbook.cli_card import show as card
    from rollbook.recipes import load

    card(load(name), scale)


@recipes.command("template")
@click.argument("name")
@SCALE
def template(name: str, scale: str) -> None:
    """Print a file for `rollbook run NAME --assume FILE`: every value that is not disclosed, with meaning and usual range."""
    from rollbook.recipes import load
    from rollbook.recipes.state import template as text
    from rollbook.records.errors import RecipeError

    document = load(name)
    if document.unbuilt:
        raise RecipeError(f"recipe {document.name} cannot be run", got="a template", why=document.unbuilt,
                          fix=f"`rollbook recipes show {document.name}` prints what is disclosed")
    click.echo(text(document, scale), nl=False)


@recipes.command("check")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--all", "every", is_flag=True, help="Check every built-in recipe.")
def check(files: tuple[str, ...], every: bool) -> None:
    """Check each FILE (or built-in name) at each of its scales. All are checked; exits 2 when one is refused."""
    from rollbook.recipes import builtin_names
    from rollbook.records.errors import RecipeError

    names = (*files, *(name for name in builtin_names() if every and name not in files))
    if not names:
        raise RecipeError("nothing to check", got="no file", fix="name recipes or files, or give --all")
    refused: list[RecipeError] = []
    for name in names:
        try:
            _check(name)
        except RecipeError as error:
            refused.append(error)
    if len(refused) == 1:
        raise refused[0]
    if refused:
        from rollbook.records.problems import RecipeProblems

        raise RecipeProblems(f"{len(refused)} of {len(names)} recipes are refused; the check", tuple(refused))


def _check(name: str) -> None:
    """Resolves a recipe at each of its scales; prints a line for each."""
    from rollbook.recipes import load, resolve, unknowns

    document = load(name)
    if document.unbuilt:
        click.echo(f"{document.name}: ok, {len(document.facts) + len(document.pipeline)} statements, not built")
        return
    for scale in (*document.scales, "full"):
        if left := len(unknowns(document, scale)):
            shown = f"`rollbook recipes show {name} --scale {scale}`"
            click.echo(f"{document.name} {scale}: {left} values are not disclosed ({shown})")
        else:
            recipe = resolve(document, scale)
            click.echo(f"{document.name} {scale}: ok, {len(recipe.provenance)} values, {len(recipe.settings.stages)} stages")
