"""The tiny recipes learn: held-out accuracy rises by reinforcement learning alone."""

import pytest
from small_runs import Quiet

from rollbook.ledger import Ledger
from rollbook.orchestration.run import run_recipe
from rollbook.recipes import load, resolve
from rollbook.records import Comparison, EvalReport, StepReport, content_id

QUICK = ("tasks.heldout=384", "run.threads=1", "reward.verify_workers=1", "stages.rl.steps=14")


@pytest.mark.parametrize(("recipe", "settings"), [
    ("dapo", QUICK), pytest.param("magistral-small", (), marks=pytest.mark.soak)])
def test_reinforcement_learning_raises_the_tiny_models_heldout_accuracy(tmp_path, recipe, settings):
    assert run_recipe(resolve(load(recipe), "tiny", settings), tmp_path / "run", Quiet()) == 0
    with Ledger.open(tmp_path / "run", write=False) as ledger:
        reports = {content_id(report): report for report in ledger.records(EvalReport)}
        gain = next(c.gain for c in ledger.records(Comparison) if reports[c.after].stage == "final_eval")
        steps = list(ledger.records(StepReport))
    assert gain.estimate > 0 and gain.low > 0
    assert any(step.metrics["update/clip_fraction"] > 0 for step in steps)      # several minibatches: the clip is alive
    assert all(abs(step.metrics["policy/mismatch_k3_nats"]) < 1e-2 for step in steps)
