"""A recipe document: loaded from YAML, its labels checked, nothing resolved yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.evidence.registry import Registry, builtin
from rollbook.recipes import citations, stated
from rollbook.recipes.citations import Cited
from rollbook.recipes.values import Entry, Reading, Tree, tree
from rollbook.recipes.yamltext import Parsed, parse
from rollbook.records.codec import nearest
from rollbook.records.errors import RecipeError
from rollbook.records.problems import Problems

SCHEMA = "rollbook.recipe/1"
BUILTIN = Path(__file__).parent / "builtin"
_TEXTS = ("name", "title", "subject", "source")
_OPTIONAL = ("row", "unbuilt")
_KEYS = ("schema", *_TEXTS, *_OPTIONAL, "pipeline", "facts", "settings", "scales")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """One smaller scale: what it changes, which scale it starts from, and why its own values are what they are."""

    changes: Tree
    extends: str | None
    because: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A recipe as written: `settings` at true scale, `scales` over it, `facts` that are disclosed but have no setting.

    `row` is the system's row in the list of systems. A recipe whose mechanisms are not all built says so in `unbuilt`, has no
    settings, and tells its stages in `pipeline`, in their order, each with its label.

    Example: Document(name="magistral-small", title="...", subject="Magistral Small (2025-06)", source="...", file="x.yaml",
        settings={"run": {"seed": Entry(value=1)}}, scales={"lab": Overlay(...)}, facts={})
    """

    name: str
    title: str
    subject: str
    source: str
    file: str
    settings: Tree
    scales: Mapping[str, Overlay]
    facts: Mapping[str, Entry]
    pipeline: Mapping[str, Entry] = dataclasses.field(default_factory=dict)
    row: str | None = None
    unbuilt: str | None = None


def builtin_names() -> tuple[str, ...]:
    """Names of the recipes in the package."""
    return tuple(sorted(path.stem for path in BUILTIN.glob("*.yaml")))


def load(name_or_path: str | Path, registry: Registry | None = None) -> Document:
    """The document of a built-in name or of a YAML file. Raises RecipeError with every problem of the document.

    Values that are called known are held against `registry`, the claims of the package where none is given.
    """
    path = _locate(str(name_or_path))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe file {path} cannot be read", got=str(error), fix="give a readable UTF-8 YAML file") from None
    return read(text, path.name, registry)


def _locate(name: str) -> Path:
    if name in builtin_names():
        return BUILTIN / f"{name}.yaml"
    path = Path(name)
    if path.is_file():
        return path
    if "/" in name or path.suffix in (".yaml", ".yml"):
        raise RecipeError("recipe file not found", got=repr(name), why="there is no such file",
                          fix="check the path; `rollbook recipes` lists the built-in names")
    raise RecipeError("unknown recipe", got=repr(name), why="it is neither a built-in name nor a file",
                      fix=f"nearest names: {nearest(name, list(builtin_names()))}; `rollbook recipes` lists all")


def read(text: str, source: str, registry: Registry | None = None) -> Document:
    """The document of a YAML text; see `load`."""
    parsed = parse(text, source)
    body = parsed.value
    if not isinstance(body, Mapping):
        raise RecipeError(f"{source}: a recipe must be a mapping", got=type(body).__name__, fix=f"start with `schema: {SCHEMA}`")
    if body.get("schema") != SCHEMA:
        raise RecipeError(f"{source}: schema must be {SCHEMA}", got=repr(body.get("schema")),
                          why="another version may mean other things by the same words", fix=f"write `schema: {SCHEMA}`")
    problems = Problems()
    reading = Reading(source=source, lines=parsed.lines, origin="recipe", problems=problems)
    _check_header(body, reading)
    settings = _part(parsed, "settings", reading)
    scales = {name: _overlay(parsed, name, reading) for name in _mapping(body, "scales", reading)}
    for name, overlay in scales.items():
        _check_extends(name, scales, reading) if overlay.extends else None
    facts, pipeline = _facts(parsed, reading, registry), _steps(parsed, reading, registry)
    if isinstance(body.get("subject"), str):
        subject = citations.Subject(release=body["subject"], source=source, line=reading.line("subject"), problems=problems)
        overlays = (Cited(tree=overlay.changes, prefix=f"scales.{name}.") for name, overlay in scales.items())
        parts = (Cited(tree=settings), *overlays, Cited(tree=pipeline, prefix="pipeline.", statement=True),
                 Cited(tree=facts, prefix="facts.", facts=True, statement=True))
        citations.check(parts, subject, lambda: registry or builtin())
        citations.check_objectives(settings, subject)
    problems.raise_any(source)
    return Document(**{key: body[key] for key in _TEXTS}, file=source, settings=settings, scales=scales, facts=facts,
                    pipeline=pipeline, row=body.get("row"), unbuilt=body.get("unbuilt"))


