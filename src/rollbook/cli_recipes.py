"""`rollbook recipes`: the list, a card of one recipe, and whether recipes can be run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rollbook.recipes import Document, Entry


@click.group(invoke_without_command=True)
@click.pass_context
def recipes(ctx: click.Context) -> None:
    """List the built-in recipes; show or check one."""
    if ctx.invoked_subcommand is None:
        from rollbook.cli_output import table
        from rollbook.recipes import builtin_names, load

        documents = [load(name) for name in builtin_names()]
        table("Recipes", ("name", "title", "subject"), [(one.name, one.title, one.subject) for one in documents])


@recipes.command("show")
@click.argument("name")
@click.option("--scale", default="full", show_default=True, help="lab, tiny, or full (the true scale).")
def show(name: str, scale: str) -> None:
    """Show recipe NAME: its pipeline, every value with its label and source, and what is unknown."""
    from rollbook.recipes import entries, load
    from rollbook.recipes.overlay import scaled
    from rollbook.recipes.problems import Problems

    document = load(name)
    problems = Problems()
    settings = scaled(document, scale, problems)
    problems.raise_any(document.file)
    click.echo(f"{document.title}\n  name     {document.name}\n  subject  {document.subject}\n  source   {document.source}"
               f"\n  scales   full, {', '.join(document.scales)}\n\nPipeline:")
    for line in pipeline(settings.get("stages", {})):
        click.echo(f"  {line}")
    values = [(path, entry) for path, entry in entries(settings) if not structural(path)]
    _show_values(document, scale, values)
    _show_unknown(document.subject)
    left = sum(entry.unknown for _, entry in values)
    click.echo(f"{left} of {len(values)} values are not disclosed." if left else "Every value is given at this scale.")


def structural(path: str) -> bool:
    """Whether a value only says which record a mapping is; the kinds of an objective are values of the recipe."""
    return path.endswith(".kind") and ".objective." not in path


def _show_values(document: Document, scale: str, values: list[tuple[str, Entry]]) -> None:
    from rollbook.cli_output import table

    known = [(path, *_described(entry)) for path, entry in values if not entry.unknown]
    unknown = [(path, entry.note or "", entry.typical or "") for path, entry in values if entry.unknown]
    click.echo()
    table(f"Values at scale {scale}", ("value", "is", "label", "source or reason"), known)
    table("Disclosed, but no setting here", ("fact", "is", "label", "source"),
          [(name, *_described(entry)) for name, entry in document.facts.items()])
    table("Not disclosed (give them with --set or --assume FILE)", ("value", "means", "typical"), unknown)


def _described(entry: Entry) -> tuple[str, str, str]:
    from rollbook.cli_output import text

    source = _cited(entry.claim) if entry.claim else ""
    about = "; drawn from ".join(part for part in (entry.reason, source) if part)
    if entry.scaled_from is not None:
        about = f"scaled from {text(entry.scaled_from)}" + (f": {about}" if about else "")
    return text(entry.value), entry.label or "-", about


def _cited(name: str) -> str:
    """A claim's id with the place where it was read."""
    from rollbook.evidence.registry import builtin

    if name not in builtin().ids:
        return name
    source = builtin().claim(name).source
    return f"{name} ({source.document} {source.section})"


def _show_unknown(subject: str) -> None:
    """What the sources say to be unknown of the release, whether this recipe has a setting for it or not."""
    from rollbook.cli_output import table
    from rollbook.evidence.registry import builtin

    if subject not in {release.subject for release in builtin().releases.values()}:
        return
    rows = [(claim.stage, claim.says, claim.id) for claim in builtin().about(subject) if claim.label == "U"]
    table(f"Unknown of {subject}", ("stage", "what", "claim"), rows)


def pipeline(stages: Mapping[str, Any]) -> Iterator[str]:
    """The stages as a tree: each below the policy that it starts from."""
    from rollbook.records.graph import START

    below: dict[str, list[str]] = {}
    for name, stage in stages.items():
        source = _said(stage, "policy") or "?"
        below.setdefault(source if source in stages else START if source == START else "?", []).append(name)
    for root in (START, "?"):
        if root in below:
            yield "start: the initial model" if root == START else "a policy that is not disclosed"
            yield from _branch(root, stages, below, "")


def _branch(parent: str, stages: Mapping[str, Any], below: Mapping[str, list[str]], indent: str) -> Iterator[str]:
    children = below.get(parent, [])
    for index, name in enumerate(children):
        last = index == len(children) - 1
        yield f"{indent}{'└─' if last else '├─'} {name}: {_stage(stages[name])}"
        yield from _branch(name, stages, below, indent + ("   " if last else "│  "))


def _stage(stage: Mapping[str, Any]) -> str:
    kind = _said(stage, "kind") or "?"
    objective = stage.get("objective")
    named = _said(objective, "kind") if isinstance(objective, Mapping) else None
    parts = [f"{kind} by {named}" if named else f"{kind} by an objective that is not disclosed" if objective else kind]
    for field, words in (("tasks", "on the tasks of"), ("compare_to", "compared with")):
        if other := _said(stage, field):
            parts.append(f"{words} {other}")
    return ", ".join(parts)


def _said(stage: Any, field: str) -> str | None:
    entry = stage.get(field) if isinstance(stage, Mapping) else None
    value = getattr(entry, "value", None)
    return value if isinstance(value, str) else None


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
        from rollbook.recipes.problems import RecipeProblems

        raise RecipeProblems(f"{len(refused)} of {len(names)} recipes are refused; the check", tuple(refused))


def _check(name: str) -> None:
    """Resolves a recipe at each of its scales; prints a line for each."""
    from rollbook.recipes import load, resolve, unknowns

    document = load(name)
    for scale in (*document.scales, "full"):
        if left := len(unknowns(document, scale)):
            shown = f"`rollbook recipes show {name} --scale {scale}`"
            click.echo(f"{document.name} {scale}: {left} values are not disclosed ({shown})")
        else:
            recipe = resolve(document, scale)
            click.echo(f"{document.name} {scale}: ok, {len(recipe.provenance)} values, {len(recipe.settings.stages)} stages")
