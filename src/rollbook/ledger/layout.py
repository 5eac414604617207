"""Where a run keeps what: file names of a run folder, durable writes, and file-system errors that teach."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

from rollbook.records import LedgerError

MANIFEST = "manifest.json"
LOCK = ".lock"
FOLDERS = ("events", "objects", "traces", "tables", "checkpoints")
UNFINISHED = ".unfinished-"
SEGMENT = re.compile(r"(\d{6})\.jsonl")
STORED_TABLE = re.compile(r"(traces|tables)/[A-Za-z0-9][A-Za-z0-9_.=-]*\.parquet")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=-]*(/[A-Za-z0-9][A-Za-z0-9_.=-]*)*")


def segment_path(root: Path, number: int) -> Path:
    """Path of the event segment `number`, counted from 1."""
    return root / "events" / f"{number:06d}.jsonl"


def segments(root: Path) -> list[Path]:
    """The event segments in order."""
    with refusing("the event log could not be read"):
        return sorted(path for path in (root / "events").iterdir() if SEGMENT.fullmatch(path.name))


def object_path(root: Path, name: str) -> Path:
    """Path of the object with this hex SHA-256."""
    return root / "objects" / name[:2] / name[2:]


def table_path(folder: str, name: str) -> str:
    """Path of a Parquet table relative to the run: one flat folder, `/` in the name becomes `-`."""
    if not NAME.fullmatch(name):
        raise LedgerError("a table name must be letters, digits, _ . = - and single slashes", got=repr(name),
                          why="it becomes a file name inside the run folder")
    return f"{folder}/{name.replace('/', '-')}.parquet"


def table_file(root: Path, path: object, position: str) -> Path:
    """The file that a logged table names; refuses a path outside the two table folders."""
    if not isinstance(path, str) or not STORED_TABLE.fullmatch(path):
        raise LedgerError(f"{position} names no table of a run", got=repr(path), why="tables stand in traces/ and tables/")
    return root / path


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turns any file-system failure inside the block into one LedgerError."""
    try:
        yield
    except OSError as error:
        raise LedgerError(what, got=error.strerror or type(error).__name__, why=_why(error), fix=_fix(error)) from error


def _why(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "there is no space left for the run; everything acknowledged before is kept"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "this process may not write there"
    return f"the file system refused ({errno.errorcode.get(error.errno or 0, 'unknown error')})"


def _fix(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free space, then resume the run"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "choose a writable folder"
    if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
        return "choose a new folder inside it"
    return "check the disk, then resume the run"


def sync_folder(path: Path) -> None:
    """Makes renames and new names inside the folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Makes the content of a file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def finished(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; when the block ends well it is made durable and renamed to `path`, else removed."""
    temporary = path.with_name(f"{UNFINISHED}{uuid.uuid4().hex}")
    try:
        yield temporary
        sync_file(temporary)
        os.rename(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_durably(path: Path, data: bytes) -> None:
    """Replaces `path` by `data`, whole or not at all."""
    with finished(path) as temporary:
        temporary.write_bytes(data)


def unfinished(root: Path) -> list[Path]:
    """Temporary files that a killed process left behind."""
    return sorted(path for folder in FOLDERS if (root / folder).is_dir() and folder != "checkpoints"
                  for path in (root / folder).rglob(f"{UNFINISHED}*"))
