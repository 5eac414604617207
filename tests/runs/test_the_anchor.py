"""The anchor of a step is the policy before its first update, for every minibatch; a replay scores it from there too."""

import dataclasses

from attacked import quick_recipe, rows
from safetensors.torch import load
from small_runs import Quiet

from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.orchestration.run import run_recipe
from rollbook.records import Batch, Update

GRPO = {"kind": "Grpo", "low": 0.2, "high": 0.2, "beta": 0.04, "credit": {"kind": "GroupNormalized", "eps": 1e-6, "ddof": 1}}


def test_the_second_minibatch_of_a_step_is_trained_against_the_policy_before_the_first(small_run, tmp_path):
    recipe = quick_recipe(small_run.parent / "warm" / "checkpoints" / "cold_start")
    stage = dataclasses.replace(recipe.settings.stages["rl"], objective=GRPO)
    settings = dataclasses.replace(recipe.settings, stages={**recipe.settings.stages, "rl": stage})
    assert run_recipe(dataclasses.replace(recipe, settings=settings), tmp_path / "run", Quiet()) == 0
    with Ledger.open(tmp_path / "run", write=False) as ledger:
        moved = {}
        updates = {update.batch: update for update in ledger.records(Update)}
        measured = set()
        for batch in ledger.records(Batch):
            measured.add((batch.scope.endswith("/0"), updates[batch.id].kl_nats is not None))
            given, found = load(ledger.get(batch.tensors)), load(ledger.get(updates[batch.id].tensors))
            moved.setdefault(batch.scope.rpartition("/")[2], []).append(float((given["anchor"] - found["logp"]).abs().max()))
    assert measured == {(True, True), (False, False)}           # at the first minibatch of every step, and only there
    assert max(moved["0"]) == 0.0
    assert min(moved["1"]) > 0.0
    replayed = replay_run(tmp_path / "run")
    assert replayed.same_bits and not replayed.mismatches
    assert rows(tmp_path / "run")[11].result == "pass"


def test_without_a_reference_the_kl_to_the_start_is_measured_every_fourth_step_and_absent_between(small_run):
    with Ledger.open(small_run, write=False) as ledger:
        measured = [update.kl_nats is not None for update in ledger.records(Update)]
    assert len(measured) > 1 and measured == [True] + [False] * (len(measured) - 1)
