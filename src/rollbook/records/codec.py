"""One strict codec between frozen dataclasses and JSON documents, and the content id that is the hash of that document.

A record's id covers its semantic content: every field except one named ``observed`` (time, latency, host, repair).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, Union

from rollbook.records.errors import CodecError

T = TypeVar("T")
OBSERVED = "observed"
TAG = "kind"
SPARSE = {"sparse": True}       # metadata of a field that a document leaves out at its default: ids of older records stay


@functools.cache
def sparse_fields(cls: Any) -> tuple[tuple[str, Any], ...]:
    """Names and defaults of the fields that are left out of a document where they are at their default."""
    return tuple((field.name, field.default) for field in dataclasses.fields(cls) if field.metadata.get("sparse"))


def canonical(document: Any) -> bytes:
    """The one byte string of a JSON document: sorted keys, no spaces, UTF-8, finite numbers only."""
    try:
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise CodecError("a record holds a number that is not finite", got=str(error),
                         why="NaN and infinity have no JSON form and no defined hash",
                         fix="store the failure as a typed outcome") from error
    return text.encode("utf-8", "surrogatepass")


def digest(data: bytes) -> str:
    """Hex SHA-256."""
    return hashlib.sha256(data).hexdigest()


@dataclasses.dataclass(frozen=True, slots=True)
class _Shape:
    """How a class of records is taken apart: its fields, all their values at once, what is left out at its default.

    `keys` and `ordered` are keys and values in the order of the canonical document, `left_out` are places there.
    """

    kind: str
    names: tuple[str, ...]
    values: Callable[[Any], tuple[Any, ...]]
    sparse: tuple[tuple[str, Any], ...]
    keys: tuple[str, ...]
    ordered: Callable[[Any], tuple[Any, ...]]
    tag: str | None
    tag_place: int
    left_out: tuple[tuple[int, Any], ...]
    observed: str | None


_SHAPES: dict[type, _Shape] = {}


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """All values of these attributes at once."""
    getter = operator.attrgetter(*names) if names else lambda _: ()
    return getter if len(names) != 1 else lambda record: (getter(record),)


def _shape(cls: type) -> _Shape:
    if cls not in _SHAPES:
        names, sparse = tuple(field.name for field in dataclasses.fields(cls)), sparse_fields(cls)
        ordered = tuple(sorted(names))
        places = sorted((ordered.index(name) for name, _ in sparse), reverse=True)
        defaults = dict(sparse)
        _SHAPES[cls] = _Shape(
            cls.__name__, names, _getter(names), sparse, keys=tuple(f'"{name}":' for name in ordered), ordered=_getter(ordered),
            tag=None if TAG in names else f'"{TAG}":"{cls.__name__}"', tag_place=sum(name < TAG for name in names),
            left_out=tuple((place, defaults[ordered[place]]) for place in places),
            observed=f'"{OBSERVED}":' if OBSERVED in names else None)
    return _SHAPES[cls]


def field_names(cls: type) -> tuple[str, ...]:
    """The names of a record's fields, in their order."""
    return _shape(cls).names


def document_of(value: Any) -> Any:
    """The document of a record or plain container, one level deep: what stands in it is taken apart when it is written."""
    shape = _SHAPES.get(type(value))
    if shape is None and dataclasses.is_dataclass(value) and not isinstance(value, type):
        shape = _shape(type(value))
    if shape is not None:
        document = dict(zip(shape.names, shape.values(value), strict=True))
        document.setdefault(TAG, shape.kind)
        for name, default in shape.sparse:
            if document[name] == default:
                del document[name]
        return document
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset):
        return sorted(value)
    raise CodecError("a record holds a value with no JSON form", got=type(value).__name__,
                     fix="use records, tuples, mappings, strings, numbers, booleans or None")


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False,
                            default=document_of)
# JSONEncoder makes this anew for every document, which takes longer than to write a small one
_C_ENCODER: Any = getattr(json.encoder, "c_make_encoder", None)         # None where Python has no compiled one
_WRITE = _C_ENCODER and _C_ENCODER(
    None, document_of, json.encoder.encode_basestring, None, ":", ",", True, False, False)
