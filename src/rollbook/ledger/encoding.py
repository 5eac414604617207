"""The canonical bytes of a record for the log: the codec's document, written by the C encoder in one pass."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from rollbook.records import CodecError, RecordError, digest
from rollbook.records.codec import OBSERVED, TAG, sparse_fields

_NAMES: dict[type, tuple[str, ...]] = {}


def _field_names(cls: type) -> tuple[str, ...]:
    if cls not in _NAMES:
        _NAMES[cls] = tuple(field.name for field in dataclasses.fields(cls))
    return _NAMES[cls]


def _document(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        document = {TAG: type(value).__name__, **{name: getattr(value, name) for name in _field_names(type(value))}}
        for name, default in sparse_fields(type(value)):
            if document[name] == default:
                del document[name]
        return document
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset):
        return sorted(value)
    raise CodecError("a record holds a value with no JSON form", got=type(value).__name__,
                     fix="use records, tuples, mappings, strings, numbers, booleans or None")


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_document)


def dump(value: Any) -> bytes:
    """Equal to `canonical(encode(value))` of the codec, several times faster; mappings must have string keys."""
    try:
        return _ENCODER.encode(value).encode("utf-8", "surrogatepass")
    except (ValueError, TypeError) as error:
        raise CodecError("a record holds a number that is not finite or a key that is not a string", got=str(error),
                         why="it has no JSON form and no defined hash", fix="store the failure as a typed outcome") from error


def body_and_id(record: Any) -> tuple[bytes, str]:
    """The canonical body (with the record's own `observed`) and the content id (without it)."""
    refuse_whole_floats(record)
    body = dump(record)
    semantic = body
    if OBSERVED in _field_names(type(record)):
        document = _document(record)
        del document[OBSERVED]
        semantic = dump(document)
    return body, f"{type(record).__name__}:{digest(semantic)}"


def record_id(record: Any) -> str:
    """Equal to the codec's `content_id`, several times faster."""
    if OBSERVED not in _field_names(type(record)):
        return body_and_id(record)[1]
    document = _document(record)
    del document[OBSERVED]
    return f"{type(record).__name__}:{digest(dump(document))}"


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
    checks = [(name, _check(hints[name])) for name in _field_names(cls) if name != OBSERVED]
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
    return None if fits is None else lambda value: all(map(fits, items(value)))


def _is_float(value: Any) -> bool:
    return isinstance(value, float)


def _record_fits(value: Any) -> bool:
    cls: Any = type(value)
    return not dataclasses.is_dataclass(value) or all(fits(getattr(value, name)) for name, fits in _field_checks(cls))
