"""`--assume FILE`: values for what a recipe leaves unknown, each the user's inference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbook.recipes.overlay import Layer
from rollbook.recipes.values import Entry, Reading, Tree, entries, map_entries, tree
from rollbook.recipes.yamltext import parse
from rollbook.records.codec import nearest
from rollbook.records.errors import RecipeError
from rollbook.records.problems import Problems

SCHEMA = "rollbook.assumptions/1"
REASON = "assumed by the user"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What a user supplies: entries with origin `user` and label I, from one file.

    Example: Assumptions(file="mine.yaml", values={"stages": {"rl": {"steps": Entry(value=300, label="I", origin="user")}}})
    """

    file: str
    values: Tree


def load(path: str | Path) -> Assumptions:
    """The assumptions of a YAML file. Raises RecipeError with every problem of it."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"assumptions {file} cannot be read", got=str(error), fix="give a readable UTF-8 YAML file") from None
    return read(text, file.name)


def read(text: str, source: str) -> Assumptions:
    """The assumptions of a YAML text: paths as in a recipe's `settings`, plain values or `{value, label: I, reason}`."""
    parsed = parse(text, source)
    if not isinstance(parsed.value, Mapping) or parsed.value.get("schema") != SCHEMA:
        got = parsed.value.get("schema") if isinstance(parsed.value, Mapping) else type(parsed.value).__name__
        raise RecipeError(f"{source}: a file of assumptions must begin with `schema: {SCHEMA}`", got=repr(got),
                          why="another version may mean other things by the same words")
    problems = Problems()
    reading = Reading(source=source, lines=parsed.lines, origin="user", problems=problems)
    given: Tree = tree({key: item for key, item in parsed.value.items() if key != "schema"}, "", reading)
    values = map_entries(given, lambda path, entry: _assumed(path, entry, reading))
    if not values:
        reading.refuse("", "the file assumes nothing", fix="write PATH: VALUE for each value that the recipe leaves unknown")
    problems.raise_any(source)
    return Assumptions(file=source, values=values)


def _assumed(path: str, entry: Entry, reading: Reading) -> Entry:
    if entry.label not in (None, "I"):
        reading.refuse(path, f"{path} is assumed with label {entry.label}", got=repr(entry.value),
                       why="what you supply is your inference, whatever it rests on",
                       fix="write the value, or label it I with a reason")
    reason = f"{REASON}: {entry.reason}" if entry.reason else REASON
    return dataclasses.replace(entry, label="I", reason=reason)


def supplied(base: Tree, assumed: Assumptions, problems: Problems) -> Tree:
    """`base` with its unknown values filled in; a value that is not unknown is refused.

    Where the kind of a stage is unknown, so is the pipeline: stages of the user's own may stand beside it.
    """
    missing = {path: entry for path, entry in entries(base) if entry.unknown}
    before = len(problems.found)
    known = dict(entries(base))
    free = [*missing, *(["stages"] if any(name.startswith("stages.") and name.endswith(".kind") for name in missing) else [])]
    for path, entry in entries(assumed.values):
        if not any(path == name or path.startswith(f"{name}.") for name in free) or (path in known and path not in missing):
            problems.add(_not_unknown(f"{assumed.file}:{entry.line}", path, known, list(missing)))
    if len(problems.found) > before:
        return base
    return Layer(source=assumed.file, because=None, problems=problems).merge(base, assumed.values, "")


def _not_unknown(where: str, path: str, known: Mapping[str, Entry], missing: list[str]) -> RecipeError:
    held = known.get(path)
    if held is None:
        return RecipeError(f"{where}: {path} is no unknown value of this recipe", got=repr(path),
                           fix=f"nearest names: {nearest(path, missing)}" if missing else "nothing is unknown at this scale")
    about = f"label {held.label}" if held.label else "a plain value"
    return RecipeError(f"{where}: {path} is not unknown", got=f"{_short(held.value)}, {about}",
                       why="an assumption fills in what no source gives, it does not change what is there",
                       fix=f"remove it, or change the value with --set {path}=VALUE")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
