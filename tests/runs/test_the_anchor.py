"""The anchor of a step is the policy before its first update, for every minibatch; a replay scores it from there too.

The same stage forgets its optimizer's moments at every publication and keeps its norms frozen; a replay does both as well.
"""

import dataclasses

import pytest
from attacked import quick_recipe, rows
from safetensors.torch import load
from small_runs import Quiet

from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.orchestration.run import run_recipe
from rollbook.records import Batch, Update
from rollbook.training.optimizer import Optimizer

GRPO = {"kind": "Grpo", "low": 0.2, "high": 0.2, "beta": 0.04, "credit": {"kind": "GroupNormalized", "eps": 1e-6, "ddof": 1}}


@pytest.fixture(scope="module")
def forgetful(small_run, tmp_path_factory):
    """A run of two policy steps that reset their optimizer; what the optimizer had counted and held each time it forgot."""
    recipe = quick_recipe(small_run.parent / "warm" / "checkpoints" / "cold_start")
    stage = recipe.settings.stages["rl"]
    stage = dataclasses.replace(stage, objective=GRPO, optimizer_reset="publication",
                                optimizer=dataclasses.replace(stage.optimizer, frozen=("*norm*",)))
    settings = dataclasses.replace(recipe.settings, stages={**recipe.settings.stages, "rl": stage})
    out, forgot, plain = tmp_path_factory.mktemp("forgetful") / "run", [], Optimizer.forget

    def forget(optimizer):
        held = len(optimizer.state())
        plain(optimizer)
        forgot.append((optimizer.steps, held > 1, len(optimizer.state()) > 1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Optimizer, "forget", forget)
        assert run_recipe(dataclasses.replace(recipe, settings=settings), out, Quiet()) == 0
    return out, forgot


def test_the_moments_of_a_stage_that_resets_are_forgotten_at_every_publication_and_the_schedule_counts_on(forgetful):
    run, forgot = forgetful
    with Ledger.open(run, write=False) as ledger:
        first = {batch.tensors: batch.scope.endswith("/0") for batch in ledger.records(Batch)}
        updates = list(ledger.records(Update))
    assert [update.index for update in updates] == list(range(1, len(updates) + 1))
    begun = [taken for taken, begins in enumerate(first.values()) if begins]            # updates taken before each step
    assert len(begun) == 2 < len(updates) and forgot == [(taken, taken > 0, False) for taken in begun]


def test_the_second_minibatch_of_a_step_is_trained_against_the_policy_before_the_first(forgetful):
    run, _ = forgetful
    with Ledger.open(run, write=False) as ledger:
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
    replayed = replay_run(run)
    assert replayed.same_bits and not replayed.mismatches
    assert rows(run)[11].result == "pass"


def test_without_a_reference_the_kl_to_the_start_is_measured_every_fourth_step_and_absent_between(small_run):
    with Ledger.open(small_run, write=False) as ledger:
        measured = [update.kl_nats is not None for update in ledger.records(Update)]
    assert len(measured) > 1 and measured == [True] + [False] * (len(measured) - 1)
