"""The values of a recipe document: plain or labelled leaves in a tree of mappings, read from parsed YAML."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rollbook.recipes.usual import usual
from rollbook.recipes.yamltext import join
from rollbook.records.codec import nearest
from rollbook.records.errors import RecipeError
from rollbook.records.problems import Problems
from rollbook.records.recipe import Label, Plain

LABELS: tuple[str, ...] = get_args(Label)
DISCLOSED = frozenset({"D", "C", "R"})
Origin = Literal["recipe", "overlay", "user"]
_FIELDS = ("value", "values", "label", "claim", "reason", "scaled_from", "note", "typical", "each")
OBJECTIVE_KIND = ".objective.kind"  # a stage's objective: the one `kind` that is a statement about the release
_NEEDS = {"D": ("claim",), "C": ("claim",), "R": ("claim",), "I": ("reason",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One value of a document. Label None is a plain value; label U has none, `note` says what it means, `typical` a range.

    Example: Entry(value=0.3, label="D", claim="mistral.magistral-small.epsilon_high", origin="recipe", line=41)
    """

    value: Any
    label: Label | None = None
    claim: str | None = None
    reason: str | None = None
    note: str | None = None
    typical: str | None = None
    scaled_from: Plain = None
    origin: Origin = "recipe"
    line: int | None = None
    file: str | None = None

    @property
    def unknown(self) -> bool:
        return self.label == "U"


Tree = dict[str, Any]  # str -> Tree | Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What reading a part of a document needs: its file, its lines, who wrote it, and where problems go."""

    source: str
    lines: Mapping[str, int]
    origin: Origin
    problems: Problems

    def refuse(self, path: str, what: str, **parts: str) -> None:
        line = self.line(path)
        where = f"{self.source}:{line}: " if line else f"{self.source}: "
        self.problems.add(RecipeError(where + what, **parts))

    def line(self, path: str) -> int | None:
        """The line of the path or of its nearest enclosing key."""
        while path and path not in self.lines:
            path = path.rpartition(".")[0]
        return self.lines.get(path)


def _steps(key: str) -> list[str]:
    """The keys that a dotted key stands for; a sentence, such as a criterion of a judge, is one key.

    Example: _steps("stages.rl.steps") == ["stages", "rl", "steps"]; _steps("It is right.") == ["It is right."]
    """
    steps = key.split(".")
    return steps if all(step and not any(character.isspace() for character in step) for step in steps) else [key]


def tree(document: Any, path: str, reading: Reading) -> Any:
    """The tree (or the one entry) of a parsed document; dotted keys are nested, labels are checked."""
    if not isinstance(document, Mapping):
        return Entry(value=document, origin=reading.origin, line=reading.line(path), file=reading.source)
    if "label" in document or "value" in document:
        return _labelled(document, path, reading)
    branches: Tree = {}
    for key, item in document.items():
        _graft(branches, _steps(key), tree(item, join(path, key), reading), join(path, key), reading)
    return branches


def _graft(branches: Tree, names: list[str], item: Any, path: str, reading: Reading) -> None:
    for name in names[:-1]:
        branches = branches.setdefault(name, {})
        if isinstance(branches, Entry):
            reading.refuse(path, f"{path} reaches into a single value")
            return
    last = names[-1]
    if last in branches and isinstance(branches[last], dict) and isinstance(item, dict):
        for name, below in item.items():
            _graft(branches[last], [name], below, join(path, name), reading)
    elif last in branches:
        reading.refuse(path, f"{path} is written twice, once dotted and once nested", fix="keep one")
    else:
        branches[last] = item


def _labelled(document: Mapping[str, Any], path: str, reading: Reading) -> Any:
    label = document.get("label")
    for key in document:
        if key not in _FIELDS:
            reading.refuse(join(path, key), f"unknown key {join(path, key)} in a labelled value", got=repr(key),
                           fix=f"nearest names: {nearest(key, list(_FIELDS))}")
    if label not in LABELS:
        reading.refuse(path, f"{path} has an unknown label", got=repr(label),
                       why="a value is D disclosed, C confirmed artifact, R reproduced here, I inference or U unknown",
                       fix=f"use one of {', '.join(LABELS)}, or write the value plainly")
        return Entry(value=document.get("value"), origin=reading.origin, line=reading.line(path), file=reading.source)
    _check_label(document, path, reading)
    about = {key: document.get(key) for key in ("claim", "reason", "note", "typical", "scaled_from")}
    if "values" in document:
        return _group(document, path, {**about, "label": label}, reading)
    if "each" in document:
        return {name: _unknown(join(path, name), about, reading, path) for name in _names(document["each"], path, reading)}
    if label == "U":
        return _unknown(path, about, reading, path)
    return Entry(value=document.get("value"), label=label, origin=reading.origin, line=reading.line(path), file=reading.source,
                 **about)


