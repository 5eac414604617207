"""Events of one run appended to another: the same records with the same ids, their tables, objects and checkpoints with them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from rollbook.ledger.chain import Event
from rollbook.ledger.kinds import HOUSEKEEPING, TABLES
from rollbook.ledger.layout import object_path, refusing, sync_folder, table_file
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.objects import get_object, put_object
from rollbook.records import LedgerError

NAMED = re.compile(r"[0-9a-f]{64}")
CHECKPOINT = re.compile(r"checkpoints/[A-Za-z0-9][A-Za-z0-9_.-]*")


def adopt(target: Ledger, source: Ledger, *, after: int, last: int) -> int:
    """Appends the standing events of `source` numbered above `after` up to `last`; how many there were.

    What an event names is copied, its hash compared, before the event is appended: a kill leaves a prefix that stands. Refuses
    a source whose files are not what its log says.
    """
    count = 0
    for event in source.events():
        if after < event.seq <= last and event.kind not in HOUSEKEEPING:
            for name in _objects(source.root, event):
                put_object(target.root, get_object(source.root, name))
            if event.body.get("checkpoint"):
                _checkpoint(source.root, target.root, event)
            if event.kind in TABLES:
                _table(target, source, event)
            target.append(event.record(), observed=event.observed)
            if event.kind in TABLES:
                target.holds(event.record())
            count += 1
    return count


def _objects(root: Path, event: Event) -> Iterator[str]:
    """The stored objects whose hashes an event's body holds."""
    for name in sorted(set(NAMED.findall(json.dumps(event.body)))):
        if object_path(root, name).is_file():
            yield name


def _table(target: Ledger, source: Ledger, event: Event) -> None:
    file = source.table_path(event)
    place = table_file(target.root, str(file.relative_to(source.root)), event.position)
    with refusing(f"the table {place.name} could not be copied"):
        shutil.copyfile(file, place)
        _sync(place)


def _checkpoint(source: Path, target: Path, event: Event) -> None:
    name = str(event.body["checkpoint"])
    if not CHECKPOINT.fullmatch(name):
        raise LedgerError(f"{event.position} names no checkpoint of a run", got=repr(name), why="they stand in checkpoints/")
    if not (source / name).is_dir():
        raise LedgerError(f"{name} is missing", why=f"{event.position} refers to it", fix="restore it, or make the stage again")
    with refusing(f"{name} could not be copied"):
        shutil.rmtree(target / name, ignore_errors=True)
        shutil.copytree(source / name, target / name)
        for path in (target / name).rglob("*"):
            if path.is_file():
                _sync(path)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    sync_folder(path.parent)
