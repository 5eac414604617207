"""What tests of several folders share: one small finished run that nobody may change."""

import os
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")       # as `make test` has it; several threads a test wait for each other

import torch

ROOT = Path(__file__).parent
os.environ["ROLLBOOK_PROTOCOLS"] = os.path.join(tempfile.gettempdir(), "no-registered-protocols")   # a developer's own are his


os.environ["ROLLBOOK_CACHE"] = os.path.join(tempfile.gettempdir(), f"rollbook-kept-by-tests-{os.getuid()}")

LONGEST = ("runs", "attacks")      # folders whose files take longest: begun first, so that none is left alone at the end


def pytest_collection_modifyitems(items):
    def place(item):
        folder = item.path.relative_to(ROOT).parts[0]
        return LONGEST.index(folder) if folder in LONGEST else len(LONGEST)
    items.sort(key=place)


@pytest.fixture(scope="session")
def steady():
    """The manifest's view of machine and code, read once: two runs of a session then have equal manifests."""
    from rollbook.ledger import environment_manifest
    return environment_manifest()


@pytest.fixture(scope="session")
def small_run(tmp_path_factory, steady):
    """A finished run of two supervised and four policy updates, which starts from a model that knows the format."""
    from attacked import quick_recipe
    from small_runs import Quiet, small_recipe

    from rollbook.orchestration.run import run_recipe
    folder = tmp_path_factory.mktemp("small")
    assert run_recipe(small_recipe("stages.rl.steps=1", "stages.rl.optimizer.warmup_steps=0"), folder / "warm", Quiet()) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rollbook.orchestration.run.environment_manifest", lambda: steady)
        recipe = quick_recipe(folder / "warm" / "checkpoints" / "cold_start")
        assert run_recipe(recipe, folder / "run", Quiet()) == 0
    return folder / "run"


@pytest.fixture(autouse=True)
def denormals_come_back():
    """A run flushes denormals for its whole process; tests of floats that follow need them."""
    yield
    torch.set_flush_denormal(False)
