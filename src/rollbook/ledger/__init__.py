"""What happened: the run folder with its event log, content-addressed store, tables, census and lineage. No torch."""

from rollbook.ledger.census import close_census, merge
from rollbook.ledger.chain import Event
from rollbook.ledger.kinds import RecordTable, Repair, Rollback, TraceTable
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.lineage import lineage
from rollbook.ledger.manifest import environment_manifest
from rollbook.ledger.verify import VerifyReport

__all__ = ["Event", "Ledger", "RecordTable", "Repair", "Rollback", "TraceTable", "VerifyReport", "close_census",
           "environment_manifest", "lineage", "merge"]
