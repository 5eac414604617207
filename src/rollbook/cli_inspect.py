"""`rollbook census`, `rollbook lineage`, `rollbook query`: what a run holds, read and never changed."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rollbook.ledger.distribution import Shift, Slice
    from rollbook.ledger.query import Answer
    from rollbook.ledger.run_census import RunCensus

RUN = click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
CELL = 60           # characters of a cell in a table for a person
LIMIT = 1000
WHOLE_FROM = 1e6    # numbers from here on are not shortened to six digits


@click.command()
@RUN
@JSON
@click.pass_context
def census(ctx: click.Context, run_folder: Path, as_json: bool) -> None:
    """Count every attempt of RUN: issued, each outcome, in flight. Exits 1 when the census does not close."""
    from rollbook.cli_output import check_existing_run

    check_existing_run(run_folder)
    from rollbook.ledger.run_census import run_census

    found = run_census(run_folder)
    if as_json:
        click.echo(json.dumps({**dataclasses.asdict(found), "closes": found.closes}, indent=1, ensure_ascii=False))
    else:
        _show_census(found)
    ctx.exit(0 if found.closes else 1)


@click.command()
@RUN
@JSON
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Also draw it into this file.")
@click.pass_context
def lineage(ctx: click.Context, run_folder: Path, as_json: bool, svg: Path | None) -> None:
    """Show how the policies of RUN came to be: data, stages, versions, evaluations. Exits 1 when an origin is missing."""
    from rollbook.cli_output import check_existing_run

    check_existing_run(run_folder)
    from rollbook.ledger.layout import refusing
    from rollbook.ledger.lineage import run_lineage
    from rollbook.report.lineage_svg import lineage_svg
    from rollbook.report.lineage_tree import tree

    graph = run_lineage(run_folder)
    if svg is not None:
        with refusing(f"{svg} could not be written"):
            svg.write_text(lineage_svg(graph), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(graph), indent=1, ensure_ascii=False))
    else:
        click.echo("\n".join(tree(graph)))
    if svg is not None:
        click.echo(f"drawn: {svg}", err=True)
    ctx.exit(1 if graph.problems else 0)


@click.command()
@RUN
@click.argument("sql", required=False)
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
@click.option("--limit", type=click.IntRange(min=1), default=LIMIT, show_default=True, help="At most so many rows are answered.")
def query(run_folder: Path, sql: str | None, form: str, limit: int) -> None:
    """Answer one SELECT statement about RUN (DuckDB's SQL). Without SQL: list the views and their columns."""
    from rollbook.cli_output import check_existing_run

    check_existing_run(run_folder)
    from rollbook.ledger import query as asked

    if sql is None:
        for name, columns in asked.described().items():
            click.echo(f"{name}: {', '.join(f'{column} {kind}' for column, kind in columns)}")
        return
    answer = asked.query(run_folder, sql, limit=limit)
    names = _unique(answer.columns)
    if form == "json":
        rows = [dict(zip(names, map(_plain, row), strict=True)) for row in answer.rows]
        click.echo(json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False))
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([names, *([_csv_cell(_plain(value)) for value in row] for row in answer.rows)])
    else:
        _show_answer(answer, names)
    if answer.cut:
        click.echo(f"only the first {limit} rows; there are more (--limit N, or LIMIT in the SQL)", err=True)


def _show_answer(answer: Answer, names: Sequence[str]) -> None:
    rows = [[_cell(_plain(value)) for value in row] for row in answer.rows]
    numbers = {index for index, kind in enumerate(answer.types) if kind.endswith("INT") or kind in ("DOUBLE", "FLOAT")}
    _grid([_cell(name) for name in names], rows, right=numbers)
    click.echo(f"{len(rows)} row{'' if len(rows) == 1 else 's'}", err=True)


