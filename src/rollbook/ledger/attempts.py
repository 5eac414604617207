"""Attempts as they were issued, matched by name with what became of them; names are kept while a dispatch is open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollbook.ledger.scopes import stage_of
from rollbook.records import Dispatch, group_name

UNKNOWN = "(unknown task)"
NAMED = 3           # attempts named in one problem


@dataclass(slots=True, eq=False)
class OpenDispatch:
    """Attempts of one dispatch: names and family numbers in order, how often each has ended, and the tables they ended in."""

    scope: str
    names: pa.Array
    family: np.ndarray
    families: list[str]
    ended: np.ndarray
    tables: set[str] = field(default_factory=set)

    def stage(self) -> str:
        """The stage by the table its attempts ended in; before that the beginning of the dispatch's own name."""
        if self.tables:
            return stage_of(min(self.tables))
        parts = self.scope.split("/")
        return "/".join(parts[:2]) if parts[0] == "eval" else parts[0]

    def issued(self) -> Counter[str]:
        return self._by_family(np.ones(len(self.family), bool))

    def missing(self) -> Counter[str]:
        """Attempts without an outcome, by family."""
        return self._by_family(self.ended == 0)

    def lost(self) -> list[str]:
        """What to say of attempts that can no longer end."""
        gone = np.flatnonzero(self.ended == 0)
        if not len(gone):
            return []
        names = _named(self.names.take(pa.array(gone[:NAMED])), len(gone))
        return [f"{len(gone)} attempts of {self.scope} have no outcome: {names}"]

    def belongs_to(self, scope: str) -> bool:
        """Whether a census of this scope counts these attempts."""
        return scope in self.tables or self.scope == scope or self.scope.startswith(f"{scope}/")

    def _by_family(self, which: np.ndarray) -> Counter[str]:
        counts = np.bincount(self.family[which], minlength=len(self.families))
        return Counter({name: int(count) for name, count in zip(self.families, counts, strict=True) if count})


@dataclass(frozen=True, slots=True)
class Matched:
    """For each row the place of its dispatch in `dispatches`, -1 where nobody issued it; what is wrong, in words."""

    where: np.ndarray
    dispatches: tuple[OpenDispatch, ...]
    problems: list[str]


class OpenDispatches:
    """The dispatches that are not settled yet, oldest first. `families` maps a task's id to its family."""

    def __init__(self) -> None:
        self.families: dict[str, str] = {}
        self._open: list[OpenDispatch] = []

    def __iter__(self) -> Iterator[OpenDispatch]:
        return iter(tuple(self._open))

    def of(self, scope: str) -> list[OpenDispatch]:
        """Those that a census of this scope counts."""
        return [one for one in self._open if one.belongs_to(scope)]

    def remove(self, dispatch: OpenDispatch) -> None:
        self._open.remove(dispatch)

    def add(self, dispatch: Dispatch) -> list[str]:
        """Opens a dispatch; what is wrong with it, in words."""
        groups = pa.array([group_name(dispatch.scope, place, task) for place, task in enumerate(dispatch.tasks)], pa.string())
        samples = np.tile(np.arange(dispatch.samples), len(dispatch.tasks))
        places = np.repeat(np.arange(len(dispatch.tasks)), dispatch.samples)
        names = pc.binary_join_element_wise(groups.take(pa.array(places)), pc.cast(pa.array(samples), pa.string()), "/")
        of_task = [self.families.get(task, UNKNOWN) for task in dispatch.tasks]
        families = sorted(set(of_task))
        numbers = np.array([families.index(name) for name in of_task], np.int32)
        self._open.append(OpenDispatch(scope=dispatch.scope, names=names, family=np.repeat(numbers, dispatch.samples),
                                       families=families, ended=np.zeros(len(names), np.int64)))
        unknown = of_task.count(UNKNOWN)
        return [f"dispatch {dispatch.scope} issues attempts at {unknown} tasks that the run does not hold"] if unknown else []

    def match(self, table: str | None, attempts: pa.Array, families: pa.Array) -> Matched:
        """Finds the dispatch of every row, the newest first, and notes that the attempt ended (in `table`, if in one)."""
        where, problems = np.full(len(attempts), -1), []
        dispatches = tuple(reversed(self._open))
        for number, dispatch in enumerate(dispatches):
            left = np.flatnonzero(where < 0)
            if not len(left):
                break
            found = pc.index_in(attempts.take(pa.array(left)), dispatch.names)
            hit = found.is_valid().to_numpy(zero_copy_only=False)
            if not hit.any():
                continue
            rows, places = left[hit], found.drop_null().to_numpy()
            where[rows] = number
            if table is not None:
                dispatch.tables.add(table)
            problems += self._end(dispatch, attempts.take(pa.array(rows)), families.take(pa.array(rows)), places)
        strays = np.flatnonzero(where < 0)
        if len(strays):
            problems.append(f"{len(strays)} attempts{_where(table)} ended without having been issued: "
                            f"{_named(attempts.take(pa.array(strays[:NAMED])), len(strays))}")
        return Matched(where, dispatches, problems)

    def _end(self, dispatch: OpenDispatch, attempts: pa.Array, families: pa.Array, places: np.ndarray) -> list[str]:
        """Counts the ends; names attempts that ended before, or in another family than they were issued in."""
        before = dispatch.ended[places] > 0
        np.add.at(dispatch.ended, places, 1)
        twice = before | (dispatch.ended[places] > 1)
        expected = pa.array(dispatch.families, pa.string()).take(pa.array(dispatch.family[places]))
        other = pc.not_equal(families, expected).to_numpy(zero_copy_only=False)
        problems = []
        for which, what in ((twice, "ended more than once"), (other, "ended in another family than they were issued in")):
            if which.any():
                names = pc.unique(attempts.filter(pa.array(which)))
                problems.append(f"{len(names)} attempts of {dispatch.scope} {what}: {_named(names[:NAMED], len(names))}")
        return problems


def _where(table: str | None) -> str:
    return "" if table is None else f" in {table}"


def _named(names: pa.Array, count: int) -> str:
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return ", ".join(str(name) for name in names.to_pylist()) + more
