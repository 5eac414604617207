"""What a run kept of abilities that it did not train, as `rollbook abilities` left it."""

from __future__ import annotations

import json
from pathlib import Path

from rollbook.records import Abilities, LedgerError, RollbookError, decode

FILE = Path("abilities") / "changes.json"


def kept(root: Path, genesis: str) -> Abilities | None:
    """The measured changes; None where nothing was measured. LedgerError for a file of another run, or one that is damaged."""
    path = root / FILE
    if not path.is_file():
        return None
    try:
        found: Abilities = decode(Abilities, json.loads(path.read_bytes()), FILE.as_posix())
    except (RollbookError, ValueError, OSError) as error:
        raise LedgerError(f"{FILE} cannot be read", got=str(error)[:120], why="it is written by `rollbook abilities`",
                          fix="run `rollbook abilities RUN` again") from error
    if found.run != genesis:
        raise LedgerError(f"{FILE} is of another run", got=f"{found.run[:12]} for {genesis[:12]}",
                          why="its changes are not this run's", fix="remove the folder, or run `rollbook abilities RUN` again")
    return found