_STRING: Callable[[str], str] = json.encoder.encode_basestring


def dump(value: Any) -> bytes:
    """Equal to `canonical(encode(value))`, several times faster; mappings must have string keys."""
    shape = _SHAPES.get(type(value))
    try:
        return _written(value).encode("utf-8", "surrogatepass") if shape is None else _joined(_entries(value, shape))
    except (ValueError, TypeError, RecursionError) as error:
        raise _formless(error) from error


def body_and_id(record: Any) -> tuple[bytes, str]:
    """The canonical document of a record and the record's id."""
    shape, entries = _apart(record)
    body = _joined(entries)
    return body, f"{shape.kind}:{digest(body if shape.observed is None else _semantic(shape, entries))}"


def content_id(record: Any) -> str:
    """`kind:hex`: the id of a record, equal for equal semantic content."""
    shape, entries = _apart(record)
    return f"{shape.kind}:{digest(_semantic(shape, entries))}"


def _apart(record: Any) -> tuple[_Shape, list[str]]:
    shape = _SHAPES.get(type(record))
    if shape is None:
        if not dataclasses.is_dataclass(record):
            raise CodecError("only records have ids", got=type(record).__name__)
        shape = _shape(type(record))
    try:
        return shape, _entries(record, shape)
    except (ValueError, TypeError, RecursionError) as error:
        raise _formless(error) from error


def _semantic(shape: _Shape, entries: list[str]) -> bytes:
    """The document without what was observed."""
    return _joined(entries if shape.observed is None else [one for one in entries if not one.startswith(shape.observed)])


def _entries(record: Any, shape: _Shape) -> list[str]:
    """Key and value of every field, in the order of the canonical document."""
    values = shape.ordered(record)
    entries = [key + (_STRING(value) if type(value) is str else _written(value))
               for key, value in zip(shape.keys, values, strict=True)]
    at = shape.tag_place
    for place, default in shape.left_out:           # from the last one on: the places before it stay
        if values[place] == default:
            del entries[place]
            at -= place < shape.tag_place
    if shape.tag is not None:
        entries.insert(at, shape.tag)
    return entries


def _joined(entries: list[str]) -> bytes:
    return f"{{{','.join(entries)}}}".encode("utf-8", "surrogatepass")


def _written(value: Any) -> str:
    return "".join(_WRITE(value, 0)) if _WRITE else _ENCODER.encode(value)


def _formless(error: Exception) -> CodecError:
    return CodecError("a record holds a number that is not finite or a key that is not a string", got=str(error),
                      why="it has no JSON form and no defined hash", fix="store the failure as a typed outcome")


