"""Which policy came from which."""

from __future__ import annotations

from rollbook.ledger.ledger import Ledger
from rollbook.records import LedgerError, PolicyVersion, content_id


def lineage(ledger: Ledger) -> list[tuple[str, str]]:
    """(parent, child) ids of the published policies in order of publication; LedgerError for a parent that is not in the run."""
    known: set[str] = set()
    edges = []
    for version in ledger.records(PolicyVersion):
        child = content_id(version)
        if version.parent is not None:
            if version.parent not in known:
                raise LedgerError(f"policy {child} has a parent that the run does not hold", got=version.parent,
                                  why="a policy comes from one that was published before it")
            edges.append((version.parent, child))
        known.add(child)
    return edges
