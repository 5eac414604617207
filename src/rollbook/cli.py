"""The command line. Imports no torch; what a command needs is imported when it runs."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import click

from rollbook import __version__
from rollbook.cli_abilities import abilities
from rollbook.cli_audit import audit
from rollbook.cli_checklist import checklist
from rollbook.cli_claims import evidence
from rollbook.cli_curate import curate
from rollbook.cli_env import doctor, env
from rollbook.cli_eval import compare, evaluate, protocol
from rollbook.cli_evidence import register as register_evidence
from rollbook.cli_gate import gate
from rollbook.cli_grid import grid
from rollbook.cli_inspect import census, lineage, query
from rollbook.cli_metrics import metrics
from rollbook.cli_plan import plan
from rollbook.cli_preflight import preflight
from rollbook.cli_recipes import recipes
from rollbook.cli_rerun import rerun
from rollbook.cli_rewards import rewards
from rollbook.cli_selftest import selftest
from rollbook.cli_serve import serve
from rollbook.cli_view import report, view
from rollbook.records.errors import RecipeError, RollbookError, Stopped

_OS_REFUSALS = {
    errno.ENOSPC: ("no space left on the device", "free some space"),
    errno.EDQUOT: ("the disk quota is used up", "free some space"),
    errno.EROFS: ("the file system is read-only", "choose another folder with --out"),
    errno.EACCES: ("permission denied", "choose another folder with --out, or change its permissions"),
    errno.EPERM: ("operation not permitted", "choose another folder with --out, or change its permissions"),
}


class Refusing(click.Group):
    """Prints refusals in their four parts and exits with their code; other exceptions are bugs and keep their traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RollbookError as error:
            _leave(ctx, error)
        except KeyboardInterrupt:
            _leave(ctx, Stopped("stopped"))
        except OSError as error:
            if error.errno not in _OS_REFUSALS:
                raise
            _leave(ctx, disk_refusal(error))
        except Exception as error:  # writers in native code raise their own kinds when the disk is full
            if os.strerror(errno.ENOSPC) not in str(error):
                raise
            _leave(ctx, disk_refusal(OSError(errno.ENOSPC, str(error))))


def _leave(ctx: click.Context, error: RollbookError) -> None:
    from rollbook.report.text import visible  # what a run or a server says must not act on the terminal

    click.echo("\n".join(map(visible, str(error).split("\n"))), err=True)
    ctx.exit(error.exit_code)


def disk_refusal(error: OSError) -> RollbookError:
    """The four-part refusal of a full, read-only or forbidden place."""
    got, fix = _OS_REFUSALS[error.errno or 0]
    return RollbookError(f"cannot write {error.filename or 'the run'}", got=got, why="every artifact of a run must be kept",
                         fix=f"{fix}; a run that had started goes on with `rollbook resume RUN`")


@click.group(cls=Refusing, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rollbook")
def main() -> None:
    """Post-training for language models, on the record."""


@main.command()
@click.argument("recipe", default="magistral-small")
@click.option("--scale", default="lab", show_default=True, help="lab, tiny, or full (the true scale).")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Override a value; recorded as yours. Repeatable.")
@click.option("--assume", type=click.Path(path_type=Path), help="Values for what is unknown; recorded as your inference.")
@click.option("--until", metavar="STAGE", help="Stop after this stage; `rollbook resume RUN` goes on.")
@click.option("--reuse", metavar="RUN", type=click.Path(path_type=Path),
              help="Take over the stages that this run made of the same inputs, program and machine.")
@click.option("--from", "again", metavar="STAGE", help="With --reuse: make this stage and all after it again.")
@click.option("--out", type=click.Path(path_type=Path), help="Run folder, must not exist. Default: runs/NAME-SCALE-seedN.")
@click.pass_context
def run(ctx: click.Context, recipe: str, scale: str, overrides: tuple[str, ...], assume: Path | None, out: Path | None,
        **part: Any) -> None:
    """Run RECIPE, a built-in name or a YAML file (default: magistral-small)."""
    from rollbook.cli_output import check_existing_run, check_new_run, show_start
    from rollbook.cli_progress import live_progress
    from rollbook.recipes import assumed, load, resolve

    resolved = resolve(load(recipe), scale, overrides, assumed.load(assume) if assume else None)
    folder = out or Path("runs") / f"{resolved.name}-{resolved.scale}-seed{resolved.settings.run.seed}"
    check_new_run(folder, resolved.settings.model)
    if part["again"] is not None and part["reuse"] is None:
        raise RecipeError("--from needs --reuse RUN", got=f"--from {part['again']}",
                          why="what comes before a stage is taken from a run",
                          fix="add --reuse RUN, the folder of an earlier run of this recipe")
    if part["reuse"] is not None:
        check_existing_run(part["reuse"])
    show_start(resolved, folder)
    from rollbook.orchestration.reuse import Reuse
    from rollbook.orchestration.run import run_recipe

    taken = None if part["reuse"] is None else Reuse(folder=part["reuse"], again=part["again"])
    try:
        with live_progress() as progress:
            code = run_recipe(resolved, folder, progress, until=part["until"], reuse=taken)
    except (KeyboardInterrupt, Stopped):
        raise _stopped(folder) from None
    _finish(ctx, folder, code)


@main.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.pass_context
def resume(ctx: click.Context, run_folder: Path) -> None:
    """Continue RUN from its last record."""
    from rollbook.cli_output import check_existing_run
    from rollbook.cli_progress import live_progress

    check_existing_run(run_folder)
    from rollbook.orchestration.run import resume_run

    try:
        with live_progress() as progress:
            code = resume_run(run_folder, progress)
    except (KeyboardInterrupt, Stopped):
        raise _stopped(run_folder) from None
    _finish(ctx, run_folder, code)


for command in (abilities, audit, census, checklist, compare, curate, doctor, evaluate, grid, lineage, metrics, plan,
                preflight, query, report, selftest, serve, view):
    main.add_command(command)
for group in (env, evidence, gate, protocol, recipes, rewards):
    main.add_command(group)
register_evidence(main)
evidence.add_command(rerun)


def _finish(ctx: click.Context, folder: Path, code: int) -> None:
    """Draws the report of a run that ended well and leaves with its code."""
    if code == 0:
        from rollbook.report.page import write_report

        click.echo(f"report: {write_report(folder)}")
        from rollbook.view.held import keep_columns

        keep_columns(folder)
    ctx.exit(code)


def _stopped(folder: Path) -> Stopped:
    started = os.path.lexists(folder)
    return Stopped("stopped", why="everything up to the last record boundary is kept" if started else "nothing was written",
                   fix=f"go on with `rollbook resume {folder}`" if started else None)