def encode(value: Any) -> Any:
    """The JSON document of a record (tagged with its kind) or of a plain value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        left_out = {name for name, default in sparse_fields(type(value)) if getattr(value, name) == default}
        names = [field.name for field in dataclasses.fields(value) if field.name not in left_out]
        body = {name: encode(getattr(value, name)) for name in names}
        return {TAG: type(value).__name__, **body}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(encode(item) for item in value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise CodecError("a record holds a value with no JSON form", got=type(value).__name__,
                     fix="use records, tuples, mappings, strings, numbers, booleans or None")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def nearest(word: str, known: list[str]) -> str:
    """`did you mean` text with the three nearest names."""
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.0)
    return ", ".join(close) if close else "none"


def decode(kind: Any, document: Any, path: str = "") -> Any:
    """A value of type `kind` from its JSON document, refusing whatever does not fit, with the path of the misfit."""
    if kind is Any:
        return document
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, document, path)
    if origin is Literal:
        if document not in typing.get_args(kind) or (isinstance(document, bool) and True not in typing.get_args(kind)):
            allowed = ", ".join(map(repr, typing.get_args(kind)))
            raise CodecError(f"{path or 'value'} must be one of {allowed}", got=repr(document))
        return document
    if origin in (Union, types.UnionType):
        return _decode_union(typing.get_args(kind), document, path)
    if origin is tuple:
        return _decode_tuple(typing.get_args(kind), document, path)
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        _expect(isinstance(document, Mapping), path, "a mapping", document)
        key_type, item_type = typing.get_args(kind)
        return {decode(key_type, key, path): decode(item_type, item, _join(path, str(key))) for key, item in document.items()}
    if isinstance(kind, typing.NewType):
        return decode(kind.__supertype__, document, path)
    return _decode_scalar(kind, document, path)


def _decode_scalar(kind: Any, document: Any, path: str) -> Any:
    if kind is float:
        if isinstance(document, int) and not isinstance(document, bool):
            return float(document)
        _expect(isinstance(document, float), path, "a number", document)
        _expect(math.isfinite(document), path, "a finite number", document)
        return document
    if kind is int:
        _expect(isinstance(document, int) and not isinstance(document, bool), path, "an integer", document)
        return document
    if kind in (str, bool):
        _expect(isinstance(document, kind), path, {str: "a string", bool: "true or false"}[kind], document)
        return document
    if kind is type(None):
        _expect(document is None, path, "nothing", document)
        return None
    raise CodecError(f"{path or 'value'} has a declared type that the codec does not know", got=str(kind))


def _decode_tuple(arguments: tuple[Any, ...], document: Any, path: str) -> tuple[Any, ...]:
    _expect(isinstance(document, (list, tuple)), path, "a list", document)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(decode(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(document))
    _expect(len(document) == len(arguments), path, f"{len(arguments)} items", document)
    pairs = zip(arguments, document, strict=True)
    return tuple(decode(kind, item, f"{path}[{index}]") for index, (kind, item) in enumerate(pairs))


def _decode_union(options: tuple[Any, ...], document: Any, path: str) -> Any:
    if document is None and type(None) in options:
        return None
    classes = [option for option in options if isinstance(option, type) and dataclasses.is_dataclass(option)]
    records = {option.__name__: option for option in classes}
    plain = [option for option in options if option is not type(None) and option not in classes]
    if isinstance(document, Mapping) and records and not any(typing.get_origin(o) in (dict, Mapping) for o in plain):
        if TAG not in document and len(records) == 1:
            return decode(next(iter(records.values())), document, path)
        tag = document.get(TAG)
        if tag not in records:
            raise CodecError(f"{_join(path, TAG)} must name one of {', '.join(sorted(records))}", got=repr(tag))
        return decode(records[tag], document, path)
    if type(document) in plain:                          # 1 stays an integer where both integers and numbers are allowed
        return decode(type(document), document, path)
    failures = []
    for option in plain:
        try:
            return decode(option, document, path)
        except CodecError as error:
            failures.append(error)
    if len(failures) == 1 and not records:
        raise failures[0]
    names = [getattr(option, "__name__", str(option)) for option in options]
    raise CodecError(f"{path or 'value'} must be one of: {', '.join(names)}", got=repr(document)[:120])


def _decode_record(kind: Any, document: Any, path: str) -> Any:
    _expect(isinstance(document, Mapping), path, f"a mapping ({kind.__name__})", document)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    tag = document.get(TAG, kind.__name__)
    if TAG not in fields and tag != kind.__name__:
        raise CodecError(f"{_join(path, TAG)} must be {kind.__name__}", got=repr(tag))
    for key in document:
        if key not in fields and key != TAG:
            raise CodecError(f"unknown key {_join(path, str(key))}", got=repr(key),
                             why=f"{kind.__name__} has no such field", fix=f"nearest names: {nearest(str(key), list(fields))}")
    hints = _hints(kind)
    values = {}
    for name, field in fields.items():
        if name in document:
            values[name] = decode(hints[name], document[name], _join(path, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise CodecError(f"missing key {_join(path, name)}", why=f"{kind.__name__} needs it",
                             fix=f"write {_join(path, name)}")
    return kind(**values)


def _expect(condition: bool, path: str, wanted: str, document: Any) -> None:
    if not condition:
        raise CodecError(f"{path or 'document'} must be {wanted}", got=f"{type(document).__name__} {document!r}"[:120])


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
