"""YAML as claims mean it: YAML 1.2 scalars (`1e-5` is a number, `no` a word), no duplicate keys, a line for every path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from rollbook.evidence.errors import EvidenceError

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
class Parsed:
    """A parsed text: plain mappings, lists and scalars, and the 1-based line of every path of keys."""

    value: Any
    lines: Mapping[Path, int]


def parse(text: str, source: str) -> Parsed:
    """The document of a YAML text; `source` names it in errors. Keys may hold dots, so a path is a tuple of keys.

    Example: parse("a: {b.c: 1e-5}", "x.yaml").lines == {("a",): 1, ("a", "b.c"): 1}
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        lines: dict[Path, int] = {}
        value = None if node is None else _construct(loader, node, (), lines, source)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark else source
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise EvidenceError(f"{where}: not valid YAML", got=str(problem),
                            fix="check quotes, colons, commas and indentation at that line") from None
    except RecursionError:
        raise EvidenceError(f"{source}: not a claims file", got="an anchor that contains itself",
                            fix="remove the alias") from None
    finally:
        loader.dispose()
    return Parsed(value=value, lines=lines)


def _construct(loader: Any, node: yaml.Node, path: Path, lines: dict[Path, int], source: str) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_object(node)
    if isinstance(node, yaml.SequenceNode):
        return [_construct(loader, item, (*path, index), lines, source) for index, item in enumerate(node.value)]
    if node.tag != "tag:yaml.org,2002:map":
        raise EvidenceError(f"{source}:{node.start_mark.line + 1}: claims have no tags", got=str(node.tag), fix="remove the tag")
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in mapping:
            raise EvidenceError(f"{source}:{line}: key {key} is written twice", why="one of the two would be ignored",
                                fix="keep one")
        lines[(*path, key)] = line
        mapping[key] = _construct(loader, value_node, (*path, key), lines, source)
    return mapping