def _unique(names: Sequence[str]) -> list[str]:
    """The names, a repeated one with its number."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return found


def _plain(value: Any) -> Any:
    """A value as JSON has it; what JSON has not (NaN, dates, decimals) as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else str(value)


def _csv_cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value


def _cell(value: Any) -> str:
    """A value in one line that cannot act on the terminal."""
    from rollbook.report.text import visible

    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < WHOLE_FROM else f"{value:.2f}"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list, bool)) else str(value)
    return _clipped(visible(text[:4 * CELL]).replace("\n", "⏎").replace("\t", " "), len(text) > 4 * CELL)


def _clipped(text: str, more: bool) -> str:
    return f"{text[:CELL - 1]}…" if more or len(text) > CELL else text


def _grid(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] | set[int]) -> None:
    """Aligned lines with a heading."""
    widths = [max(len(column), *(len(row[index]) for row in rows)) if rows else len(column)
              for index, column in enumerate(columns)]
    for number, row in enumerate([columns, *rows]):
        cells = [cell.rjust(width) if index in right else cell.ljust(width)
                 for index, (cell, width) in enumerate(zip(row, widths, strict=True))]
        line = "  ".join(cells).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 else line)


def _show_census(found: RunCensus) -> None:
    if not found.rows:
        click.echo(f"{found.run}: no attempt was issued")
    else:
        codes = sorted({code for row in found.rows for code in row.outcomes}, key=lambda code: (code != "accepted", code))
        columns = ["stage", "family", "issued", *codes, "in flight", "issued = ended + in flight"]
        rows = [[_cell(row.stage), _cell(row.family), str(row.issued), *(str(row.outcomes.get(code) or "-") for code in codes),
                 str(row.in_flight or "-"), f"{row.issued} {'=' if row.closes else '≠'} {row.ended} + {row.in_flight}"]
                for row in found.rows]
        _grid(columns, rows, right=set(range(2, len(columns) - 1)))
    for shift in found.shifts:
        _show_shift(shift)
    click.echo()
    for problem in found.problems:
        click.echo(f"! {_long(problem)}")
    issued, flying = (sum(getattr(row, name) for row in found.rows) for name in ("issued", "in_flight"))
    ended = sum((Counter(row.outcomes) for row in found.rows), Counter())
    accepted, rejected = ended["accepted"], ended.total() - ended["accepted"]
    sign, word = ("=", "closes") if found.closes else ("≠" if issued != ended.total() + flying else "=", "does NOT close")
    click.echo(f"The census {word}: {issued} issued {sign} {accepted} accepted + {rejected} rejected + {flying} in flight"
               f"{'' if found.complete else ' (the run has not ended)'}.")


def _long(text: str) -> str:
    from rollbook.report.text import clip, visible

    return visible(clip(text, 400)).replace("\n", "⏎")


def _show_shift(shift: Shift) -> None:
    click.echo(f"\n{_cell(shift.stage)}: {shift.trained} of {shift.issued} attempts were trained on")
    for title, slices in (("family", shift.families), ("length, policy tokens", shift.lengths), ("latency, s", shift.latencies)):
        if slices:
            _grid([title, "issued", "share", "trained", "share", "trained - issued"], [_shares(one, slices) for one in slices],
                  right={1, 2, 3, 4, 5})
    if shift.issued != shift.trajectories:
        click.echo(f"{shift.issued - shift.trajectories} attempts left no trajectory")
    if shift.no_latency:
        click.echo(f"{shift.no_latency} trajectories state no latency")


def _shares(one: Slice, slices: Sequence[Slice]) -> list[str]:
    """Counts and shares of one slice; the difference in percentage points."""
    issued, trained = (sum(getattr(part, name) for part in slices) for name in ("issued", "trained"))
    before, after = 100 * one.issued / issued, 100 * one.trained / trained if trained else math.nan
    return [_cell(one.name), str(one.issued), f"{before:.1f}%", str(one.trained), f"{after:.1f}%", f"{after - before:+.1f}"]
