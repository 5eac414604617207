"""YAML as claims and recipes mean it: 1.2 scalars (`1e-5` is a number, `no` a word), no duplicate keys, a line for every path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from rollbook.evidence.errors import EvidenceError
from rollbook.records.errors import RollbookError

MERGE = "<<"  # `<<: *other` fills in the keys of another mapping that are not written here
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Path = tuple[str | int, ...]


class _Loader(_Base):  # type: ignore[misc]
    """The C parser with the scalar rules below instead of YAML 1.1's."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"^(?:true|false)$", "tf"),
    ("int", r"^[-+]?(?:0|[1-9][0-9_]*)$", "-+0123456789"),
    ("float", r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
    ("null", r"^(?:~|null|)$", ["~", "n", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:float", lambda _, node: float(node.value.replace("_", "")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What a file is called in refusals, the kind of refusal it raises, and whether `<<` may fill in another mapping's keys."""

    name: str
    refusal: type[RollbookError]
    merges: bool = False


CLAIMS = Dialect(name="a claims file", refusal=EvidenceError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A parsed text: plain mappings, lists and scalars, and the 1-based line of every path of keys and list indices."""

    value: Any
    lines: Mapping[Path, int]


def parse(text: str, source: str, dialect: Dialect = CLAIMS) -> Parsed:
    """The document of a YAML text; `source` names it in errors. Keys may hold dots, so a path is a tuple of keys.

    Example: parse("a: {b.c: 1e-5}", "x.yaml").lines == {("a",): 1, ("a", "b.c"): 1}
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        building = _Building(loader=loader, source=source, dialect=dialect, lines={})
        value = None if node is None else building.value(node, ())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark else source
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise dialect.refusal(f"{where}: not valid YAML", got=str(problem),
                              fix="check quotes, colons, commas and indentation at that line") from None
    except RecursionError:
        raise dialect.refusal(f"{source}: not {dialect.name}", got="an anchor that contains itself",
                              fix="remove the alias") from None
    finally:
        loader.dispose()
    return Parsed(value=value, lines=building.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Building:
    """Plain values from nodes, noting the line of every key."""

    loader: Any
    source: str
    dialect: Dialect
    lines: dict[Path, int]

    def value(self, node: yaml.Node, path: Path) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self.loader.construct_object(node)
        if isinstance(node, yaml.SequenceNode):
            self.lines.update({(*path, index): item.start_mark.line + 1 for index, item in enumerate(node.value)})
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        if node.tag != "tag:yaml.org,2002:map":
            raise self.refusal(node, f"{self.dialect.name} has no tags", got=str(node.tag), fix="remove the tag")
        return self._mapping(node, path)

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if self.dialect.merges and key_node.value == MERGE:
                if not isinstance(value_node, yaml.MappingNode):
                    raise self.refusal(key_node, "`<<` must be one mapping", fix="write `<<: *name`")
                merged = self.value(value_node, path)
                continue
            key = str(key_node.value)
            if key in own:
                raise self.refusal(key_node, f"key {'.'.join(map(str, (*path, key)))} is written twice",
                                   why="one of the two would be ignored", fix="keep one")
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            own[key] = self.value(value_node, (*path, key))
        return {**merged, **own}

    def refusal(self, node: yaml.Node, what: str, **parts: str) -> RollbookError:
        return self.dialect.refusal(f"{self.source}:{node.start_mark.line + 1}: {what}", **parts)
