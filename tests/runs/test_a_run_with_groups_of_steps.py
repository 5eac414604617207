"""A run whose credit compares steps that saw the same state (GiGPO): the audit gives it again and finds what is not its rule."""

import dataclasses

import pytest
from test_a_run_in_an_environment import failed, ran

from rollbook.audit.replay import replay_run
from rollbook.experience import batches
from rollbook.ledger import Ledger
from rollbook.objectives.credit import StepGroups
from rollbook.records import Batch, Credit, RecipeError

RULE = "{kind: StepGroups, gamma: 0.5, omega: 1.0, normalizer: std, eps: 1.0e-6, ddof: 0}"
STEPPED = (f"stages.rl.objective={{kind: Grpo, low: 0.2, high: 0.2, beta: 0.01, credit: {RULE}}}", "stages.rl.per_task=8",
           "stages.rl.filter=none", "stages.rl.probe_every=0", "environment.definition=patient:Patient",
           "environment.max_turns=4")
ASSIGN = batches.assign_credit


def test_its_credit_is_given_again_and_its_updates_come_out_again(tmp_path):
    run = ran(tmp_path / "run", *STEPPED)
    with Ledger.open(run, write=False) as ledger:
        credits, trained = list(ledger.records(Credit)), list(ledger.records(Batch))
    assert trained and all(one.per == "token" and one.gamma == 0.5 for one in credits)
    assert failed(run) == {} and replay_run(run).mismatches == ()


def one_state(rule, measured):
    return ASSIGN(rule, dataclasses.replace(measured, step_state_K=measured.step_seq_K))        # every visit stands alone


def undiscounted(rule, measured):
    return ASSIGN(dataclasses.replace(rule, gamma=1.0) if isinstance(rule, StepGroups) else rule, measured)


@pytest.mark.parametrize("assign", [
    pytest.param(one_state, marks=pytest.mark.fault(stage=10, injection="steps of another state are compared with each other")),
    pytest.param(undiscounted, marks=pytest.mark.fault(
        stage=10, injection="a step's return is discounted otherwise than its rule says"))])
def test_steps_that_are_compared_otherwise_than_the_rule_says_are_found(tmp_path, monkeypatch, assign):
    monkeypatch.setattr(batches, "assign_credit", assign)
    assert "values of advantage of rl/000001/0 do not follow by StepGroups" in failed(ran(tmp_path / "run", *STEPPED))[10]


@pytest.mark.parametrize("setting", ["environment.reasoning=split", "environment={}"])
def test_steps_without_an_environment_or_over_several_contexts_are_refused(tmp_path, setting):
    with pytest.raises(RecipeError):
        ran(tmp_path / "run", *STEPPED, setting)
    assert not (tmp_path / "run").exists()
