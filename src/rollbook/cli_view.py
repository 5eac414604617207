"""`rollbook view`: the web application over runs; `rollbook report`: the same as files."""

from __future__ import annotations

from pathlib import Path

import click

from rollbook.records.errors import LedgerError, RollbookError, Stopped

FOLDERS = click.argument("folders", metavar="[RUN]...", nargs=-1, type=click.Path(path_type=Path))
RUNS = Path("runs")


@click.command()
@FOLDERS
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; beyond loopback others see it.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port to listen on. Default: a free one.")
@click.option("--no-token", is_flag=True, help="Let everybody in who can reach the address.")
def view(folders: tuple[Path, ...], host: str, port: int, no_token: bool) -> None:
    """Look at runs, evaluations and grids in a browser, live or finished, several side by side (default: all below ./runs)."""
    from rollbook.view.app import serve

    def tell(address: str) -> None:
        click.echo(f"{address}\nCtrl-C stops it")

    try:
        serve(_chosen(folders), host=host, port=port, token=not no_token, tell=tell)
    except KeyboardInterrupt:
        raise Stopped("stopped") from None


def _chosen(folders: tuple[Path, ...]) -> list[Path]:
    held = list(folders) or sorted(path.parent for path in RUNS.glob("*/manifest.json"))
    if not held:
        raise LedgerError("there is no run to look at", got=f"no RUN was given and {RUNS} holds none",
                          fix="give the folder that `rollbook run` printed")
    return held


@click.command()
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--site", type=click.Path(path_type=Path), help="Write the pages of the viewer into this new folder instead.")
def report(folders: tuple[Path, ...], site: Path | None) -> None:
    """Write RUN/report.html again, for each RUN; with --site the pages of `rollbook view` as files."""
    from rollbook.cli_output import check_existing_run

    for folder in folders:
        if not (folder / "grid.json").is_file():
            check_existing_run(folder)
        elif site is None:
            raise RollbookError("a grid has no report of its own", got=str(folder), why="it is several evaluations",
                                fix="write its pages: --site FOLDER")
    if site is None:
        from rollbook.report.page import write_report

        for folder in folders:
            click.echo(str(write_report(folder)))
        return
    from rollbook.view.site import write_site

    try:
        pages, left = write_site(list(folders), site)
    except OSError as error:
        raise RollbookError(f"the pages could not be written to {site}", got=str(error), fix="choose another folder") from error
    more = f"; links to {left} more pages lead to a note: `rollbook view` shows them" if left else ""
    click.echo(f"{site / 'index.html'}: {pages} pages{more}")
