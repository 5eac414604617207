"""The census of a whole run, made again from its dispatches and trajectories, in bounded memory.

`issued` is what the `Dispatch` records say, `ended` what the rows of the trace tables and lone `Outcome` records say. Per
trajectory 20 bytes are kept (for the distributions); the names of attempts only while their dispatch is open.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollbook.ledger.attempts import OpenDispatches
from rollbook.ledger.chain import Event
from rollbook.ledger.distribution import Shift, Slice, Trajectories
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.scopes import stage_of
from rollbook.ledger.tables import read_bodies
from rollbook.ledger.traces import read_batches
from rollbook.records import Census, LedgerError

COLUMNS = ("id", "attempt", "family", "outcome", "spans", "observed")
QUIET = frozenset({"Outcome", "Dispatch", "Batch", "HostUpdate", "Task", "HostTask"})      # may stand among lone outcomes
KINDS = QUIET | {"RecordTable", "TraceTable", "Census", "RunEnd"}
NAMED = 20          # problems told one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRow:
    """One stage and task family: attempts issued, ended by outcome code, in flight.

    Example: FamilyRow(stage="rl", family="chain_sum", issued=64, outcomes={"accepted": 40, "uniform": 24}, in_flight=0)
    """

    stage: str
    family: str
    issued: int
    outcomes: Mapping[str, int]
    in_flight: int

    @property
    def ended(self) -> int:
        return sum(self.outcomes.values())

    @property
    def closes(self) -> bool:
        return self.issued == self.ended + self.in_flight


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCensus:
    """Every attempt of a run. `problems` says in words what does not add up; `shifts` compares what was trained with what was
    issued, per stage that trained on its attempts. `complete` is true when the run had ended."""

    run: str
    rows: tuple[FamilyRow, ...]
    shifts: tuple[Shift, ...]
    problems: tuple[str, ...]
    complete: bool

    @property
    def closes(self) -> bool:
        return not self.problems and all(row.closes for row in self.rows)


def run_census(path: str | Path) -> RunCensus:
    """The census of the run in this folder. LedgerError where the log or a table is broken."""
    ledger = Ledger.open(path, write=False)
    count = _Count(ledger)
    for event in ledger.events():
        if event.kind in KINDS:
            count.take(event)
    return count.result(ledger.root.name)


class _Count:
    """The running counts of one reading of the log."""

    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        self.open = OpenDispatches()
        self.trajectories = Trajectories()
        self.issued: Counter[tuple[str, str]] = Counter()
        self.flying: Counter[tuple[str, str]] = Counter()
        self.ended: dict[tuple[str, str], Counter[str]] = {}
        self.by_scope: dict[str, dict[str, Counter[str]]] = {}
        self.lone: list[tuple[str, str, str]] = []
        self.closed: set[str] = set()
        self.problems: list[str] = []
        self.found = 0
        self.complete = False

    def take(self, event: Event) -> None:
        if event.kind not in QUIET:
            self._lone_outcomes()
        match event.kind:
            case "Task" | "HostTask":
                self.open.families[event.id] = event.record().family
            case "RecordTable":
                self._record_table(event)
            case "Dispatch":
                self._told(self.open.add(event.record()))
            case "TraceTable":
                self._trace_table(event)
            case "Outcome":
                outcome = event.record()
                self.lone.append((outcome.attempt, outcome.family, outcome.code))
            case "Census":
                self._census(event.record())
            case "Batch" | "HostUpdate":
                self.trajectories.train(event.record().traces, event.position)
            case "RunEnd":
                self.complete = event.record().status == "completed"

    def _record_table(self, event: Event) -> None:
        table = event.record()
        if table.of not in ("Task", "HostTask", "Outcome"):
            return
        for identity, body in read_bodies(self.ledger.table_path(event), event.position):
            try:
                if table.of != "Outcome":
                    self.open.families[identity] = body["family"]
                else:
                    self.lone.append((body["attempt"], body["family"], body["code"]))
            except (KeyError, TypeError) as error:
                raise LedgerError(f"{event.position}, table {table.name}, holds a {table.of} without its fields",
                                  got=str(error)) from error

    def _trace_table(self, event: Event) -> None:
        name = str(event.body["name"])
        file = self.ledger.table_path(event)
        parts = list(read_batches(file, f"{event.position}, table {file.name}", COLUMNS))
        rows = pa.Table.from_batches(parts).combine_chunks() if parts else None
        if rows is None or not rows.num_rows:
            return
        self._match(name, *(_plain(rows.column(column)) for column in ("attempt", "family", "outcome")))
        self.trajectories.add(stage_of(name), rows, event.position)

    def _lone_outcomes(self) -> None:
        """Outcomes logged without a trajectory, matched together."""
        if self.lone:
            held, self.lone = self.lone, []
            self._match(None, *(pa.array(column, pa.string()) for column in zip(*held, strict=True)))

    def _match(self, scope: str | None, attempts: pa.Array, families: pa.Array, codes: pa.Array) -> None:
        """Counts the ends of attempts: rows of the table `scope`, or lone outcomes (None), each in its dispatch's own scope."""
        matched = self.open.match(scope, attempts, families)
        self._told(matched.problems)
        keys = np.unique(matched.where) if scope is None else np.array([0])
        for key in keys:
            mine = slice(None) if scope is not None else np.flatnonzero(matched.where == key)
            if scope is not None:
                name, stage = scope, stage_of(scope)
            elif key >= 0:
                name, stage = matched.dispatches[key].scope, matched.dispatches[key].stage()
            else:
                name = stage = "(not issued)"
            rows = pa.table({"family": families, "code": codes})
            part = rows if scope is not None else rows.take(pa.array(mine))
            for row in part.group_by(["family", "code"]).aggregate([([], "count_all")]).to_pylist():
                self.ended.setdefault((stage, row["family"]), Counter())[row["code"]] += row["count_all"]
                self.by_scope.setdefault(name, {}).setdefault(row["family"], Counter())[row["code"]] += row["count_all"]

    def _census(self, census: Census) -> None:
        """Settles the dispatches of a scope and compares the recorded census with what was counted."""
        if census.scope in self.closed:
            self._told([f"the census of {census.scope} is recorded twice: its attempts would be counted twice"])
        self.closed.add(census.scope)
        still = sum(census.in_flight.values())
        issued: Counter[str] = Counter()
        for dispatch in self.open.of(census.scope):
            issued += dispatch.issued()
            if not still:
                self._told(dispatch.lost())
                self._settle(dispatch.stage(), dispatch.issued())
                self.open.remove(dispatch)
        counted = self._ended_in(census.scope)
        stated = {family: dict(sorted(codes.items())) for family, codes in sorted(census.outcomes.items()) if codes}
        if {k: v for k, v in census.issued.items() if v} != dict(issued):
            self._told([f"the census of {census.scope} states issued {_words(census.issued)}; "
                        f"the dispatches say {_words(issued)}"])
        if stated != counted:
            self._told([f"the census of {census.scope} states {_outcome_words(stated)}; "
                        f"the trajectories say {_outcome_words(counted)}"])

    def _ended_in(self, scope: str) -> dict[str, dict[str, int]]:
        """The ends counted in a scope and below it, family -> code -> count; they are given out once."""
        found: dict[str, Counter[str]] = {}
        for name in [name for name in self.by_scope if name == scope or name.startswith(f"{scope}/")]:
            for family, codes in self.by_scope.pop(name).items():
                found.setdefault(family, Counter()).update(codes)
        return {family: dict(sorted(found[family].items())) for family in sorted(found)}

    def _by_attempts(self, shift: Shift) -> Shift:
        """The same with the attempts that were issued per family, those without a trajectory too."""
        trained = {one.name: one.trained for one in shift.families}
        issued = {family: count for (stage, family), count in sorted(self.issued.items()) if stage == shift.stage}
        families = tuple(Slice(name=name, low=None, high=None, issued=issued.get(name, 0), trained=trained.get(name, 0))
                         for name in sorted({*issued, *trained}))
        return dataclasses.replace(shift, issued=sum(issued.values()), families=families)

    def _settle(self, stage: str, issued: Mapping[str, int]) -> None:
        for family, count in issued.items():
            self.issued[stage, family] += count

    def _told(self, problems: Sequence[str]) -> None:
        self.found += len(problems)
        self.problems += problems[:max(0, NAMED - len(self.problems))]

    def result(self, run: str) -> RunCensus:
        self._lone_outcomes()
        for dispatch in self.open:
            self._settle(dispatch.stage(), dispatch.issued())
            if self.complete:
                self._told(dispatch.lost())
            else:
                for family, count in dispatch.missing().items():
                    self.flying[dispatch.stage(), family] += count
        strangers = self.trajectories.strangers()
        if strangers:
            self._told([f"{strangers} trajectories were trained on that stand in no trace table"])
        keys = list(dict.fromkeys([*self.issued, *self.ended]))
        rows = tuple(FamilyRow(stage=stage, family=family, issued=self.issued[stage, family],
                               outcomes=dict(sorted(self.ended.get((stage, family), Counter()).items())),
                               in_flight=self.flying[stage, family]) for stage, family in keys)
        more = [f"and {self.found - NAMED} more"] if self.found > NAMED else []
        shifts = tuple(map(self._by_attempts, self.trajectories.shifts()))
        return RunCensus(run=run, rows=rows, shifts=shifts, problems=(*self.problems, *more), complete=self.complete)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    return pc.cast(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column, pa.string())


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{family} {count}" for family, count in sorted(counts.items())) or "none"


def _outcome_words(outcomes: Mapping[str, Mapping[str, int]]) -> str:
    return "; ".join(f"{family}: {_words(codes)}" for family, codes in outcomes.items()) or "no outcomes"
