"""Objectives to and from plain mappings, as recipes and records hold them. Strict: an unknown key or kind is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rollbook.objectives.catalogue import OBJECTIVES
from rollbook.objectives.core import Objective, Unstated
from rollbook.objectives.corrected import Corrected
from rollbook.objectives.credit.rules import RULES
from rollbook.objectives.errors import ObjectiveError
from rollbook.objectives.exploring import ControlledEntropy, WithEntropy

_KINDS: dict[str, type] = {
    **OBJECTIVES,
    **RULES,
    "Corrected": Corrected,
    "WithEntropy": WithEntropy,
    "ControlledEntropy": ControlledEntropy,
}


def to_settings(record: object) -> dict[str, Any]:
    """A settings record as a mapping with its class name under `kind`; `Unstated` fields are left out.

    Example: to_settings(Gspo()) -> {"kind": "Gspo", "low": 0.0003, "high": 0.0004, "aggregate": "sequence_mean"}
    """
    if not dataclasses.is_dataclass(record) or isinstance(record, type):
        raise ObjectiveError(
            "to_settings takes a settings record", got=repr(record), why="a class or a value has no settings", fix=_known()
        )
    settings: dict[str, Any] = {"kind": type(record).__name__}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if not isinstance(value, Unstated):
            settings[field.name] = to_settings(value) if dataclasses.is_dataclass(value) else value
    return settings


def from_settings(settings: Mapping[str, Any]) -> Objective:
    """The objective of a mapping; the inverse of `to_settings`."""
    if not isinstance(settings, Mapping):
        raise ObjectiveError("objective must be a mapping", got=repr(settings), why="settings have names", fix=_known())
    record = _build(settings, path="objective")
    if not isinstance(record, Objective):
        got = repr(settings.get("kind"))
        raise ObjectiveError("objective.kind must name an objective", got=got, why="this is a credit rule", fix=_known())
    return record


def _build(settings: Mapping[str, Any], *, path: str) -> object:
    kind = settings.get("kind")
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ObjectiveError(f"{path}.kind is unknown", got=repr(kind), why="settings are built by class name", fix=_known())
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(map(str, set(settings) - set(fields) - {"kind"}))
    missing = sorted(name for name, field in fields.items() if name not in settings and field.default is dataclasses.MISSING)
    if unknown or missing:
        raise ObjectiveError(
            f"{path} does not fit {kind}",
            got=f"unknown: {', '.join(unknown) or 'none'}; missing: {', '.join(missing) or 'none'}",
            why="an ignored key or an invented number would make the name untrue",
            fix=f"{kind} takes {', '.join(fields) or 'no fields'}",
        )
    values = {
        name: _build(value, path=f"{path}.{name}") if isinstance(value, Mapping) else _number(str(fields[name].type), value)
        for name, value in settings.items()
        if name != "kind"
    }
    return cls(**values)


def _number(declared: str, value: Any) -> Any:
    """A whole number where a field is declared to be a float, as that float: YAML says 0 for 0.0, and records tell them apart."""
    return float(value) if type(value) is int and "float" in declared and "int" not in declared.split(" | ") else value


def _known() -> str:
    return f"use one of {', '.join(_KINDS)}"
