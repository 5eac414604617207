"""A release of a run as a folder or an archive: its file names, its index, and reading one with every hash checked."""

from __future__ import annotations

import contextlib
import json
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.ledger.chain import Event
from rollbook.ledger.kinds import HOUSEKEEPING
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.objects import file_digest
from rollbook.records import CodecError, LedgerError, ResolvedRecipe, decode

FORMAT = "rollbook.bundle/1"
INDEX, RECIPE, EXPECTED, LOG = "index.json", "recipe.json", "expected.json", "log.jsonl"
AFTERWARDS = frozenset({"AuditReport", "GateDecision"})     # what people add to a run that is over


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """An opened bundle. `expected` holds the hashes a reproduction must end with, and the manifest of the run."""

    root: Path
    index: Mapping[str, Any]
    recipe: ResolvedRecipe
    expected: Mapping[str, Any]

    def log(self) -> Iterator[Mapping[str, str]]:
        """Kind, id and label of every standing record of the run, in order."""
        with (self.root / LOG).open() as file:
            yield from map(json.loads, file)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Bundle]:
    """The bundle in a folder or a .tar.gz; refuses one with a file missing, added or changed."""
    with contextlib.ExitStack() as stack:
        root = path
        if path.is_file():
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollbook-bundle-")))
            _unpack(path, root)
        index = _document(root, INDEX)
        if index.get("format") != FORMAT:
            raise LedgerError("this bundle is of another format", got=repr(index.get("format")), why=f"this code reads {FORMAT}")
        _check(root, index)
        try:
            recipe = decode(ResolvedRecipe, _document(root, RECIPE))
        except CodecError as error:
            raise LedgerError(f"{RECIPE} of the bundle does not decode: {error.what}", got=error.got,
                              fix="reproduce it with the rollbook version that exported it") from error
        yield Bundle(root=root, index=index, recipe=recipe, expected=_document(root, EXPECTED))


def _unpack(path: Path, root: Path) -> None:
    try:
        with tarfile.open(path, "r:gz") as archive:
            archive.extractall(root, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise LedgerError("the bundle could not be unpacked", got=f"{path.name}: {error}", fix="copy it again") from error


def _document(root: Path, name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((root / name).read_text())
    except (OSError, ValueError) as error:
        raise LedgerError("this is not a bundle", got=f"no readable {name}", why="`rollbook export` writes one",
                          fix="give the folder or .tar.gz that `rollbook export` wrote") from error
    return found


def _check(root: Path, index: Mapping[str, Any]) -> None:
    stated: Mapping[str, Mapping[str, Any]] = index["files"]
    there = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()} - {INDEX}
    observed = set(index["observed"])
    if wrong := sorted((there ^ (stated.keys() | observed)) - observed):
        raise LedgerError("the bundle does not hold the files of its index", got=", ".join(wrong[:3]), fix="export it again")
    for name, about in stated.items():
        if file_digest(root / name) != about["sha256"]:
            raise LedgerError(f"{name} of the bundle was changed", got="content with another hash than its index states",
                              fix="export it again")


def story(ledger: Ledger) -> Iterator[Event]:
    """The standing events that the run itself made: housekeeping, and what people add after its end, are left out."""
    over = False
    for event in ledger.events():
        if event.kind not in HOUSEKEEPING and not (over and event.kind in AFTERWARDS):
            yield event
        over |= event.kind == "RunEnd" and event.body.get("status") == "completed"


def label(event: Event) -> str:
    """What a record is about, in a word or two: its scope, stage, name or number."""
    body = event.body
    first = next((str(body[key]) for key in ("scope", "name", "stage", "batch") if isinstance(body.get(key), str)), "")
    number = next((f" {body[key]}" for key in ("step", "index") if isinstance(body.get(key), int)), "")
    return f"{first}{number}".strip()


__all__ = ["EXPECTED", "FORMAT", "INDEX", "LOG", "RECIPE", "Bundle", "label", "opened", "story"]
