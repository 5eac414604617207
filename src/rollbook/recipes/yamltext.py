"""YAML as recipes mean it: the claims' rules, and dotted paths, so that nested and dotted keys name one setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollbook.evidence import yamltext
from rollbook.records.errors import RecipeError

_RECIPE = yamltext.Dialect(name="a recipe", refusal=RecipeError, merges=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A parsed text: plain mappings, lists and scalars, and the 1-based line of every dotted path."""

    value: Any
    lines: Mapping[str, int]


def parse(text: str, source: str) -> Parsed:
    """The document of a YAML text; `source` names it in errors.

    Example: parse("a: {b: 1e-5}", "x.yaml") == Parsed(value={"a": {"b": 1e-05}}, lines={"a": 1, "a.b": 1})
    """
    parsed = yamltext.parse(text, source, _RECIPE)
    return Parsed(value=parsed.value, lines={".".join(map(str, path)): line for path, line in parsed.lines.items()})


def join(path: str, key: str) -> str:
    """The dotted path of `key` under `path`."""
    return f"{path}.{key}" if path else key
