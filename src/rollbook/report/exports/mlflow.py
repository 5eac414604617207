"""An MLflow run in a local database; the only module that imports mlflow."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from rollbook.report.exports.series import Handed, missing, twice

BATCH, PARAMETERS = 900, 90       # the store's own limits are 1000 metrics and 100 parameters a request
VALUE = 6000


def write(run: Handed, out: Path) -> Path:
    """A run in OUT/mlflow.db; `mlflow ui --backend-store-uri sqlite:///OUT/mlflow.db` shows its metrics and settings."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    try:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise missing("mlflow", error) from error
    out.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(tracking_uri=f"sqlite:///{(out / 'mlflow.db').absolute()}")
    known = client.get_experiment_by_name("rollbook")
    experiment = known.experiment_id if known else client.create_experiment("rollbook", (out / "artifacts").absolute().as_uri())
    if client.search_runs([experiment], f"tags.`rollbook.genesis` = '{run.genesis}'"):
        raise twice(run, out / "mlflow.db")
    made = client.create_run(experiment, run_name=run.name, start_time=int(1000 * run.rows[0].time_s),
                             tags={"rollbook.genesis": run.genesis, "rollbook.status": run.status})
    name = made.info.run_id
    metrics = [Metric(_plain(key), value, int(1000 * row.time_s), row.step)
               for row in run.rows for key, value in row.values.items()]
    parameters = [Param(_plain(key), value[:VALUE]) for key, value in run.settings.items()]
    for at in range(0, len(metrics), BATCH):
        client.log_batch(name, metrics=metrics[at:at + BATCH])
    for at in range(0, len(parameters), PARAMETERS):
        client.log_batch(name, params=parameters[at:at + PARAMETERS])
    status = {"completed": "FINISHED", "diverged": "FAILED"}.get(run.status, "KILLED")
    client.set_terminated(name, status=status, end_time=int(1000 * run.rows[-1].time_s))
    return out / "mlflow.db"


def _plain(name: str) -> str:
    """A name that the store takes: at most 250 letters of its alphabet, shortened ones kept apart by a hash."""
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-. /") else "_" for letter in name)
    return plain if len(plain) <= 240 else f"{plain[:220]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
