"""Does the run hold together? The chain, the hashes of tables and objects, the objects that records refer to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollbook.ledger.chain import Event, is_void, read_event, scan, void_ranges
from rollbook.ledger.genesis import read_manifest
from rollbook.ledger.kinds import TABLES
from rollbook.ledger.layout import object_path, segments, table_file
from rollbook.ledger.objects import HEX, file_digest, object_names
from rollbook.records import LedgerError

REFERENCES = {"Batch": ("tensors",), "Update": ("tensors",), "SftReport": ("tensors",), "ModuleUpdate": ("tensors",),
              "TokenizerFile": ("blob",), "Collected": ("sha256",), "HostUpdate": ("tensors",)}
OPTIONAL = {"HostUpdate"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What was verified up to the first fault. `fault` names its position; None means that everything holds.

    `unfinished_bytes` stand after the last event: being written now, or left by a kill until the run is opened for writing.
    `clock_steps_back` counts events whose wall clock is before that of the event before them; the order is `seq`, not time.
    Limit: a log whose last events were cut off at a line end cannot be told from a shorter run without an outside witness.

    Example: VerifyReport(events=41, tables=3, objects=8, head="5f..", unfinished_bytes=0, clock_steps_back=0, fault=None)
    """

    events: int
    tables: int
    objects: int
    head: str
    unfinished_bytes: int
    clock_steps_back: int
    fault: str | None

    @property
    def holds(self) -> bool:
        return self.fault is None

    def require(self, what: str) -> None:
        """Refuses a run that does not hold together, since `what`, an audit for one, would be of something else."""
        if self.fault is not None:
            raise LedgerError("this run is damaged", got=self.fault.removesuffix("."), why="its content is not what was written",
                              fix=f"restore it from a copy; {what} of the rest would prove nothing")


class _Count:
    """The running totals of one verification."""

    def __init__(self) -> None:
        self.events = self.tables = self.objects = self.unfinished = self.backward = 0
        self.head = ""

    def report(self, fault: str | None) -> VerifyReport:
        return VerifyReport(events=self.events, tables=self.tables, objects=self.objects, head=self.head,
                            unfinished_bytes=self.unfinished, clock_steps_back=self.backward, fault=fault)


def verify_run(root: Path) -> VerifyReport:
    """Verifies everything under the run's hashes, in bounded memory."""
    count = _Count()
    try:
        _, count.head = read_manifest(root)
        _verify_log(root, count)
        for name in object_names(root):
            if file_digest(object_path(root, name)) != name:
                raise LedgerError(f"object objects/{name[:2]}/{name[2:]} is damaged", got="content with another hash")
            count.objects += 1
    except (LedgerError, OSError) as error:
        return count.report(str(error))
    return count.report(None)


def _verify_log(root: Path, count: _Count) -> None:
    ranges, time, last = void_ranges(root, count.head), float("-inf"), None
    for last in scan(root, count.head):
        event = read_event(last)
        if not is_void(event, ranges):
            _verify_references(root, event, count)
        count.events, count.head = event.seq, event.hash
        count.backward += event.time < time
        time = event.time
    paths = segments(root)
    if paths:
        count.unfinished = paths[-1].stat().st_size - (last.end if last is not None and last.segment == paths[-1] else 0)


def _verify_references(root: Path, event: Event, count: _Count) -> None:
    if event.kind in TABLES:
        notes = event.record().observed
        path = table_file(root, notes.get("path"), event.position)
        if not path.is_file():
            raise LedgerError(f"{event.position} refers to table {notes['path']}, which is missing")
        if file_digest(path) != notes.get("sha256"):
            raise LedgerError(f"{event.position} refers to table {notes['path']}, which is damaged",
                              got="content with another hash")
        count.tables += 1
    for field in REFERENCES.get(event.kind, ()):
        if event.kind in OPTIONAL and event.body.get(field) is None:
            continue
        name = str(event.body.get(field))
        if not HEX.fullmatch(name) or not object_path(root, name).is_file():
            raise LedgerError(f"{event.position} refers by `{field}` to object objects/{name[:2]}/{name[2:]}, which is missing",
                              fix="restore it from a copy of the run")
