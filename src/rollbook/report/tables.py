"""The tables of the report: census, pass-rate selection, recipe values, lineage, files. Rows of text, from records alone."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rollbook.ledger import RecordTable, TraceTable
from rollbook.records import Census, CurriculumReport, PolicyVersion, ResolvedRecipe, Selection, StageEnd
from rollbook.records.curriculum import Pool
from rollbook.records.recipe import Provenance
from rollbook.report.facts import Facts
from rollbook.report.text import ABSENT, number, percent, setting, short, size

ROWS = 300
POOLS: tuple[str, ...] = get_args(Pool)
LABELS = {"D": "disclosed", "C": "confirmed artifact", "R": "reproduced here", "I": "inference", "U": "unknown"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Column names, rows of the same width, and how many further rows are not shown."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0


def table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    return Table(columns=columns, rows=tuple(rows[:ROWS]), left_out=max(0, len(rows) - ROWS))


def census_table(facts: Facts) -> Table | None:
    """Attempts per stage and family: issued, each outcome with its share, in flight; None when nothing was closed."""
    issued: Counter[tuple[str, str]] = Counter()
    flying: Counter[tuple[str, str]] = Counter()
    codes: dict[tuple[str, str], Counter[str]] = {}
    for census in facts.all(Census):
        stage = census.scope.partition("/")[0]
        for family in {*census.issued, *census.outcomes, *census.in_flight}:
            key = (stage, family)
            issued[key] += census.issued.get(family, 0)
            flying[key] += census.in_flight.get(family, 0)
            codes.setdefault(key, Counter()).update(census.outcomes.get(family, {}))
    if not codes:
        return None
    names = sorted({code for found in codes.values() for code in found}, key=lambda code: (code != "accepted", code))
    rows = []
    for key in codes:
        held = codes[key]
        ended = sum(held.values())
        closes = ended + flying[key] == issued[key]
        cells = [_share(held[code], issued[key]) for code in names]
        rows.append((*key, number(issued[key]), *cells, number(flying[key]),
                     f"{issued[key]} = {ended} + {flying[key]}" if closes else f"{issued[key]} ≠ {ended} + {flying[key]}"))
    return table(("stage", "family", "issued", *names, "in flight", "issued = ended + in flight"), rows)


def _share(count: int, of: int) -> str:
    return f"{number(count)} ({percent(count / of)})" if count and of else "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCounts:
    """One selection: how many tasks were solved how often, which counts were kept, and what was rejected why."""

    stage: str
    samples: int
    bars: tuple[tuple[str, int, int, float], ...]
    kept: int
    counted: int
    rejected: tuple[tuple[str, int], ...]


def selections(facts: Facts) -> tuple[PassCounts, ...]:
    """For each selection the rows (times solved, tasks, of them kept, share of the largest row)."""
    found = []
    for selection in facts.all(Selection):
        tasks = Counter(selection.pass_counts.values())
        kept = Counter(selection.pass_counts[task] for task in selection.kept if task in selection.pass_counts)
        most = max(tasks.values(), default=1)
        bars = tuple((f"{times} of {selection.samples}", tasks[times], kept[times], tasks[times] / most)
                     for times in sorted(tasks))
        found.append(PassCounts(stage=selection.stage, samples=selection.samples, bars=bars, kept=len(selection.kept),
                                counted=len(selection.pass_counts), rejected=tuple(sorted(selection.rejected.items()))))
    return tuple(found)


def pools(facts: Facts) -> Table | None:
    """The pools of every curriculum as they were at its reports, and what a group with a spread cost; None without one."""
    rows = [(one.stage, number(one.step), *(number(one.pools.get(name, 0)) for name in POOLS),
             ", ".join(f"{where} {count}" for where, count in one.moved.items()) or ABSENT, number(one.attempts),
             number(one.informative), number(one.attempts / one.informative) if one.informative else ABSENT)
            for one in facts.all(CurriculumReport)]
    columns = ("stage", "step", *(name.replace("_", " ") for name in POOLS), "moved since the last report", "attempts",
               "groups with a spread", "attempts per such group")
    return table(columns, rows) if rows else None


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of every setting below a record or mapping."""
    if dataclasses.is_dataclass(value):
        items = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    elif isinstance(value, Mapping) and value:
        items = [(str(key), item) for key, item in value.items()]
    else:
        yield path, value
        return
    for name, item in items:
        yield from leaves(item, f"{path}.{name}" if path else name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeTables:
    """All values, and the three kinds a reader asks for first."""

    scaled: Table
    inferred: Table
    own: Table
    every: Table
    labels: tuple[tuple[str, int], ...]
    inferences: int


def recipe_tables(recipe: ResolvedRecipe) -> RecipeTables:
    """Every value in force with where it comes from."""
    found = [(path, setting(value), recipe.provenance.get(path)) for path, value in leaves(recipe.settings)]
    scaled = [(path, value, setting(p.scaled_from), _why(p) or "the size of this scale") for path, value, p in found
              if p and p.scaled_from is not None]
    inferred = _grouped((path, value, p.origin, p.reason or ABSENT) for path, value, p in found if p and p.label == "I")
    own = [(path, value, LABELS[p.label] if p.label else "choice") for path, value, p in found if p and p.origin == "user"]
    every = [(path, value, LABELS[p.label] if p and p.label else "choice", p.origin if p else ABSENT,
              _why(p) if p else "", setting(p.scaled_from) if p and p.scaled_from is not None else "")
             for path, value, p in found]
    counts = Counter(row[2] for row in every)
    return RecipeTables(
        scaled=table(("value", "here", "in the source", "why"), scaled),
        inferred=table(("values", "set by", "reason"), inferred), own=table(("value", "is", "label"), own),
        inferences=sum(bool(p and p.label == "I") for _, _, p in found),
        every=table(("value", "is", "label", "origin", "claim or reason", "scaled from"), every),
        labels=tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))))


