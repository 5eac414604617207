"""`rollbook audit`: fourteen rows about a run, for a person or a machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rollbook.records import AuditReport, AuditRow

WORDS = {"pass": "pass", "fail": "FAIL", "not_applicable": "not applicable"}
COLOURS = {"pass": "green", "fail": "red", "not_applicable": "yellow"}


@click.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.option("--deep", is_flag=True, help="Also run environments, models and gradients again on a sample.")
@click.option("--sample", default=32, show_default=True, help="How many trajectories --deep runs again.")
@click.option("--record", is_flag=True, help="Keep the findings in the run; its report then shows them.")
@click.pass_context
def audit(ctx: click.Context, run_folder: Path, as_json: bool, deep: bool, sample: int, record: bool) -> None:
    """Check every stage of RUN for its silent failure, from its artifacts alone. Exits 1 when one is found."""
    from rollbook.cli_output import check_existing_run

    check_existing_run(run_folder)
    report = _audited(run_folder, sample if deep else 0)
    if record:
        from rollbook.ledger import Ledger

        with Ledger.open(run_folder) as ledger:
            ledger.append(report)
    if as_json:
        from rollbook.records import encode

        click.echo(json.dumps(encode(report), indent=1, ensure_ascii=False))
    else:
        show(report)
    ctx.exit(1 if any(row.result == "fail" for row in report.rows) else 0)


def _audited(run_folder: Path, sample: int) -> AuditReport:
    from rollbook.audit.passage import audit_run

    if not sys.stderr.isatty():
        return audit_run(run_folder, sample=sample)
    from rich.console import Console

    with Console(stderr=True).status("reading the run") as status:
        return audit_run(run_folder, sample=sample, told=lambda seq: status.update(f"reading the run: event {seq}"))


def show(report: AuditReport) -> None:
    """The fourteen rows, then for each failure the record and what to do."""
    width = max(len(row.name) for row in report.rows)
    for row in report.rows:
        word = click.style(f"{WORDS[row.result]:14}", fg=COLOURS[row.result], bold=row.result == "fail")
        click.echo(f"{row.stage:2}  {row.name:{width}}  {word}  {row.evidence}")
    failed = [row for row in report.rows if row.result == "fail"]
    for row in failed:
        click.echo(f"\nstage {row.stage}, {row.name}: {row.evidence}\n  record: {row.record}\n  fix: {row.remedy}")
    click.echo(f"\n{_summary(report.rows)}")


def _summary(rows: tuple[AuditRow, ...]) -> str:
    counts = {word: sum(row.result == result for row in rows) for result, word in WORDS.items()}
    return ", ".join(f"{count} {word}" for word, count in counts.items())
