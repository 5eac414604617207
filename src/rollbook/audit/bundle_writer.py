"""Writing a bundle: every file under one index, the same bytes for the same content, whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import tarfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rollbook.ledger.bundle import FORMAT, INDEX
from rollbook.ledger.layout import refusing
from rollbook.ledger.objects import file_digest
from rollbook.records import LedgerError, canonical, encode
from rollbook.records.codec import OBSERVED

ARCHIVE = ".tar.gz"


class Writer:
    """Files of a bundle in the making. `observed` files hold times and hosts: they differ between equal runs and have no hash."""

    def __init__(self, root: Path):
        self.root = root
        self.files: dict[str, dict[str, Any]] = {}
        self.observed: list[str] = []

    def json(self, path: str, document: Any) -> None:
        """A JSON document, indented for people."""
        import json

        self._write(path, (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode())

    def lines(self, path: str, documents: Iterable[Any], *, observed: bool = False) -> int:
        """One JSON document a line; how many. No file is written for none."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        count = 0
        with target.open("wb") as file:
            for document in documents:
                file.write(canonical(document) + b"\n")
                count += 1
        if not count:
            target.unlink()
        elif observed:
            self.observed.append(path)
        else:
            self._index(path)
        return count

    def text(self, path: str, text: str) -> None:
        self._write(path, text.encode())

    def copy(self, path: str, source: Path) -> None:
        """A file as it is."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        self._index(path)

    def made(self, path: str) -> Path:
        """Where a file may be written by somebody else; `written` puts it under the index."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def written(self, path: str) -> None:
        self._index(path)

    def finish(self, head: Mapping[str, Any]) -> None:
        """The index over everything written."""
        files = {name: self.files[name] for name in sorted(self.files)}
        observed = sorted(self.observed)
        self.json(INDEX, {**head, "format": FORMAT, "files": files, "observed": observed})
        del self.files[INDEX]

    def _write(self, path: str, data: bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        self._index(path)

    def _index(self, path: str) -> None:
        target = self.root / path
        self.files[path] = {"sha256": file_digest(target), "bytes": target.stat().st_size}


@contextlib.contextmanager
def bundle_at(out: Path) -> Iterator[Writer]:
    """A writer whose files become the folder, or by its ending the archive, `out` when the block ends well."""
    if os.path.lexists(out):
        raise LedgerError("the bundle's place is taken", got=str(out), why="a bundle is never written over another",
                          fix="choose another name")
    with refusing(f"the bundle {out} could not be written"):
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        draft = out.absolute().parent / f".{out.name}.{uuid.uuid4().hex[:8]}"
        draft.mkdir()
        try:
            yield Writer(draft)
            if out.name.endswith(ARCHIVE):
                packed = draft.with_name(draft.name + ".part")
                try:
                    _pack(draft, packed)
                    os.rename(packed, out)
                finally:
                    packed.unlink(missing_ok=True)
            else:
                os.rename(draft, out)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _pack(root: Path, target: Path) -> None:
    """A .tar.gz without times, owners or the names of folders outside it, in name order."""
    with (target.open("wb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0, compresslevel=6) as packed,
          tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive):
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            about = tarfile.TarInfo(path.relative_to(root).as_posix())
            about.size, about.mode = path.stat().st_size, 0o644
            with path.open("rb") as file:
                archive.addfile(about, file)


def semantic(identity: str, record: Any) -> dict[str, Any]:
    """A record with its id and without what merely happened around it."""
    return {"id": identity, **{key: value for key, value in encode(record).items() if key != OBSERVED}}
