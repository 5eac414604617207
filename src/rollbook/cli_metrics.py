"""`rollbook metrics`: the numbers of a run in the format of another tool."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

TOOLS = ("tensorboard", "mlflow", "wandb", "trackio", "opentelemetry", "inspect")


@click.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--to", "tool", required=True, type=click.Choice(TOOLS), help="Whose format; inspect is for evaluations.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write into.")
def metrics(run_folder: Path, tool: str, out: Path) -> None:
    """Write the numbers of RUN for TensorBoard, MLflow, W&B (offline), trackio, OpenTelemetry, or an evaluation for Inspect."""
    from rollbook.cli_output import check_existing_run

    check_existing_run(run_folder)
    if tool == "inspect":
        from rollbook.report.exports import inspect_log

        click.echo(str(inspect_log.write(run_folder, out)))
        return
    from rollbook.report.exports.series import handed

    run = handed(run_folder)
    writer = importlib.import_module(f"rollbook.report.exports.{tool}")
    click.echo(f"{writer.write(run, out)}: {len(run.rows)} moments of {run.name}")
