"""The ten parts of a complete release for a run as it lies: what `rollbook export` would hold, with no bundle written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.audit.bundle_writer import Writer
from rollbook.audit.export import Part, Source, program
from rollbook.audit.export_parts import ten_parts
from rollbook.ledger import Ledger
from rollbook.records import LedgerError, ResolvedRecipe


class _Unwritten(Writer):
    """A writer that counts and keeps nothing."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull))

    def json(self, path: str, document: Any) -> None: ...

    def lines(self, path: str, documents: Iterable[Any], *, observed: bool = False) -> int:
        return sum(1 for _ in documents)

    def text(self, path: str, text: str) -> None: ...

    def copy(self, path: str, source: Path) -> None: ...

    def made(self, path: str) -> Path:
        return self.root

    def written(self, path: str) -> None: ...


@dataclass(slots=True, kw_only=True)
class _Read(Source):
    """A run whose tensor blobs stay where they are."""

    def objects(self, names: list[str]) -> None: ...


def release_parts(run: str | os.PathLike[str]) -> list[Part]:
    """What is there and what is missing of each part; LedgerError where the run has no recipe or is damaged."""
    ledger = Ledger.open(Path(run), write=False)
    recipe = next(iter(ledger.records(ResolvedRecipe)), None)
    if recipe is None:
        raise LedgerError("the parts of this run's release cannot be told", got="no recipe on record",
                          why="a release is there to be run again", fix="give a run that `rollbook run` made")
    writer = _Unwritten()
    return ten_parts(_Read(ledger=ledger, recipe=recipe, writer=writer, program=program(ledger, writer, lambda _: None)))
