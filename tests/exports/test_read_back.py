"""What is handed on is read back by the tool it was handed to: every number at its step. Run by `make test-exports`."""

import math
from pathlib import Path

import pytest
from inspected_run import whole_run

from rollbook.report.exports import mlflow, opentelemetry, tensorboard, trackio, wandb
from rollbook.report.exports.series import handed

pytestmark = pytest.mark.exports


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("handed") / "run"
    whole_run(folder)
    return handed(folder)


def numbers(run, *, plain=lambda name: name):
    """(name, step, value) of everything that was handed on, with the names as a tool shortens them."""
    return sorted((plain(name), row.step, value) for row in run.rows for name, value in row.values.items())


def same(found, wanted):
    found = sorted(found)
    assert [one[:2] for one in found] == [one[:2] for one in wanted]
    assert all(math.isclose(a[2], b[2], rel_tol=1e-6) for a, b in zip(found, wanted, strict=True))      # float32 in some


def test_wandbs_own_reader_finds_every_number_of_an_offline_run(run, tmp_path):
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore  # until 0.25; later versions read in a program of their own

    (file,) = wandb.write(run, tmp_path).glob("*.wandb")
    store = DataStore()
    store.open_for_scan(str(file))
    records = []
    while (data := store.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        records.append(record)
    told = {item.key: item.value_json for record in records if record.HasField("run")
            for item in record.run.config.update}
    assert told["recipe"] == '"magistral-small"' and set(run.settings) <= set(told)
    assert [record.run.display_name for record in records if record.HasField("run")][:1] == [run.name]
    found = []
    for record in records:
        if record.HasField("history"):
            row = {(item.key or "/".join(item.nested_key)): float(item.value_json) for item in record.history.item}
            step = int(row.pop("step"))
            found += [(name, step, value) for name, value in row.items() if not name.startswith("_") and name != "recorded_s"]
    same(found, numbers(run))
    assert any(record.HasField("exit") and record.exit.exit_code == 0 for record in records)


def test_tensorboard_reads_every_number(run, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    held = EventAccumulator(str(tensorboard.write(run, tmp_path)), size_guidance={"scalars": 0}).Reload()
    same([(tag, event.step, event.value) for tag in held.Tags()["scalars"] for event in held.Scalars(tag)], numbers(run))


def test_mlflow_reads_every_number(run, tmp_path):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{mlflow.write(run, tmp_path)}")
    (one,) = client.search_runs([client.get_experiment_by_name("rollbook").experiment_id])
    names = one.data.metrics
    found = [(name, point.step, point.value) for name in names for point in client.get_metric_history(one.info.run_id, name)]
    same(found, numbers(run, plain=mlflow._plain))
    assert one.info.status == "FINISHED" and one.data.params["recipe"] == "magistral-small"


def test_trackio_reads_every_number(run, tmp_path):
    trackio.write(run, tmp_path)
    from trackio.sqlite_storage import SQLiteStorage

    logs = SQLiteStorage.get_logs("rollbook", run.name)
    same([(name, row["step"], value) for row in logs for name, value in row.items() if name not in ("step", "timestamp")],
         numbers(run))


def test_the_opentelemetry_document_holds_every_number(run, tmp_path):
    import json

    document = json.loads(Path(opentelemetry.write(run, tmp_path)).read_text())
    found = [(metric["name"], point["attributes"]["step"], point["value"])
             for resource in document["resource_metrics"] for scope in resource["scope_metrics"] for metric in scope["metrics"]
             for point in metric["data"]["data_points"]]
    same(found, numbers(run))
