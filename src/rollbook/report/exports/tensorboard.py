"""TensorBoard event files; the only module that imports tensorboard."""

from __future__ import annotations

from pathlib import Path

from rollbook.report.exports.series import Handed, missing, twice


def write(run: Handed, out: Path) -> Path:
    """One event file with every number at its step and time; `tensorboard --logdir OUT` reads it."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise missing("tensorboard", error) from error
    folder = out / run.name
    if folder.exists():
        raise twice(run, folder)
    writer = EventFileWriter(str(folder))
    for row in run.rows:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
        writer.add_event(Event(wall_time=row.time_s, step=row.step, summary=Summary(value=values)))
    writer.close()
    return folder
