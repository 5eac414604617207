"""A sparse model whose later minibatches replay the experts of the step's beginning: recorded, audited, computed again."""

from small_runs import Quiet, small_recipe

from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.orchestration.run import run_recipe
from rollbook.records import Batch


def test_routes_are_stored_with_the_batches_that_replay_them_and_the_run_is_computed_again(tmp_path):
    from safetensors.torch import load

    recipe = small_recipe("model.architecture=qwen3_moe", "model.experts=4", "model.experts_per_token=2", "stages.rl.steps=2",
                          "stages.rl.minibatches=2", "stages.rl.routing=replayed", "stages.rl.groups=4", "stages.rl.max_waves=4",
                          "stages.rl.probe_every=0", "tasks.heldout=8", "stages.cold_start.steps=45")
    assert run_recipe(recipe, tmp_path / "run", Quiet()) == 0
    with Ledger.open(tmp_path / "run", write=False) as ledger:
        stored = [load(ledger.get(batch.tensors)) for batch in ledger.records(Batch)]
    assert ["routes" in tensors for tensors in stored] == [number % 2 == 1 for number in range(len(stored))]
    assert len(stored) >= 2
    assert [(row.stage, row.evidence) for row in audit_run(tmp_path / "run").rows if row.result == "fail"] == []
    assert replay_run(tmp_path / "run").mismatches == ()
