"""The same pages as a folder of files: nothing is fetched, it opens from disk. Filters need the server and are left out."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rollbook.records import LedgerError, RollbookError
from rollbook.view.address import Address
from rollbook.view.app import ASSETS
from rollbook.view.pages import Site, environment, page
from rollbook.view.shown import held_runs

MOST = 2000         # pages written; a link to one beyond leads to a page that says so
BEYOND = "beyond.html"


def write_site(folders: Sequence[Path], out: Path) -> tuple[int, int]:
    """Writes the pages of these runs into a new folder; how many were written, and how many more are only served."""
    if out.exists():
        raise LedgerError("the folder exists", got=str(out), why="pages of other runs could stay in it", fix="choose another")
    runs = held_runs(folders)
    queue: list[Address] = [Address(page="runs")]
    known = {queue[0].file}
    left = 0

    def link(address: Address) -> str:
        nonlocal left
        if address.file not in known:
            if len(known) >= MOST:
                left += 1
                return BEYOND
            known.add(address.file)
            queue.append(address)
        return address.file

    site = Site(runs=runs, link=link, asset=lambda name: name, served=False)
    made = environment(site)
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name, (file, _) in ASSETS.items():
        shutil.copyfile(file, part / name)
    for address in queue:                           # grows while pages name further ones
        try:
            document = page(site, made, address)
        except RollbookError as error:
            document = made.get_template("refused.html").render(title="Not shown", said=str(error), run=None, page="runs",
                                                                address=address)
        (part / address.file).write_text(document, encoding="utf-8", errors="backslashreplace")
    names = " ".join(run.name for run in runs.values())
    beyond = made.get_template("refused.html").render(
        title="Not among these files", run=None, page="runs", address=Address(page="runs"),
        said=f"This folder holds {MOST} pages; all of them are served by: rollbook view {names}")
    (part / BEYOND).write_text(beyond, encoding="utf-8")
    part.rename(out)
    return len(queue), left
