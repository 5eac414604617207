"""`rollbook replay`, `export`, `reproduce`: computing a run's updates again, releasing it, running it again from scratch."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rollbook.audit.replay import ReplayReport
    from rollbook.ledger.sameness import Unlike
    from rollbook.orchestration.reproduce import Reproduction


def register(main: click.Group) -> None:
    """Adds the commands of this file."""
    for command in (replay, export, reproduce):
        main.add_command(command)


@click.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--stage", "stages", multiple=True, help="Only this training stage, from the checkpoint it began with. Repeatable.")
@click.option("--threads", type=click.IntRange(1), help="Compute with so many threads instead of the run's.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def replay(ctx: click.Context, run_folder: Path, stages: tuple[str, ...], threads: int | None, as_json: bool) -> None:
    """Compute every update of RUN again from its stored batches and compare, bit for bit. Exits 1 where one differs."""
    from rollbook.cli_output import check_existing_run

    check_existing_run(run_folder)
    from rollbook.audit.replay import replay_run

    with _progress(quiet=as_json) as progress:
        report = replay_run(run_folder, only=stages, threads=threads, progress=progress)
    if as_json:
        _print_json(report)
    else:
        _show_replay(report)
    ctx.exit(1 if report.mismatches else 0)


def _show_replay(report: ReplayReport) -> None:
    _show_unlike(report.unlike)
    if report.exact:
        click.echo("compared bit for bit")
    else:
        click.echo(f"compared within {report.tolerance}, because machine, threads or torch are not the run's")
    for note in report.notes:
        click.echo(note)
    for stage in report.stages:
        opened = "" if stage.ended else ", still open"
        click.echo(f"  {stage.stage}: {stage.updates} updates{opened}, weights {stage.weights[:16]}")
    if report.mismatches:
        click.echo(f"DIFFERS first at {report.mismatches[0]}")
        for other in report.mismatches[1:]:
            click.echo(f"  and at {other}")
    elif report.same_bits:
        click.echo("equal: every update, version and checkpoint, bit for bit")
    else:
        largest = ", ".join(f"{name} {value:.2g}" for name, value in sorted(report.largest.items()) if value)
        click.echo(f"within the tolerance; largest differences: {largest or 'hashes alone'}")


@click.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def export(run_folder: Path, out: Path, as_json: bool) -> None:
    """Write RUN as a bundle OUT, a folder or a .tar.gz, with the ten parts of a complete release; what is missing is named."""
    from rollbook.cli_output import check_existing_run

    check_existing_run(run_folder)
    from rollbook.audit.export import export_run

    index = export_run(run_folder, out, told=lambda text: None if as_json else click.echo(f"  {text}", err=True))
    if as_json:
        click.echo(json.dumps(index, indent=1, ensure_ascii=False))
        return
    for part in index["parts"]:
        click.echo(f"{part['number']:>2}  {part['title']}: {part['status']}")
        for what, why in part["missing"].items():
            click.echo(f"      missing: {what} ({why})")
        for what, why in part["none"].items():
            click.echo(f"      none: {what} ({why})")
    click.echo(f"bundle: {out} ({index['files']} files, {index['bytes'] / 2**20:.1f} MiB before packing)")


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Run folder, must not exist.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.pass_context
def reproduce(ctx: click.Context, bundle: Path, out: Path, as_json: bool) -> None:
    """Run the recipe of BUNDLE from scratch and compare. Exits 1 on a difference that nothing explains."""
    from rollbook.cli_output import check_new_run
    from rollbook.ledger.bundle import opened

    with opened(bundle) as given:
        check_new_run(out, given.recipe.settings.model)
    from rollbook.orchestration.reproduce import reproduce as reproduced

    with _progress(quiet=as_json) as progress:
        found = reproduced(bundle, out, progress)
    if as_json:
        _print_json(found)
    else:
        _show_reproduction(found)
    ctx.exit(0 if found.explained else 1)


def _show_reproduction(found: Reproduction) -> None:
    _show_unlike(found.unlike)
    if found.same:
        click.echo(f"equal: weights of {found.versions} versions, the census and {found.records} records of the log")
        return
    if found.first is not None:
        click.echo(f"diverged at record {found.first.place}: {found.first.made} for {found.first.recorded}")
    click.echo(f"tolerance elsewhere: {found.tolerance}")
    for one in found.beyond:
        click.echo(f"  beyond it: {one}")
    if found.explained:
        click.echo("explained: machine, threads or packages are not those of the run, and every number is within the tolerance")
    elif not found.excused:
        click.echo("UNEXPLAINED: machine, threads and packages are those of the run")
    else:
        click.echo("UNEXPLAINED: numbers lie beyond the tolerance")


def _show_unlike(found: tuple[Unlike, ...]) -> None:
    for one in found:
        click.echo(f"not as it was: {one}")


class _Silent:
    """Tells nothing."""

    def stage(self, *_: Any) -> None: ...

    def step(self, *_: Any) -> None: ...

    def note(self, _: str) -> None: ...


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Any]:
    if quiet:
        yield _Silent()
        return
    from rollbook.cli_progress import live_progress

    with live_progress() as progress:
        yield progress


def _print_json(record: Any) -> None:
    from rollbook.records import encode

    click.echo(json.dumps(encode(record), indent=1, ensure_ascii=False))
