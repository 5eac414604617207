"""The model that attacked runs begin with."""

import pytest
from small_runs import Quiet, small_recipe

from rollbook.orchestration.run import run_recipe


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """A tiny model that has learned the format and some sums: the checkpoint of a small run's cold start."""
    out = tmp_path_factory.mktemp("warm") / "run"
    assert run_recipe(small_recipe("stages.rl.steps=1", "stages.rl.optimizer.warmup_steps=0"), out, Quiet()) == 0
    return out / "checkpoints" / "cold_start"
