"""`rollbook abilities`: what a run kept, gained and lost of what it did not train, beside what it trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollbook.records.errors import Stopped

if TYPE_CHECKING:
    from rollbook.records import Abilities, Comparison, Interval

ABILITIES = ("instructions", "format", "chat", "tools")      # those of tasks.abilities, which help must not import


@click.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--suite", "suites", multiple=True, type=click.Choice(ABILITIES), help="Only this suite. Repeatable. Default: all.")
@click.option("--stage", "stages", multiple=True, metavar="STAGE", help="Only before and after this stage. Repeatable.")
@click.option("--tasks", default=64, show_default=True, type=click.IntRange(2), help="Tasks of a suite.")
@click.option("--max-tokens", default=96, show_default=True, type=click.IntRange(1), help="Longest answer.")
@click.option("--seed", default=7, show_default=True, type=click.IntRange(0), help="Draws the tasks.")
@click.option("--dtype", default="auto", show_default=True, help="Precision of the computation: auto, float32, bfloat16.")
def abilities(run_folder: Path, suites: tuple[str, ...], stages: tuple[str, ...], tasks: int, max_tokens: int, seed: int,
              dtype: str) -> None:
    """Ask the policies before and after RUN's training stages the same held-out suites, and show regressions beside gains.

    Writes RUN/abilities and draws report.html again. Interrupted, the same command goes on.
    """
    from rollbook.cli_output import check_existing_run
    from rollbook.cli_progress import live_progress

    check_existing_run(run_folder)
    from rollbook.orchestration.abilities import Suites, measure
    from rollbook.report.page import write_report

    asked = Suites(abilities=suites or ABILITIES, tasks=tasks, max_tokens=max_tokens, seed=seed)      # type: ignore[arg-type]
    try:
        with live_progress() as progress:
            made = measure(run_folder, asked, progress, stages=stages, dtype=dtype)
    except (KeyboardInterrupt, Stopped):
        raise Stopped("stopped", why="every finished part is kept", fix="go on with the same command") from None
    _show(run_folder, made)
    click.echo(f"report: {write_report(run_folder)}")


def _show(run: Path, made: Abilities) -> None:
    from rollbook.cli_output import table
    from rollbook.ledger import Ledger
    from rollbook.records import Comparison, EvalReport

    with Ledger.open(run, write=False) as ledger:
        names = {event.id: event.record().stage for event in ledger.events(EvalReport.__name__)}
        trained = [(names.get(one.before, "?"), names.get(one.after, "?"), one) for one in ledger.records(Comparison)]
    table("What was trained (held-out tasks of the run)", ("", "from", "to", "points (95%)", "claim"),
          [("held-out", before, after, points(one.gain), one.claim) for before, after, one in trained])
    table("What was not trained", ("suite", "from", "to", "right", "points (95%)", "claim"),
          [(one.ability, one.before, one.after, f"{one.share_before:.1%} -> {one.share_after:.1%}", points(one.gain),
            "REGRESSION" if one.claim == "loss" else one.claim) for one in made.changes])
    for suite, why in made.left_out.items():
        click.echo(f"not measured: {suite} ({why})")
    click.echo(said(made, [one for _, _, one in trained]))


def said(made: Abilities, trained: list[Comparison]) -> str:
    """Gains and regressions in one line."""
    lost = [f"{one.ability} ({one.before} to {one.after}) {100 * one.gain.estimate:+.1f}" for one in made.losses]
    gained = sum(one.claim == "gain" for one in trained)
    told = f"{gained} of {len(trained)} comparisons of what was trained are gains"
    return f"{told}; regressions beyond chance: {', '.join(lost) if lost else 'none'}"


def points(gain: Interval) -> str:
    return f"{100 * gain.estimate:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
