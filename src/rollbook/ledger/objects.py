"""The content-addressed store: immutable blobs named by their SHA-256."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from rollbook.ledger.layout import object_path, refusing, sync_folder, write_durably
from rollbook.records import LedgerError, digest

HEX = re.compile(r"[0-9a-f]{64}")


def put_object(root: Path, data: bytes) -> str:
    """The hex SHA-256 under which the bytes are now durably stored; storing them again changes nothing."""
    name = digest(data)
    path = object_path(root, name)
    with refusing("the object could not be written"):
        if path.is_file() and file_digest(path) == name:
            return name
        if not path.parent.is_dir():
            with contextlib.suppress(FileExistsError):
                path.parent.mkdir()
            sync_folder(path.parent.parent)
        write_durably(path, data)
    return name


def get_object(root: Path, name: str) -> bytes:
    """The bytes with this hex SHA-256, verified."""
    if not HEX.fullmatch(name):
        raise LedgerError("an object is named by 64 hexadecimal digits", got=repr(name))
    try:
        data = object_path(root, name).read_bytes()
    except FileNotFoundError as error:
        raise missing_object(name) from error
    except OSError as error:
        raise LedgerError(f"{_position(name)} could not be read", got=error.strerror) from error
    if digest(data) != name:
        raise LedgerError(f"{_position(name)} is damaged", got=f"content with hash {digest(data)[:12]}",
                          why="an object's name is the hash of its content", fix="restore it from a copy of the run")
    return data


def missing_object(name: str) -> LedgerError:
    """The refusal for an object that is not there."""
    return LedgerError(f"{_position(name)} is missing", why="a record refers to it by this hash",
                       fix="restore it from a copy of the run")


def object_names(root: Path) -> Iterator[str]:
    """The names of all stored objects, in order."""
    for folder in sorted(path for path in (root / "objects").iterdir() if path.is_dir()):
        for path in sorted(folder.iterdir()):
            if HEX.fullmatch(folder.name + path.name):
                yield folder.name + path.name


def file_digest(path: Path) -> str:
    """Hex SHA-256 of a file, in bounded memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _position(name: str) -> str:
    return f"object objects/{name[:2]}/{name[2:]}"
