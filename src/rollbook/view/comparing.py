"""Evaluations beside each other as `rollbook compare` sees them: what changed, the gain and where it lies, tasks won and lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollbook.records import RollbookError
from rollbook.view.held import HeldRun

PAIRS = 4           # evaluations compared with the first
ATTEMPTS = 50_000   # of one evaluation, beyond which reading them all takes too long for a page
LISTED = 30         # tasks won, and lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two evaluations compared, or why they cannot be. `made` is the `Compared`, `won` and `lost` name tasks."""

    before: HeldRun
    after: HeldRun
    made: Any | None
    as_one: bool
    refused: str
    won: tuple[str, ...]
    lost: tuple[str, ...]


def pairs(chosen: Sequence[HeldRun]) -> tuple[Pair, ...]:
    """The first finished evaluation against each of the others."""
    held = [run for run in chosen if run.protocol is not None and run.evaluations()]
    return tuple(_pair(held[0], other) for other in held[1:PAIRS + 1]) if len(held) > 1 else ()


def _pair(before: HeldRun, after: HeldRun) -> Pair:
    from rollbook.orchestration import sides

    large = [run.key for run in (before, after) if run.trajectories > ATTEMPTS]
    if large:
        return _refused(before, after, f"{large[0]} holds more than {ATTEMPTS:,} attempts: `rollbook compare` reads them")
    try:
        one, other = (run.once("evaluation", lambda root=run.root: sides.evaluation(root)) for run in (before, after))
        try:
            made, as_one = sides.comparison(one, other, policy_as_one=False), False
        except RollbookError:
            made, as_one = sides.comparison(one, other, policy_as_one=True), True
    except (RollbookError, OSError) as error:
        return _refused(before, after, str(error))
    won, lost = _changed(one.side.values, other.side.values)
    named: Mapping[str, str] = other.tasks
    return Pair(before=before, after=after, made=made, as_one=as_one, refused="",
                won=tuple(named[name] for name in won), lost=tuple(named[name] for name in lost))


def _refused(before: HeldRun, after: HeldRun, why: str) -> Pair:
    return Pair(before=before, after=after, made=None, as_one=False, refused=why, won=(), lost=())


def _changed(before: Mapping[str, float | None], after: Mapping[str, float | None]) -> tuple[list[str], list[str]]:
    """Problems whose value rose and fell, those that changed most first."""
    moved = sorted(_moves(before, after), key=lambda move: (-abs(move[1]), move[0]))
    return [name for name, by in moved if by > 0], [name for name, by in moved if by < 0]


def _moves(before: Mapping[str, float | None], after: Mapping[str, float | None]) -> Iterator[tuple[str, float]]:
    for name, then in before.items():
        now = after.get(name)
        if then is not None and now is not None and now != then:
            yield name, now - then
