"""Layers over a recipe's true scale: scale overlays and the user's `--set`; each remembers what it replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, get_args, get_origin, get_type_hints

from rollbook.recipes.document import Document
from rollbook.recipes.values import DISCLOSED, OBJECTIVE_KIND, Entry, Reading, Tree, entries, map_entries, tree
from rollbook.recipes.yamltext import join, parse
from rollbook.records.codec import TAG, nearest
from rollbook.records.errors import RecipeError
from rollbook.records.problems import Problems
from rollbook.records.recipe import Settings, Stage
from rollbook.records.stages import Plain

ANY = ".*"              # ends a path below which every name is allowed


def scaled(document: Document, scale: str, problems: Problems) -> Tree:
    """The document's settings at a scale: itself at `full`, else with its overlays applied."""
    if scale == "full":
        return document.settings
    if scale not in document.scales:
        raise RecipeError("unknown scale", got=repr(scale), why=f"{document.name} has {', '.join(['full', *document.scales])}",
                          fix=f"nearest names: {nearest(scale, ['full', *document.scales])}")
    overlay = document.scales[scale]
    base = scaled(document, overlay.extends, problems) if overlay.extends else document.settings
    layer = Layer(source=document.file, because=overlay.because, problems=problems)
    return layer.merge(base, overlay.changes, "")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of changes. `because` is the reason of its plain values where what they replace is no disclosure."""

    source: str
    because: str | None
    problems: Problems

    def merge(self, base: Tree, changes: Tree, path: str) -> Tree:
        """`base` with `changes`: values replace values, null removes a mapping, another kind replaces it whole; an empty mapping
        over one with parts would change nothing and is refused."""
        merged = dict(base)
        for name, new in changes.items():
            below, old = join(path, name), base.get(name)
            if isinstance(new, Entry) and isinstance(old, dict):
                if new.value is None and new.label is None:
                    del merged[name]
                else:
                    self._refuse(new, f"{below} is a mapping, not one value", got=repr(new.value), fix="set its fields")
            elif isinstance(new, Entry):
                merged[name] = self._replace(old, new, below)
            elif isinstance(old, Entry) and old.label == "U":
                merged[name] = self._strange(new, below, old)     # what was unknown turns out to have parts
            elif isinstance(old, Entry):
                self._refuse(old, f"{below} is one value, not a mapping", got=", ".join(new), fix=f"write {below}: VALUE")
            elif isinstance(old, dict) and isinstance(tag := old.get(TAG), Entry) and tag.unknown and TAG in new:
                merged[name] = self.merge(_fields_of(old, new), new, below)
            elif old is None or _kind(new, old) != _kind(old, old):
                merged[name] = self._strange(new, below)
            elif old and not new:
                self.problems.add(RecipeError(f"{self.source}: {below} is given as an empty mapping", got="{}",
                                              why=f"mappings are merged: it would keep {', '.join(old)}",
                                              fix=f"write {below}: null to leave them out, or name what changes"))
            else:
                merged[name] = self.merge(old, new, below)
        return merged

    def _strange(self, new: Tree, path: str, old: Entry | None = None) -> Tree:
        return map_entries(new, lambda name, entry: self._replace(old, entry, join(path, name)))

    def _replace(self, old: Entry | None, new: Entry, path: str) -> Entry:
        if path.endswith(OBJECTIVE_KIND) and old is None and new.label is None:
            return self._chosen(new, path)
        if old is None or (path.endswith(f".{TAG}") and not path.endswith(OBJECTIVE_KIND)):
            return new
        if _equal(old.value, new.value) and not old.unknown and new.label is None:
            return dataclasses.replace(old, origin="user") if new.origin == "user" else old
        sourced = old.label in DISCLOSED or (old.label == "I" and old.claim is not None)
        true = old.scaled_from if old.scaled_from is not None else old.value if sourced else None
        origin_value = new.scaled_from if new.scaled_from is not None else true
        new = dataclasses.replace(new, scaled_from=None if _equal(origin_value, new.value) else origin_value)
        if new.label is not None or old.label not in ("U", "I"):
            return new
        return self._chosen(dataclasses.replace(new, note=old.note), path, f"replaces a value labelled {old.label}")

    def _chosen(self, new: Entry, path: str, how: str = "is an objective of its own") -> Entry:
        """A value that no source gives, as the inference of whoever wrote the layer."""
        reason = "supplied by the user" if new.origin == "user" else self.because
        if reason:
            return dataclasses.replace(new, label="I", reason=reason)
        self._refuse(new, f"{path} {how} without saying why", got=repr(new.value),
                     why="the source does not give this value, so it is somebody's inference",
                     fix="label it I with a reason, or give the scale a `because:`")
        return new

    def _refuse(self, entry: Entry, what: str, **parts: str) -> None:
        where = self.source if entry.line is None else f"{self.source}:{entry.line}"
        self.problems.add(RecipeError(what if where == "--set" else f"{where}: {what}", **parts))


def _equal(one: Any, other: Any) -> bool:
    """Equal as YAML values: 1 and 1.0 are, 1 and true are not."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _fields_of(old: Tree, new: Tree) -> Tree:
    """What an undecided stage keeps of its open fields once its kind is chosen: those that the kind has."""
    kind = next((one for one in get_args(Stage) if one.__name__ == _kind(new, old)), None)
    known = {field.name for field in dataclasses.fields(kind)} if kind else set(old)
    return {name: item for name, item in old.items() if name in known or name == TAG}


