"""What a run continues from is exactly what was saved, or resuming is refused."""

import dataclasses
import shutil

import pytest
from small_runs import Quiet
from small_stages import SFT, outcome, pipeline, run

from rollbook.orchestration import run as producer
from rollbook.orchestration.run import resume_run, run_recipe
from rollbook.records import LedgerError, Stopped

RECIPE = pipeline(sft=dataclasses.replace(SFT, steps=4))
STATE = "checkpoints/.state"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped after two of four steps."""
    out, inner = tmp_path_factory.mktemp("stopped") / "run", producer.run_stage

    class Stopping(Quiet):
        def step(self, step, metrics):
            if step == 2:
                sessions[0].stop = True
    sessions = []

    def watched(session, *rest):
        sessions.append(session)
        return inner(session, *rest)
    with pytest.MonkeyPatch.context() as m:
        m.setattr(producer, "run_stage", watched)
        with pytest.raises(Stopped):
            run_recipe(RECIPE, out, Stopping())
    return out


@pytest.mark.parametrize(("file", "harm"), [
    ("policy.safetensors", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    ("policy.optimizer.safetensors", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    ("policy.safetensors", lambda data: data[:len(data) // 2]), ("policy.safetensors", lambda data: None),
    ("state.json", lambda data: data[:-9]), ("state.json", lambda data: b'{"step": 3}')])
def test_a_state_that_is_not_what_was_saved_is_refused(stopped, tmp_path, file, harm):
    shutil.copytree(stopped, tmp_path / "run")
    place = tmp_path / "run" / STATE / file
    harmed = harm(place.read_bytes())
    if harmed is None:
        place.unlink()
    else:
        place.write_bytes(harmed)
    with pytest.raises(LedgerError, match="continue from is damaged"):
        resume_run(tmp_path / "run", Quiet())


def test_without_the_damaged_state_the_stage_begins_again_and_ends_the_same(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / STATE)
    assert resume_run(tmp_path / "run", Quiet()) == 0
    assert outcome(tmp_path / "run") == outcome(run(RECIPE, tmp_path / "whole"))
