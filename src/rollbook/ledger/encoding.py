"""The canonical bytes of a record for the log, once it is sure that they can be read back under the same id."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from rollbook.records import RecordError, codec
from rollbook.records.codec import OBSERVED, field_names


def body_and_id(record: Any) -> tuple[bytes, str]:
    """The canonical body (with the record's own `observed`) and the content id (without it)."""
    refuse_whole_floats(record)
    return codec.body_and_id(record)


Fits = Callable[[Any], bool]


def refuse_whole_floats(record: Any) -> None:
    """Refuses an integer where a float is declared: it would be read back as 1.0 instead of 1, under another id."""
    cls: Any = type(record)
    for name, fits in _field_checks(cls):
        if not fits(getattr(record, name)):
            raise RecordError(f"{cls.__name__}.{name} holds a whole number where a float is declared",
                              why="it would be read back as another JSON number and the record under another id",
                              fix="write 1.0, not 1")


@functools.cache
def _field_checks(cls: Any) -> list[tuple[str, Fits]]:
    hints = typing.get_type_hints(cls)
    checks = [(name, _check(hints[name])) for name in field_names(cls) if name != OBSERVED]
    return [(name, fits) for name, fits in checks if fits is not None]


def _check(hint: Any) -> Fits | None:
    """Whether every value that the type declares to be a float is one; None when it declares none."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is float:
        return _is_float
    if origin in (typing.Union, types.UnionType):
        if float in arguments and int not in arguments:
            return lambda value: type(value) is not int and _record_fits(value)
        return _record_fits if any(map(dataclasses.is_dataclass, arguments)) else None
    if dataclasses.is_dataclass(hint):
        return _record_fits
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _each(_check(arguments[1]), lambda value: value.values())
    if origin is tuple and arguments[-1] is Ellipsis:
        return _each(_check(arguments[0]), lambda value: value)
    return None


def _each(fits: Fits | None, items: Callable[[Any], Any]) -> Fits | None:
    if fits is _is_float:               # long: one look at the types
        return lambda value: all(issubclass(kind, float) for kind in set(map(type, items(value))))
    return None if fits is None else lambda value: all(map(fits, items(value)))


def _is_float(value: Any) -> bool:
    return isinstance(value, float)


_CHECKS: dict[type, list[tuple[str, Fits]]] = {}


def _record_fits(value: Any) -> bool:
    cls = type(value)
    if cls not in _CHECKS:
        _CHECKS[cls] = _field_checks(cls) if dataclasses.is_dataclass(cls) else []
    for name, fits in _CHECKS[cls]:                         # no generator: this is called for every part of every verdict
        if not fits(getattr(value, name)):
            return False
    return True
