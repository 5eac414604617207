"""Reproduce: the recipe of a bundle run again from scratch, and what came out compared with what the bundle says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from rollbook.ledger import Ledger, environment_manifest, merge
from rollbook.ledger.bundle import COLLECTED, CURATED, Bundle, label, opened, story
from rollbook.ledger.sameness import Unlike, unlike
from rollbook.models.runtime import named, nearest, prepare
from rollbook.orchestration.run import run_recipe
from rollbook.orchestration.session import Progress
from rollbook.records import Census, EvalReport, PolicyVersion, SftReport, encode
from rollbook.tasks.curated import read_curated

SFT_LOSS = 0.2      # nats, plus the same share of the loss: what another arithmetic leads to within a stage, see audit.ruler
TOLERANCE = f"supervised losses within {SFT_LOSS:g} nats plus {SFT_LOSS:.0%}, evaluations within overlapping intervals"


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first record that came out otherwise; `place` counts the standing records from 1.

    Example: Divergence(place=41, recorded="SftReport cold_start 1 (5a..)", made="SftReport cold_start 1 (6b..)")
    """

    place: int
    recorded: str
    made: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """How a run made again compares. `same`: equal weights per version, census and log.

    `unlike` says what of machine, threads, packages and code is not as it was; `excused` whether that can change numbers.
    `beyond` names what lies outside `tolerance`. Unexplained is a difference that nothing excuses, or one beyond the tolerance.
    """

    same: bool
    versions: int
    records: int
    unlike: tuple[Unlike, ...]
    excused: bool
    first: Divergence | None
    tolerance: str
    beyond: tuple[str, ...]

    @property
    def explained(self) -> bool:
        return self.same or (self.excused and not self.beyond)


def reproduce(bundle: Path, out: Path, progress: Progress) -> Reproduction:
    """Runs the bundle's recipe into the new folder `out` and compares; the bundle itself is only read."""
    with opened(bundle) as given:
        recorded: Mapping[str, Any] = given.expected["manifest"]
        computes = named(nearest(given.recipe.settings.run.device), prepare(given.recipe.settings.run))
        differ = unlike(recorded, {**computes, **environment_manifest(), "threads": torch.get_num_threads()})
        for one in differ:
            if one.moves_run or one.what == "code.source":
                progress.note(f"not as it was: {one}")
        curated = given.root / CURATED
        kept = read_curated(curated, given.recipe.settings.tasks.curated_hash) if curated.is_dir() else None
        run_recipe(given.recipe, out, progress, kept=kept, store=given.root / COLLECTED)
        return compared(given, out, differ)


def compared(given: Bundle, out: Path, differ: tuple[Unlike, ...]) -> Reproduction:
    """The finished run in `out` against the bundle."""
    with Ledger.open(out, write=False) as ledger:
        made = [{"index": one.index, "stage": one.stage, "weights": one.weights} for one in ledger.records(PolicyVersion)]
        expected: Mapping[str, Any] = given.expected
        complete = bool(expected["complete"])
        first, count = _first_divergence(given, ledger, complete)
        wanted = expected["versions"]
        same = first is None and (made == wanted if complete else made[:len(wanted)] == wanted)
        if complete:
            same = same and encode(merge(ledger.records(Census))) == expected["census"]
        beyond = () if same else tuple(_beyond(expected, ledger))
    return Reproduction(same=same, versions=len(wanted), records=count, unlike=differ, first=first, tolerance=TOLERANCE,
                        excused=any(one.moves_run for one in differ), beyond=beyond)


def _first_divergence(given: Bundle, ledger: Ledger, complete: bool) -> tuple[Divergence | None, int]:
    """The first standing record with another kind or id, and how many were equal before it.

    Of an unfinished run as much is compared as the bundle holds.
    """
    place = 0
    for place, (was, now) in enumerate(zip_longest(given.log(), story(ledger)), start=1):
        if was is None and not complete:
            return None, place - 1
        if was is None or now is None or (was["kind"], was["id"]) != (now.kind, now.id):
            recorded = "nothing more" if was is None else _named(was["kind"], was["label"], was["id"])
            made = "nothing more" if now is None else _named(now.kind, label(now), now.id)
            return Divergence(place=place, recorded=recorded, made=made), place - 1
    return None, place


def _named(kind: str, about: str, identity: str) -> str:
    return f"{kind}{' ' + about if about else ''} ({identity.partition(':')[2][:12]})"


def _beyond(expected: Mapping[str, Any], ledger: Ledger) -> Iterator[str]:
    """What lies outside the tolerance."""
    losses = {f"{one.stage} {one.step}": one.loss_nats for one in ledger.records(SftReport)}
    for name, was in expected["sft_loss_nats"].items():
        now = losses.get(name)
        if now is None or not abs(now - was) <= SFT_LOSS + SFT_LOSS * abs(was):
            yield f"supervised loss of {name}: {'absent' if now is None else f'{now:.4g}'} for {was:.4g} nats"
            break
    reports = {one.stage: one.accuracy for one in ledger.records(EvalReport)}
    for name, interval in expected["evaluations"].items():
        mine = reports.get(name)
        if mine is None or mine.low > interval["high"] or mine.high < interval["low"]:
            got = "absent" if mine is None else f"{mine.estimate:.1%} ({mine.low:.1%} to {mine.high:.1%})"
            yield f"accuracy of {name}: {got} for {interval['estimate']:.1%} ({interval['low']:.1%} to {interval['high']:.1%})"
