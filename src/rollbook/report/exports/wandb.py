"""A Weights & Biases run in offline mode; the only module that imports wandb. Nothing is sent anywhere."""

from __future__ import annotations

from pathlib import Path

from rollbook.report.exports.series import Handed, missing


def write(run: Handed, out: Path) -> Path:
    """An offline run below OUT/wandb."""
    try:
        import wandb
    except ImportError as error:
        raise missing("wandb", error) from error
    out.mkdir(parents=True, exist_ok=True)
    made = wandb.init(mode="offline", project="rollbook", name=run.name, dir=str(out), config=dict(run.settings),
                      tags=[run.status], settings=wandb.Settings(silent=True, console="off", x_disable_stats=True,
                                                                 x_disable_meta=True))
    made.define_metric("step")
    made.define_metric("*", step_metric="step")
    for row in run.rows:
        made.log({**row.values, "step": row.step, "recorded_s": row.time_s})
    folder = Path(made.dir).parent
    made.finish()
    wandb.teardown()        # its service writes on after `finish` returns; now everything is in the file
    return folder
