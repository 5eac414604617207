"""The card of a recipe: its pipeline, every value with its label and source, what is unknown. Wrapped to the terminal's width."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rollbook.evidence.claims import Claim
    from rollbook.recipes import Document, Entry

NARROW, WIDE = 60, 100
COLOURS = {"D": "blue", "C": "green", "R": "magenta", "I": "yellow", "U": "bright_black"}


def width() -> int:
    """Columns of the terminal within readable bounds; 80 where there is none."""
    return max(NARROW, min(WIDE, shutil.get_terminal_size((80, 24)).columns))


def wrapped(text: str, indent: int) -> Iterator[str]:
    """Lines of a text, each indented and within the width; a word longer than a line stays whole."""
    yield from textwrap.wrap(text, width(), initial_indent=" " * indent, subsequent_indent=" " * indent,
                             break_long_words=False, break_on_hyphens=False)


def show(document: Document, scale: str) -> None:
    """Prints the card of a recipe at a scale."""
    from rollbook.recipes.state import state

    click.echo(click.style("\n".join(wrapped(document.title, 0)), bold=True))
    about = {"name": document.name, "subject": document.subject, "row": document.row, "source": document.source,
             "state": state(document), "not built": document.unbuilt}
    for key, text in about.items():
        if text:
            first, *rest = wrapped(text, 12)
            click.echo(f"  {key:<10}{first.lstrip()}")
            for line in rest:
                click.echo(line)
    if document.unbuilt:
        _pipeline(document)
        counted = list(document.facts.values())
    else:
        counted = _settings(document, scale)
    _section("Disclosed, but no setting here", document.facts)
    _unknown_of(document.subject)
    _summary(document, scale, counted)


def _pipeline(document: Document) -> None:
    click.echo("\nPipeline:")
    for index, (name, entry) in enumerate(document.pipeline.items()):
        _value(f"{index + 1}. {name}", entry, 2)


def _settings(document: Document, scale: str) -> list[Entry]:
    from rollbook.recipes import entries
    from rollbook.recipes.overlay import scaled
    from rollbook.records.problems import Problems

    problems = Problems()
    settings = scaled(document, scale, problems)
    problems.raise_any(document.file)
    click.echo("\nPipeline:")
    for line in pipeline(settings.get("stages", {})):
        click.echo("\n".join(_below(line)))
    values = [(path, entry) for path, entry in entries(settings) if not structural(path)]
    groups: dict[str, dict[str, Entry]] = {}
    for path, entry in values:
        if not entry.unknown:
            parent, _, name = path.rpartition(".")
            groups.setdefault(parent, {})[name] = entry
    click.echo(f"\nValues at scale {scale}:")
    for parent, held in groups.items():
        _group(parent, held)
    _not_disclosed([(path, entry) for path, entry in values if entry.unknown])
    return [entry for _, entry in values]


def _below(line: str) -> Iterator[str]:
    """A line of the tree, its continuations below the stage's name."""
    stem = len(line) - len(line.lstrip("│├└─ "))
    first, *rest = wrapped(line[stem:], stem + 6)
    yield f"  {line[:stem]}{first.strip()}"
    yield from rest


def _group(parent: str, held: Mapping[str, Entry]) -> None:
    click.echo(f"  {parent or '(recipe)'}")
    plain = []
    for name, entry in held.items():
        if entry.label is None and entry.scaled_from is None:
            plain.append(f"{name} {_text(entry.value)}")
        else:
            _value(name, entry, 4)
    for line in wrapped("- " + ", ".join(plain), 4) if plain else ():
        click.echo(line)


def _value(name: str, entry: Entry, indent: int, said: str | None = None) -> None:
    label = click.style(entry.label or "-", fg=COLOURS.get(entry.label or ""), bold=True)
    first, *rest = wrapped(f"{name}: {said or (entry.note if entry.unknown else _text(entry.value))}", indent + 2)
    click.echo(f"{' ' * indent}{label} {first.lstrip()}")
    for line in (*rest, *wrapped(_about(entry), indent + 4)):
        click.echo(line)


def _about(entry: Entry) -> str:
    parts = [f"scaled from {_text(entry.scaled_from)}"] if entry.scaled_from is not None else []
    if entry.reason:
        parts.append(entry.reason)
    if entry.claim:
        parts.append(f"drawn from {_cited(entry.claim)}" if entry.label == "I" else _cited(entry.claim))
    return "; ".join(parts)


def _cited(name: str) -> str:
    """A claim's id with the place where it was read."""
    from rollbook.evidence.registry import builtin

    if name not in builtin().ids:
        return name
    source = builtin().claim(name).source
    return f"{name} ({source.document} {source.section})"


def _not_disclosed(missing: Sequence[tuple[str, Entry]]) -> None:
    if not missing:
        return
    click.echo("\nNot disclosed (give with --set or --assume FILE; typical: I, of other systems):")
    for path, entry in missing:
        label = click.style("U", fg=COLOURS["U"], bold=True)
        click.echo(f"  {label} {path}")
        for line in wrapped(f"{entry.note}; typical {entry.typical}", 6):
            click.echo(line)


def _section(title: str, held: Mapping[str, Entry]) -> None:
    if not held:
        return
    click.echo(f"\n{title}:")
    for name, entry in held.items():
        _value(name, entry, 2, _claimed(entry))


def _claimed(entry: Entry) -> str | None:
    """A fact with its bound, unit and denominator, where it is its claim's."""
    from rollbook.evidence.agreement import shown
    from rollbook.evidence.registry import builtin
    from rollbook.recipes.stated import written

    if entry.claim not in builtin().ids:
        return None
    claim = builtin().claim(entry.claim)
    return shown(claim) if claim.value is not None and entry.value == written(claim) else None


def _unknown_of(subject: str) -> None:
    """What the sources say to be unknown of the release, whether this recipe has a setting for it or not."""
    from rollbook.evidence.registry import builtin

    if subject not in {release.subject for release in builtin().releases.values()}:
        return
    claims: list[Claim] = [claim for claim in builtin().about(subject) if claim.label == "U"]
    if claims:
        click.echo(f"\nUnknown of {subject}:")
    for claim in claims:
        first, *rest = wrapped(f"{claim.says} ({claim.stage}; {claim.id})", 4)
        click.echo(f"  {click.style('U', fg=COLOURS['U'], bold=True)} {first.lstrip()}")
        for line in rest:
            click.echo(line)


def _summary(document: Document, scale: str, counted: Sequence[Entry]) -> None:
    left = sum(entry.unknown for entry in counted)
    if document.unbuilt:
        click.echo("\nThis recipe cannot be run.")
    elif left:
        click.echo(f"\n{left} of {len(counted)} values are not disclosed; a file for --assume that lists them:\n"
                   f"  rollbook recipes template {document.name} --scale {scale}")
    else:
        click.echo("\nEvery value is given at this scale.")


def _text(value: Any) -> str:
    from rollbook.cli_output import text

    return ", ".join(map(text, value)) if isinstance(value, list) else text(value)


def structural(path: str) -> bool:
    """Whether a value only says which record a mapping is; the kinds of an objective are values of the recipe."""
    return path.endswith(".kind") and ".objective." not in path


def pipeline(stages: Any) -> Iterator[str]:
    """The stages as a tree: each below the policy that it starts from."""
    from rollbook.records.graph import START

    if not isinstance(stages, Mapping):
        yield "not disclosed"
        return
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


def _stage(stage: Any) -> str:
    if not isinstance(stage, Mapping):
        return getattr(stage, "note", None) or "not disclosed"
    kind = _said(stage, "kind") or "a kind that is not disclosed"
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
