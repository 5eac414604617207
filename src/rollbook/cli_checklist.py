"""`rollbook checklist`: ten questions about a run answered from its artifacts, and the ten parts of its release."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rollbook.audit.export import Part
    from rollbook.report.checklist_facts import Answer

COLOURS = {"complete": "green", "partial": "yellow", "missing": "red", "none": "bright_black"}


@click.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def checklist(run_folder: Path, as_json: bool) -> None:
    """Answer the questions of a research audit about RUN, and score its release beside that of its subject."""
    from rollbook.cli_output import check_existing_run

    check_existing_run(run_folder)
    from rollbook.audit.release_parts import release_parts
    from rollbook.evidence.registry import builtin
    from rollbook.report.checklist import checklist as answered

    parts = release_parts(run_folder)
    answers = answered(run_folder, [(part.title, part.status) for part in parts], builtin())
    subject = _subject(answers)
    if as_json:
        click.echo(json.dumps({"answers": [dataclasses.asdict(answer) for answer in answers], "subject": subject,
                               "parts": [{**dataclasses.asdict(part), "status": part.status} for part in parts]},
                              indent=1, ensure_ascii=False))
        return
    for answer in answers:
        show(answer)
    show_parts(parts, subject)


def _subject(answers: tuple[Answer, ...]) -> str | None:
    """The release the run's recipe is about."""
    return next((fact.value for answer in answers for fact in answer.facts if fact.what == "subject"), None)


def show(answer: Answer) -> None:
    """One question and its facts, each with where it stands."""
    from rollbook.report.text import visible

    click.echo(click.style(f"{answer.number:>2}  {answer.question}", bold=True))
    for fact in answer.facts:
        value = click.style("not shown", fg="yellow") if fact.value is None else visible(fact.value)
        click.echo(f"      {fact.what}: {value}  ({visible(fact.where)})")


def show_parts(parts: list[Part], subject: str | None) -> None:
    """The ten parts of the run's release, and how much the sources say of the subject's."""
    from rollbook.evidence.registry import builtin
    from rollbook.evidence.release_score import score

    known = subject in {release.subject for release in builtin().releases.values()}
    system = score(builtin(), str(subject)) if known else None
    title = "The ten parts of a release: this run's artifacts" + (f"; what is said of {subject}" if system else "")
    click.echo(click.style(f"\n{title}", bold=True))
    for index, part in enumerate(parts):
        said = f"; {system.parts[index].status}" if system else ""
        click.echo(f"{part.number:>4}  {part.title}: {click.style(part.status, fg=COLOURS[part.status])}{said}")
        for what, why in part.missing.items():
            click.echo(f"        missing: {what} ({why})")
    whole = sum(part.status == "complete" for part in parts)
    partial = sum(part.status == "partial" for part in parts)
    click.echo(f"\nThis run: {whole} of {len(parts)} complete, {partial} partial." + (f" {subject}: {system}." if system else ""))
