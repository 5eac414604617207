"""A document at a scale with the user's overrides, decoded and checked: what a run starts from."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any, get_args, get_type_hints

from rollbook.recipes import objective, overlay, validate
from rollbook.recipes.assumed import Assumptions, supplied
from rollbook.recipes.document import Document
from rollbook.recipes.values import OBJECTIVE_KIND, Entry, Tree, entries, plain
from rollbook.recipes.yamltext import join
from rollbook.records import graph
from rollbook.records.codec import TAG, decode, nearest, sparse_fields
from rollbook.records.errors import CodecError, RecipeError
from rollbook.records.problems import Problems
from rollbook.records.recipe import Provenance, ResolvedRecipe, RewardSettings, Scale, Settings, Stage

SCALES: tuple[str, ...] = get_args(Scale)
OPTIONAL = {name for name, _ in sparse_fields(Settings)}


def resolve(document: Document, scale: str, overrides: Sequence[str] = (), assumed: Assumptions | None = None) -> ResolvedRecipe:
    """Every value in force with its provenance; raises RecipeError with all problems of the first kind that has any.

    The kinds, in order: assumptions, overrides and labels, undisclosed values, types, combinations.
    """
    subject = f"recipe {document.name} at scale {scale}"
    if scale not in SCALES:
        raise RecipeError("unknown scale", got=repr(scale), fix=f"nearest names: {nearest(scale, list(SCALES))}")
    if document.unbuilt:
        raise RecipeError(f"recipe {document.name} cannot be run", got=f"scale {scale}", why=document.unbuilt,
                          fix=f"`rollbook recipes show {document.name}` prints what is disclosed, `rollbook recipes` what runs")
    problems = Problems()
    settings = overlay.scaled(document, scale, problems)
    if assumed is not None:
        settings = supplied(settings, assumed, problems)
    settings = overlay.overridden(settings, overrides, objective.fields(), problems)
    problems.raise_any(subject)
    _refuse_unknown(settings, document.name, scale,
                    [name for name in document.scales if name != scale and not unknowns(document, name)])
    decoded = _decoded(settings, document.file, problems)
    problems.raise_any(subject)
    assert decoded is not None
    validate.check(decoded, problems)
    problems.raise_any(subject)
    ordered = {name: decoded.stages[name] for name in graph.order(decoded.stages, decoded.rewards)}
    return ResolvedRecipe(name=document.name, title=document.title, subject=document.subject, scale=scale,  # type: ignore[arg-type]
                          settings=dataclasses.replace(decoded, stages=ordered), provenance=_provenance(settings, decoded))


def unknowns(document: Document, scale: str) -> tuple[tuple[str, Entry], ...]:
    """The undisclosed values left at a scale, in document order."""
    problems = Problems()
    settings = overlay.scaled(document, scale, problems)
    problems.raise_any(f"recipe {document.name} at scale {scale}")
    return tuple((path, entry) for path, entry in entries(settings) if entry.unknown)


def _refuse_unknown(settings: Tree, name: str, scale: str, smaller: Iterable[str]) -> None:
    missing = [(path, entry) for path, entry in entries(settings) if entry.unknown]
    if not missing:
        return
    width = max(len(path) for path, _ in missing)
    rows = [f"    {path:<{width}}  {entry.note} (typical, I: {entry.typical})" for path, entry in missing]
    raise RecipeError("\n".join([f"recipe {name} at scale {scale} cannot start: {len(missing)} values are not disclosed", *rows]),
                      why="what is not known is not invented; a typical value is inferred from other systems (I), one that you "
                          "supply is recorded as yours",
                      fix=" or ".join(["add --set PATH=VALUE for each", "give them in a file with --assume FILE"
                                       f" (`rollbook recipes template {name} --scale {scale}` begins one)",
                                       *(f"use --scale {other}" for other in smaller)]))


def _decoded(settings: Tree, source: str, problems: Problems) -> Settings | None:
    """The typed settings, decoded section by section so that each can report its own misfit."""
    hints = get_type_hints(Settings)
    sections = [name for name in hints if name != "stages"]
    parts: dict[str, Any] = {}
    for name in settings:
        if name not in hints:
            _misfit(CodecError(f"unknown key {name}", got=repr(name), why="Settings has no such field",
                               fix=f"nearest names: {nearest(name, list(hints))}"), settings, source, problems)
    optional = {field.name for field in dataclasses.fields(Settings) if field.default_factory is not dataclasses.MISSING}
    for name in sections:
        if name not in settings and name in optional:
            continue
        if name not in settings:
            if name in OPTIONAL:
                continue
            _misfit(CodecError(f"missing key {name}", why="Settings needs it", fix=f"write {name}"), settings, source, problems)
            continue
        parts[name] = _section(hints[name], settings[name], name, settings, source, problems)
    stages = settings.get("stages", {})
    if isinstance(stages, Entry):
        _misfit(CodecError("stages must be a mapping", got=repr(stages.value)), settings, source, problems)
        return None
    parts["stages"] = {name: _section(Stage, item, join("stages", name), settings, source, problems)
                       for name, item in stages.items()}
    return None if problems.found else Settings(**parts)


def _tagged(document: Any, path: str) -> Any:
    """A reward without a kind is Magistral's, whose settings are older than the kinds."""
    if path == "reward" and isinstance(document, dict) and TAG not in document:
        return {TAG: RewardSettings.__name__, **document}
    return document


def _section(kind: Any, item: Any, path: str, settings: Tree, source: str, problems: Problems) -> Any:
    try:
        return decode(kind, _tagged(plain(item), path), path)
    except CodecError as error:
        _misfit(error, settings, source, problems)
        return None


def _misfit(error: CodecError, settings: Tree, source: str, problems: Problems) -> None:
    """The codec's refusal with the file and line of the value it is about, or `--set` when the user wrote it."""
    known = dict(entries(settings))
    for word in re.findall(r"[\w.\-]+", error.what):
        entry = known.get(word)
        if entry is not None:
            where = f"{entry.file}:{entry.line}" if entry.line else entry.file or source
            break
    else:
        where = source
    problems.add(RecipeError(f"{where}: {error.what}", got=error.got, why=error.why, fix=error.fix))


def _provenance(settings: Tree, decoded: Settings) -> dict[str, Provenance]:
    """Provenance of every value by dotted path; a value that only its type's default gives is the recipe's."""
    written = {path: Provenance(origin=entry.origin, label=entry.label, claim=entry.claim, reason=entry.reason,
                                scaled_from=entry.scaled_from)
               for path, entry in entries(settings) if not path.endswith(f".{TAG}") or path.endswith(OBJECTIVE_KIND)}
    defaults = {path: Provenance(origin="recipe", label=None) for path in leaves(decoded) if path not in written}
    return {**written, **defaults}


def leaves(record: Any, path: str = "") -> list[str]:
    """Dotted paths of every value of a record."""
    if dataclasses.is_dataclass(record):
        kind: Any = type(record)
        absent = {name for name, default in sparse_fields(kind) if getattr(record, name) == default}
        items = [(field.name, getattr(record, field.name)) for field in dataclasses.fields(record) if field.name not in absent]
    elif isinstance(record, dict):
        items = list(record.items())
    else:
        return [path]
    return [found for name, item in items for found in leaves(item, join(path, name))]
