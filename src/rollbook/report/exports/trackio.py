"""A trackio project in a local folder; the only module that imports trackio."""

from __future__ import annotations

import os
from pathlib import Path

from rollbook.report.exports.series import Handed, missing, twice


def write(run: Handed, out: Path) -> Path:
    """A project `rollbook` in OUT; `TRACKIO_DIR=OUT trackio show` reads it."""
    out.mkdir(parents=True, exist_ok=True)
    os.environ["TRACKIO_DIR"] = str(out.absolute())
    try:
        from trackio.sqlite_storage import SQLiteStorage
    except ImportError as error:
        raise missing("trackio", error) from error
    if "rollbook" in SQLiteStorage.get_projects() and run.name in SQLiteStorage.get_runs("rollbook"):
        raise twice(run, out)
    SQLiteStorage.bulk_log(project="rollbook", run=run.name, metrics_list=[dict(row.values) for row in run.rows],
                           steps=[row.step for row in run.rows], timestamps=[_iso(row.time_s) for row in run.rows],
                           config=dict(run.settings))
    return out


def _iso(seconds: float) -> str:
    from datetime import UTC, datetime
    return datetime.fromtimestamp(seconds, UTC).isoformat()