def _kind(branches: Tree, default: Tree) -> Any:
    entry = branches.get(TAG, default.get(TAG))
    return entry.value if isinstance(entry, Entry) else None


def overridden(base: Tree, assignments: Sequence[str], objective_fields: dict[str, tuple[str, ...]], problems: Problems) -> Tree:
    """`base` with `a.b=c` assignments, YAML values, as the user's; an unknown path is refused with the nearest names."""
    seen: set[str] = set()
    layer = Layer(source="--set", because=None, problems=problems)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        path = path.strip()
        if not equals or not path or not text.strip():
            problems.add(RecipeError("--set needs PATH=VALUE", got=repr(assignment), fix="for example --set run.seed=2"))
            continue
        if path in seen:
            problems.add(RecipeError(f"--set {path} is given twice", got=repr(assignment), why="one of the two would be ignored",
                                     fix="keep one"))
            continue
        seen.add(path)
        base = _assigned(base, path, text, layer, objective_fields)
    return base


def _assigned(base: Tree, path: str, text: str, layer: Layer, objective_fields: dict[str, tuple[str, ...]]) -> Tree:
    value = parse(text, f"--set {path}").value
    reading = Reading(source="--set", lines={}, origin="user", problems=layer.problems)
    new = tree(value, path, reading)
    if (isinstance(new, Entry) and new.label) or (isinstance(new, dict) and any(entry.label for _, entry in entries(new))):
        layer.problems.add(RecipeError(f"--set {path} takes a plain value", got=text,
                                       why="what you set is recorded as yours, not as a source's",
                                       fix="put labelled values into a recipe file"))
        return base
    written = {path} | ({join(path, name) for name, _ in entries(new)} if isinstance(new, dict) else set())
    known = _known_paths(base, objective_fields)
    old = _at(base, path) if path in known else None
    parts = (isinstance(old, Entry) and old.unknown) or (path in known and old is None)    # unknown or absent: it may have parts
    parts = parts or (isinstance(new, dict) and TAG in new)      # a record of another kind is checked whole when it is decoded
    unknown = sorted(name for name in written if not _known(name, known) and not (parts and name != path))
    named = sorted(one for one in known if not one.endswith(ANY))
    for name in unknown:
        layer.problems.add(RecipeError(f"--set names no setting of this recipe: {name}", got=f"{path}={text}",
                                       why=f"there is no {name} at this scale",
                                       fix=f"nearest names: {nearest(name, named)}"))
    if unknown:
        return base
    changes: Any = new
    for name in reversed(path.split(".")):
        changes = {name: changes}
    return layer.merge(base, changes, "")


def _known_paths(base: Tree, objective_fields: dict[str, tuple[str, ...]]) -> set[str]:
    """Every path of the tree, of an optional setting not written, and of an objective's field."""
    known = set(_branches(base, ""))
    for path in list(known):
        node = _at(base, path)
        if isinstance(node, dict) and path.endswith(".objective") and isinstance(node.get("kind"), Entry):
            known |= {join(path, field) for field in objective_fields.get(node["kind"].value, ())}
    return known | set(_optional(Settings, base, ""))


def _known(name: str, known: set[str]) -> bool:
    """A path of the tree, or a name below a mapping whose names somebody else knows and checks (an environment's parameters)."""
    return name in known or any(name.startswith(one.removesuffix("*")) for one in known if one.endswith(ANY))


def _branches(branches: Tree, path: str) -> list[str]:
    found = []
    for name, item in branches.items():
        found.append(join(path, name))
        if isinstance(item, dict):
            found.extend(_branches(item, join(path, name)))
    return found


def _at(branches: Tree, path: str) -> Any:
    node: Any = branches
    for name in path.split("."):
        node = node.get(name) if isinstance(node, dict) else None       # a setting that the tree need not write
    return node


def _optional(kind: Any, branches: Any, path: str) -> list[str]:
    """Paths of fields that the types have and the tree need not."""
    if not isinstance(branches, dict):
        return []
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return [found for name, hint in hints.items()
                for found in (join(path, name), *_optional(hint, branches.get(name), join(path, name)))]
    options = [option for option in get_args(kind) if dataclasses.is_dataclass(option)]
    if get_origin(kind) is not None and hasattr(get_origin(kind), "keys"):
        item = get_args(kind)[1]
        if item is Any or item == Plain:
            return [path + ANY]
        return [found for name in branches for found in _optional(item, branches[name], join(path, name))]
    tag = _kind(branches, branches)
    chosen = [option for option in options if len(options) == 1 or getattr(option, "__name__", "") == tag]
    return [found for option in chosen for found in _optional(option, branches, path)]
