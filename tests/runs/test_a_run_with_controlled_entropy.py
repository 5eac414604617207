"""A run whose bonus for entropy is controlled, interrupted and resumed: alpha stands in every batch and is audited."""

import pytest
from small_runs import Quiet, small_recipe

from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.orchestration.run import resume_run, run_recipe
from rollbook.records import Batch, RollbookError

DAPO = ("{kind: Dapo, low: 0.2, high: 0.2, credit: {kind: GroupNormalized, eps: 1e-4, ddof: 0}, overlong_filter: false, "
        "aggregate: token_mean}")
CONTROLLED = ("{kind: ControlledEntropy, start: 0.01, step: 0.02, maximum: 0.04, target: 100, entropy_aggregate: token_mean, "
              f"objective: {DAPO}}}")
QUICK = ("stages.rl.steps=2", "stages.rl.minibatches=2", "stages.rl.groups=4", "stages.rl.max_waves=4", "tasks.heldout=8",
         "stages.rl.probe_every=0", "stages.rl.checkpoint_every=1", "stages.cold_start.steps=45")


class Stops(Quiet):
    """Ends the program at the last step of the policy stage."""

    at = ""

    def stage(self, name, index, total, steps):
        self.at = name

    def step(self, step, metrics):
        if self.at == "rl" and step == 2:
            raise KeyboardInterrupt


def test_alpha_rises_below_the_target_goes_on_after_a_kill_and_is_the_coefficient_of_every_steps_bonus(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_recipe(small_recipe(*QUICK, f"stages.rl.objective={CONTROLLED}"), tmp_path / "run", Stops())
    resume_run(tmp_path / "run", Quiet())
    with Ledger.open(tmp_path / "run", write=False) as ledger:
        found = list(ledger.records(Batch))
    assert [one.control.alpha for one in found] == pytest.approx([0.01, 0.03, 0.04, 0.04])
    assert all(one.terms[-1].coefficient == one.control.coefficient == one.control.alpha for one in found)
    assert {row.stage: row.evidence for row in audit_run(tmp_path / "run").rows if row.result == "fail"} == {}
    assert replay_run(tmp_path / "run").mismatches == ()


@pytest.mark.parametrize(("objective", "words"), [
    (CONTROLLED.replace("start: 0.01", "start: 0.05"), "begins within its bounds"),
    (CONTROLLED.replace("step: 0.02, ", ""), "step"),
    (f"{{kind: WithEntropy, coefficient: 1.0, entropy_aggregate: token_mean, objective: {CONTROLLED}}}", "one coefficient")])
def test_a_controller_that_cannot_be_is_refused_before_anything_is_written(tmp_path, objective, words):
    with pytest.raises(RollbookError, match=words):
        run_recipe(small_recipe(*QUICK, f"stages.rl.objective={objective}"), tmp_path / "run", Quiet())
    assert not (tmp_path / "run").exists()
