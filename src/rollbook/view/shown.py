"""Everything that a viewer shows, each under the name that its addresses have."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from rollbook.records import LedgerError
from rollbook.view.grids import FILE, HeldGrid
from rollbook.view.held import HeldRun


class Shown(dict[str, HeldRun]):
    """The runs by name; `grids` likewise. The cells of a grid are runs, and come in as they are begun."""

    def __init__(self) -> None:
        super().__init__()
        self._mutex = threading.Lock()
        self.grids: dict[str, HeldGrid] = {}

    def free(self, wanted: str) -> str:
        """A name like this that no run and no grid has, and that an address can hold."""
        plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in wanted)
        key, number = plain.strip(".-") or "run", 1
        while key in self or key in self.grids:
            number += 1
            key = f"{plain}-{number}"
        return key

    def refresh(self, key: str) -> HeldGrid | None:
        """The grid of this name with the cells that were begun until now; None where there is none."""
        grid = self.grids.get(key)
        if grid is None:
            return None
        with self._mutex:
            return grid.refresh(self, self.free)


def held_runs(folders: Sequence[Path]) -> Shown:
    """The runs, evaluations and grids of these folders; refuses a folder that is none."""
    found = Shown()
    for folder in folders:
        root = folder.absolute()
        if (root / FILE).is_file():
            key = found.free(root.name)
            found.grids[key] = HeldGrid(key, root)
            found.refresh(key)
        elif (root / "manifest.json").is_file():
            key = found.free(root.name)
            found[key] = HeldRun(key, root)
        else:
            raise LedgerError("not a run folder", got=str(folder), why="it has no manifest.json",
                              fix="give the folder that `rollbook run`, `rollbook eval` or `rollbook grid` printed")
    return found

