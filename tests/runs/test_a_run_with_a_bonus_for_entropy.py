"""A run whose objective rewards entropy: recorded as a term of its own, audited, computed again; another coefficient is found."""

import pytest
from small_runs import Quiet, small_recipe

from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.objectives.terms import EntropyBonus
from rollbook.orchestration.run import run_recipe
from rollbook.records import Batch, RollbookError, Update

DAPO = ("{kind: Dapo, low: 0.2, high: 0.2, credit: {kind: GroupNormalized, eps: 1e-4, ddof: 0}, overlong_filter: false, "
        "aggregate: token_mean}")
HELD = f"{{kind: WithEntropy, coefficient: 0.02, entropy_aggregate: token_mean, objective: {DAPO}}}"
QUICK = ("stages.rl.steps=2", "stages.rl.minibatches=2", "stages.rl.groups=4", "stages.rl.max_waves=4", "tasks.heldout=8",
         "stages.rl.probe_every=0", "stages.cold_start.steps=45", f"stages.rl.objective={HELD}")


def failed(out):
    return {row.stage: row.evidence for row in audit_run(out).rows if row.result == "fail"}


def test_the_bonus_is_a_term_of_the_batch_and_its_update_is_computed_again(tmp_path):
    assert run_recipe(small_recipe(*QUICK), tmp_path / "run", Quiet()) == 0
    with Ledger.open(tmp_path / "run", write=False) as ledger:
        batches, updates = list(ledger.records(Batch)), list(ledger.records(Update))
    assert batches
    assert all([(t.name, t.coefficient) for t in one.terms] == [("policy", 1.0), ("entropy", 0.02)] for one in batches)
    assert all(one.loss["entropy"] < 0 for one in updates)
    assert failed(tmp_path / "run") == {} and replay_run(tmp_path / "run").mismatches == ()


def test_a_bonus_of_another_size_than_the_recipes_is_found(tmp_path, monkeypatch):
    real = EntropyBonus.__call__
    monkeypatch.setattr(EntropyBonus, "__call__", lambda self, tokens: 3 * real(self, tokens))
    assert run_recipe(small_recipe(*QUICK), tmp_path / "run", Quiet()) == 0
    assert "the loss term entropy" in failed(tmp_path / "run")[11]


@pytest.mark.parametrize(("objective", "words"), [
    (HELD.replace("0.02", "-1"), "coefficient"), (HELD.replace("Dapo", "Nothing"), "objective.objective.kind"),
    (HELD.replace("entropy_aggregate: token_mean", "entropy_aggregate: mean"), "entropy_aggregate"),
    (f"{{kind: WithEntropy, coefficient: 1.0, entropy_aggregate: token_mean, objective: {HELD}}}", "one coefficient")])
def test_what_is_no_bonus_is_refused_before_anything_is_written(tmp_path, objective, words):
    with pytest.raises(RollbookError, match=words):
        run_recipe(small_recipe(*QUICK[:-1], f"stages.rl.objective={objective}"), tmp_path / "run", Quiet())
    assert not (tmp_path / "run").exists()
