"""PPO-ptx: a policy stage that trains demonstrations beside its batch, and ends with a moving average of its weights."""

import dataclasses

import pytest
import torch
from small_stages import ADAM, SAMPLED, SFT, outcome, pipeline, run, run_in_pieces

from rollbook.audit import mixing, stored
from rollbook.audit.detector import StoredStep
from rollbook.audit.index import RunIndex
from rollbook.audit.module_steps import ModuleSteps
from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.models.load import load_policy
from rollbook.models.weights import read_tensors
from rollbook.recipes import validate
from rollbook.records import Batch, Merged, PolicyVersion, RecipeError, ResolvedRecipe, StageEnd, Update, content_id, problems
from rollbook.records import recipe as r
from rollbook.training.averaging import Average

CREDIT = {"kind": "GroupNormalized", "eps": 1e-6, "ddof": 0}
PTX = r.PolicyGradient(
    policy="sft", tasks="train", steps=2, prompts=4, per_task=2, groups=4, max_waves=1, minibatches=2, max_policy_age=0,
    sampling=SAMPLED, optimizer=dataclasses.replace(ADAM, learning_rate=1e-3), max_batch_tokens=256, probe=0, probe_every=0,
    checkpoint_every=1, filter="none", pretraining=r.Pretraining(data={"sft": 1.0}, batch=5),
    ema=0.9, objective={"kind": "PpoPtx", "low": 0.2, "high": 0.2, "aggregate": "token_mean", "ptx_coefficient": 0.5,
               "ptx_aggregate": "token_mean", "credit": CREDIT})
KEPT = r.RejectionSampling(policy="sft", tasks="train", prompts=4, samples=2, keep="all", per_task=2, sampling=SAMPLED)
ALONE = dataclasses.replace(SFT, policy="sft", traces={}, data={"kept": 1.0})        # leaves no demonstrations of its own
STAGES = {"sft": dataclasses.replace(SFT, steps=20), "rl": PTX}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(pipeline(**STAGES), tmp_path_factory.mktemp("ptx") / "run")


def test_a_stage_with_pretraining_passes_its_audit_and_is_computed_again_bit_for_bit(whole):
    assert not [(row.name, row.record, row.evidence) for row in audit_run(whole).rows if row.result == "fail"]
    report = replay_run(whole)
    assert not report.mismatches and report.same_bits and [one.stage for one in report.stages] == ["sft", "rl"]


def test_every_optimizer_step_names_its_demonstrations_and_records_their_loss_at_its_weight(whole):
    with Ledger.open(whole, write=False) as ledger:
        batches = {one.id: one for one in ledger.records(Batch)}
        updates = list(ledger.records(Update))
        shown = [one.pretraining for one in batches.values()]
        assert len(updates) == 4 and all(len(names) == 5 for names in shown) and len({*shown}) == 4
        for update in updates:
            given = stored.tensors(ledger, batches[update.batch].tensors)
            logp_T = stored.tensors(ledger, update.tensors)["pretraining_logp"]
            assert given["pretraining_weight"].sum().item() == pytest.approx(1.0)
            assert update.loss["ptx"] == pytest.approx(-0.5 * float(given["pretraining_weight"] @ logp_T.double()), rel=1e-5)
            assert not given["weight"][1].any()         # no token of the batch itself counts in that term


def test_the_audit_finds_a_pretraining_loss_that_is_not_that_of_its_tensors(whole):
    with Ledger.open(whole, write=False) as ledger:
        update = next(iter(ledger.records(Update)))
        batch = next(one for one in ledger.records(Batch) if one.id == update.batch)
        given = {name: value.numpy() for name, value in stored.tensors(ledger, batch.tensors).items()}
        found = {name: value.numpy() for name, value in stored.tensors(ledger, update.tensors).items()}
    step = StoredStep(batch_id=batch.id, batch=batch, given=given, found=found, credit_id=None, credit=None,
                      update_id=update.id, update=update)
    spec = next(one for one in batch.terms if one.name == "ptx")
    due = batch.pretraining
    assert not list(mixing.faults(step, spec, due)) and not list(mixing.faults(step, spec, None))
    other = dataclasses.replace(step, update=dataclasses.replace(update, loss={**update.loss, "ptx": update.loss["ptx"] * 0.9}))
    heavier = dataclasses.replace(step, given={**given, "pretraining_weight": given["pretraining_weight"] * 2})
    more = (*due, due[0])
    assert all(list(mixing.faults(*one)) for one in ((other, spec, due), (heavier, spec, due), (step, spec, more),
                                                     (step, spec, due[::-1])))