def _unknown(path: str, about: Mapping[str, Any], reading: Reading, written_at: str) -> Entry:
    """An unknown value with its meaning and usual range: as written, else as the field has them everywhere."""
    known = usual(path)
    told = {**about, "note": about["note"] or (known.means if known else None),
            "typical": about["typical"] or (known.typical if known else None)}
    for need in ("note", "typical"):
        if not isinstance(told[need], str) or not told[need].strip():
            reading.refuse(written_at, f"{path} has label U but no {need}",
                           why="whoever supplies the value must know what it means" if need == "note" else
                           "whoever supplies the value must know what is usual", fix=f"add `{need}:`, a text")
    return Entry(value=None, label="U", origin=reading.origin, line=reading.line(written_at), file=reading.source, **told)


def _names(each: Any, path: str, reading: Reading) -> list[str]:
    if isinstance(each, list) and each and all(isinstance(name, str) and name for name in each) and len(set(each)) == len(each):
        return each
    reading.refuse(join(path, "each"), f"{path}.each must be a list of different names", got=repr(each),
                   fix="write `each: [learning_rate, beta1]`")
    return []


def _group(document: Mapping[str, Any], path: str, about: Mapping[str, Any], reading: Reading) -> Any:
    """`{label: I, reason: ..., values: {...}}` gives its label to every plain value below it."""
    inner = {name.replace(f"{path}.values.", f"{path}.", 1): line for name, line in reading.lines.items()}
    branches = tree(document["values"], path, dataclasses.replace(reading, lines=inner))
    if isinstance(branches, Entry):
        reading.refuse(path, f"{path}.values must be a mapping of values", got=repr(branches.value), fix="write `value:`")
        return branches
    return map_entries(branches, lambda name, entry: entry if entry.label or _structural(join(path, name))
                       else dataclasses.replace(entry, **about))


def _structural(path: str) -> bool:
    """Whether the value says which record a mapping is, not what a source says."""
    return path.endswith("kind") and not path.endswith(OBJECTIVE_KIND)


def _check_label(document: Mapping[str, Any], path: str, reading: Reading) -> None:
    label = str(document["label"])
    for need in _NEEDS.get(label, ()):
        if not isinstance(document.get(need), str) or not document[need].strip():
            why = {"claim": "a disclosed value is one that a named source states",
                   "reason": "an inference without its reason is an invention"}[need]
            reading.refuse(path, f"{path} has label {label} but no {need}", why=why, fix=f"add `{need}:`, a text")
    if label == "U" and ("value" in document or "values" in document):
        reading.refuse(path, f"{path} has label U and a value", got=repr(document.get("value", "values")),
                       why="an unknown value is not known", fix="remove the value, or label it I with its reason")
    if label != "U" and "each" in document:
        reading.refuse(path, f"{path} has label {label} and `each`", why="only what is unknown is listed without values",
                       fix="write `values:`")
    elif label != "U" and ("value" in document) == ("values" in document):
        reading.refuse(path, f"{path} has label {label} but not one of `value` and `values`",
                       why="only U has no value", fix="add `value:`")


def map_entries(branches: Tree, change: Any, path: str = "") -> Tree:
    """The same tree with every entry replaced by `change(path, entry)`."""
    return {name: change(join(path, name), item) if isinstance(item, Entry) else map_entries(item, change, join(path, name))
            for name, item in branches.items()}


def entries(branches: Tree, path: str = "") -> Iterator[tuple[str, Entry]]:
    """Every (dotted path, entry) of a tree, in document order."""
    for name, item in branches.items():
        if isinstance(item, Entry):
            yield join(path, name), item
        else:
            yield from entries(item, join(path, name))


def plain(branches: Any) -> Any:
    """The document of a tree: values only."""
    if isinstance(branches, Entry):
        return branches.value
    return {name: plain(item) for name, item in branches.items()}