def _check_header(body: Mapping[str, Any], reading: Reading) -> None:
    for key in body:
        if key not in _KEYS:
            reading.refuse(key, f"unknown key {key}", got=repr(key), fix=f"nearest names: {nearest(key, list(_KEYS))}")
    for key in (*_TEXTS, "pipeline" if "unbuilt" in body else "settings"):
        if key not in body:
            reading.refuse("", f"missing key {key}", why="a recipe needs it", fix=f"write `{key}:`")
    for key in ("settings", "scales") if "unbuilt" in body else ():
        if key in body:
            reading.refuse(key, f"a recipe that is not built has {key}",
                           why="settings of a part of a pipeline would pass for the whole",
                           fix=f"remove `{key}:`, or remove `unbuilt:` once every mechanism is there")
    for key in (*_TEXTS, *_OPTIONAL):
        if key in body and not (isinstance(body[key], str) and body[key].strip()):
            reading.refuse(key, f"{key} must be a text", got=repr(body[key]))
    name = body.get("name")
    if isinstance(name, str) and not name.replace("-", "").replace(".", "").replace("_", "").isalnum():
        reading.refuse("name", "name must be letters, digits, '-', '_' and '.'", got=repr(name), why="it names the run folder")


def _mapping(body: Mapping[str, Any], key: str, reading: Reading) -> Mapping[str, Any]:
    item = body.get(key) or {}
    if isinstance(item, Mapping):
        return item
    reading.refuse(key, f"{key} must be a mapping", got=type(item).__name__)
    return {}


def _part(parsed: Parsed, key: str, reading: Reading, dropped: tuple[str, ...] = ()) -> Tree:
    """The tree under a dotted key of the document; paths in it start below that key."""
    item = parsed.value
    for name in key.split("."):
        item = item.get(name) or {}
        if not isinstance(item, Mapping):
            reading.refuse(key, f"{key} must be a mapping", got=type(item).__name__)
            return {}
    lines = {path.removeprefix(f"{key}."): line for path, line in parsed.lines.items() if path.startswith(f"{key}.")}
    inner = Reading(source=reading.source, lines=lines, origin=reading.origin, problems=reading.problems)
    branches: Tree = tree({name: below for name, below in item.items() if name not in dropped}, "", inner)
    return branches


def _facts(parsed: Parsed, reading: Reading, registry: Registry | None) -> dict[str, Entry]:
    """Labelled values, or a list of claims that are the facts."""
    held = parsed.value.get("facts")
    if isinstance(held, list):
        return stated.facts(held, reading, lambda: registry or builtin())
    return _labelled_part(parsed, "facts", reading)


def _steps(parsed: Parsed, reading: Reading, registry: Registry | None) -> dict[str, Entry]:
    """Labelled texts, or the claims that say them, in the order of the document."""
    body = _mapping(parsed.value, "pipeline", reading)
    cited = stated.steps(body, reading, lambda: registry or builtin())
    told = _labelled_part(parsed, "pipeline", reading, dropped=tuple(name for name in body if isinstance(body[name], str)))
    return {name: {**told, **cited}[name] for name in body if name in told or name in cited}


def _labelled_part(parsed: Parsed, key: str, reading: Reading, dropped: tuple[str, ...] = ()) -> dict[str, Entry]:
    """The entries under a key that holds one labelled value a name."""
    kept = {}
    for name, item in _part(parsed, key, reading, dropped).items():
        if isinstance(item, Entry) and item.label is not None:
            kept[name] = item
        else:
            reading.refuse(f"{key}.{name}", f"{key}.{name} must be one labelled value",
                           got="a mapping" if not isinstance(item, Entry) else repr(item.value),
                           why="a statement about a release says how it is known",
                           fix="write {value: ..., label: ..., claim: ...}")
    return kept


def _overlay(parsed: Parsed, name: str, reading: Reading) -> Overlay:
    if name not in ("lab", "tiny"):
        reading.refuse(f"scales.{name}", "a scale must be lab or tiny", got=repr(name), why="full is `settings` itself")
    body = _mapping(parsed.value["scales"], name, reading)
    overlay_reading = Reading(source=reading.source, lines=reading.lines, origin="overlay", problems=reading.problems)
    changes = _part(parsed, f"scales.{name}", overlay_reading, dropped=("extends", "because"))
    for key in ("extends", "because"):
        if key in body and not isinstance(body[key], str):
            reading.refuse(f"scales.{name}.{key}", f"scales.{name}.{key} must be a text", got=repr(body[key]))
    return Overlay(changes=changes, extends=body.get("extends"), because=body.get("because"))


def _check_extends(name: str, scales: Mapping[str, Overlay], reading: Reading) -> None:
    target = scales.get(str(scales[name].extends))
    if target is None or target.extends is not None or scales[name].extends == name:
        reading.refuse(f"scales.{name}.extends", f"scales.{name}.extends must name another scale that extends none",
                       got=repr(scales[name].extends), fix=f"one of: {', '.join(other for other in scales if other != name)}")
