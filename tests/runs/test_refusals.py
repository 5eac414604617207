"""What cannot run is refused in one clear message, with exit code 2, and nothing is left behind."""

import pytest
from click.testing import CliRunner
from small_runs import small_settings

from rollbook.cli import main


@pytest.mark.parametrize(("override", "words"), [
    ("stages.rl.max_policy_age=1", "a max_policy_age above 0 come together"),
    ("stages.rl.sampling.top_p=0.9", "must draw from all ids"),
    ("run.device=cuda:64", "sees no such accelerator"),
    ("run.device=mps", "fp64"),
    ("run.threads=4096", "exceeds the cores"),
    ("model.context=40", "context"),
    ("tasks.families.add_sub.parameters.max_operand=4", "on both sides, and held-out"),
    ("stages.rl.per_task=1", "per_task"),
    ("stages.rl.minibatches=3", "minibatches"),
    ("stages.rl.objective.hgih=0.3", "high"),
    ("stages.rl.steps=many", "integer"),
])
def test_an_impossible_recipe_is_refused_and_leaves_no_folder(tmp_path, override, words):
    arguments = ["run", "magistral-small", "--scale", "tiny", "--out", str(tmp_path / "run")]
    for value in small_settings(override):
        arguments += ["--set", value]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert not list(tmp_path.iterdir())


def test_a_missing_model_is_refused_and_leaves_no_folder(tmp_path):
    arguments = ["run", "magistral-small", "--set", "model.path=./no-such-model", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and "no model found" in result.output
    assert not list(tmp_path.iterdir())