def _why(about: Provenance) -> str:
    """The reason of an inference, the claim of a citation, or both where an inference names the claim it is drawn from."""
    return "; drawn from ".join(part for part in (about.reason, about.claim) if part)


def _grouped(rows: Iterable[tuple[str, str, str, str]]) -> list[tuple[str, ...]]:
    """Values of one section, origin and reason in one row: `a.b: c 1, d 2`."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for path, value, origin, reason in rows:
        section, _, name = path.rpartition(".")
        groups.setdefault((section, origin, reason), []).append(f"{name} {value}")
    return [(f"{section}: {', '.join(items)}", origin, reason) for (section, origin, reason), items in groups.items()]


def stage_table(facts: Facts) -> Table | None:
    """Each finished stage with the policies and weight hashes it began and ended with."""
    versions = {entry.id: entry.record for entry in facts.entries(PolicyVersion)}
    rows = []
    for end in facts.all(StageEnd):
        trained = end.started != end.ended
        rows.append((end.stage, end.kind, _version(versions, end.started),
                     _version(versions, end.ended) if trained else "same", end.checkpoint or "none"))
    return table(("stage", "kind", "began with", "ended with", "checkpoint"), rows) if rows else None


def _version(versions: Mapping[str, PolicyVersion], name: str) -> str:
    version = versions.get(name)
    return f"version {version.index}, weights {short(version.weights)}" if version else f"{short(name)} (not in the run)"


def version_table(facts: Facts) -> Table | None:
    """Every published policy with its weight hash and its parent."""
    versions = {entry.id: entry.record for entry in facts.entries(PolicyVersion)}
    rows = []
    for identity, version in versions.items():
        parent = versions.get(version.parent) if version.parent else None
        lost = f"{short(version.parent)} (not in the run)" if version.parent else "none"
        origin = f"version {parent.index}" if parent else lost
        rows.append((str(version.index), version.stage, origin, str(version.updates), version.weights, short(identity),
                     ", ".join(one.consumer for one in version.acknowledged) or "nobody"))
    return table(("version", "stage", "parent", "updates", "weights", "record", "acknowledged by"), rows) if rows else None


def flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    """A manifest's part as rows of path and text."""
    rows = []
    for name, item in leaves(value, path):
        text = ABSENT if item is None else setting(item)
        rows.append((name, size(item) if name.endswith("memory_bytes") and isinstance(item, int) else text))
    return rows


def file_table(facts: Facts) -> Table:
    """What lies in the run folder: tables from the log, everything else from the disk. Paths are relative to the run."""
    rows = [(str(t.observed.get("path", ABSENT)), f"{number(t.rows)} trajectories, {number(t.tokens)} tokens",
             size(t.observed.get("bytes"))) for t in facts.all(TraceTable)]
    rows += [(str(t.observed.get("path", ABSENT)), f"{number(t.rows)} {t.of} records", size(t.observed.get("bytes")))
             for t in facts.all(RecordTable)]
    for folder, what in (("events", "event log"), ("objects", "stored blobs"), ("checkpoints", "checkpoint files")):
        files = [path for path in (facts.root / folder).rglob("*") if _is_file(path)]
        rows.append((f"{folder}/", f"{len(files)} files of {what}" if files else f"no {what}",
                     size(sum(path.stat().st_size for path in files)) if files else "nothing"))
    return table(("path", "holds", "size"), rows)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False