def test_the_audit_knows_which_demonstrations_are_due_beside_every_optimizer_step(whole):
    with Ledger.open(whole, write=False) as ledger:
        index, steps = RunIndex(ledger), ModuleSteps()
        index.take("", next(ledger.records(ResolvedRecipe)))
        steps.demonstrated["sft"] = [content_id(one) for event in ledger.events("RecordTable")
                                     if event.body["name"] == "sft/demonstrations" for one in ledger.table_records(event)]
        batches = list(ledger.records(Batch))
        assert [steps.beside(index, one) for one in batches] == [list(one.pretraining) for one in batches]
        assert steps.beside(index, dataclasses.replace(batches[0], scope="rl/000002/1")) != list(batches[0].pretraining)


def test_the_stage_ends_with_the_moving_average_of_its_weights(whole):
    with Ledger.open(whole, write=False) as ledger:
        merged = next(ledger.records(Merged))
        versions = list(ledger.records(PolicyVersion))
        end = next(one for one in ledger.records(StageEnd) if one.stage == "rl")
    assert versions[-1].weights == merged.weights and versions[-1].window == (content_id(merged),)
    assert end.ended == versions[-1].id
    assert merged.decay == 0.9 and list(merged.parts) == [versions[-2].id] and versions[-2].weights != merged.weights
    began, ended = (read_tensors(whole / "checkpoints" / name) for name in ("sft", "rl"))
    moved = [name for name in began if (began[name] != ended[name]).any()]
    assert moved, "an average of steps that moved has moved"


def test_an_average_is_what_its_equation_says():
    decoder = load_policy(pipeline(**STAGES).settings.model).decoder
    average = Average(decoder, 0.9)
    first = [p.detach().clone() for p in decoder.parameters()]
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter += 1.0
    average.take(decoder)
    for mean, old in zip(average.module.parameters(), first, strict=True):
        assert torch.allclose(mean, 0.9 * old + 0.1 * (old + 1.0), atol=1e-6)


def test_a_run_stopped_inside_such_a_stage_ends_with_the_same_records(whole, tmp_path, monkeypatch):
    assert outcome(run_in_pieces(pipeline(**STAGES), tmp_path / "run", "rl", 1, monkeypatch)) == outcome(whole)


@pytest.mark.parametrize("wrong", [
    dataclasses.replace(PTX, pretraining=None),
    dataclasses.replace(PTX, pretraining=r.Pretraining(data={}, batch=5)),
    dataclasses.replace(PTX, pretraining=r.Pretraining(data={"nothing": 1.0}, batch=5)),
    dataclasses.replace(PTX, pretraining=r.Pretraining(data={"sft": 1.0}, batch=0)),
    dataclasses.replace(PTX, pretraining=r.Pretraining(data={"alone": 1.0}, batch=5)),
    dataclasses.replace(PTX, objective={"kind": "Ppo", "low": 0.2, "high": 0.2, "aggregate": "token_mean", "credit": CREDIT}),
])
def test_a_term_without_data_and_data_without_a_term_are_refused_before_anything_starts(wrong):
    found = problems.Problems()
    validate.check(pipeline(sft=SFT, kept=KEPT, alone=ALONE, rl=wrong).settings, found)
    with pytest.raises(RecipeError, match=r"pretraining"):
        found.raise_any("this recipe")
