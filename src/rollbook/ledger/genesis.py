"""manifest.json: the identity of a run and the hash that the chain of events starts from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbook.ledger.layout import MANIFEST, write_durably
from rollbook.records import LedgerError, canonical, digest, encode

FORMAT = 1
KEYS = {"format", "hash", "run"}


def _file(run: Mapping[str, Any]) -> tuple[bytes, str]:
    document = {"format": FORMAT, "run": encode(run)}
    genesis = digest(canonical(document))
    text = json.dumps({**document, "hash": genesis}, indent=2, sort_keys=True, allow_nan=False)
    return text.encode() + b"\n", genesis


def write_manifest(root: Path, run: Mapping[str, Any]) -> str:
    """Writes the manifest; the genesis hash: SHA-256 of its canonical document without `hash`."""
    data, genesis = _file(run)
    write_durably(root / MANIFEST, data)
    return genesis


def read_manifest(root: Path) -> tuple[Mapping[str, Any], str]:
    """What the run's creator wrote, and the genesis hash; refuses a file that is not byte for byte what was written."""
    try:
        data = (root / MANIFEST).read_bytes()
    except OSError as error:
        raise LedgerError(f"{root} is not a run folder", got=error.strerror, why=f"it has no readable {MANIFEST}",
                          fix="give the folder of a run") from error
    try:
        document = json.loads(data)
    except ValueError as error:
        raise LedgerError(f"{MANIFEST} is damaged", got=str(error), fix="restore it from a copy of the run") from error
    stated = document.get("format") if isinstance(document, dict) else None
    if isinstance(stated, int) and stated > FORMAT:
        raise LedgerError(f"{MANIFEST} is of a newer format", got=str(stated), why=f"this code reads format {FORMAT}",
                          fix="read it with the rollbook version that wrote it")
    if stated != FORMAT or set(document) != KEYS or not isinstance(document["run"], dict):
        raise LedgerError(f"{MANIFEST} is damaged", got="other keys than format, hash, run",
                          fix="restore it from a copy of the run")
    written, genesis = _file(document["run"])
    if written != data:
        raise LedgerError(f"{MANIFEST} is damaged", got="content that does not fit its hash",
                          why="it is the first link of the chain", fix="restore it from a copy of the run")
    return document["run"], genesis
