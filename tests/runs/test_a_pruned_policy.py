"""Depth and width pruned, then distilled: run, audit, replay, resumed, refused."""

import dataclasses

import pytest
from small_stages import ADAM, LABELS, SAMPLED, SFT, outcome, pipeline, run, run_in_pieces

from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.models.load import read_policy
from rollbook.models.weights import weight_hash
from rollbook.recipes import validate
from rollbook.records import Merged, PolicyVersion, RecipeError, StageEnd, problems
from rollbook.records import recipe as r

PRUNE = r.Prune(policy="sft", layers=(1,), intermediate=24)
STUDENT = r.Distill(policy="small", tasks="train", teachers={"*": "sft"}, direction="reverse", steps=3, prompts=3, per_task=2,
                    sampling=SAMPLED, optimizer=ADAM, max_batch_tokens=512, checkpoint_every=1)
RM = r.RewardModel(policy="small", data={"labels": 1.0}, loss="ranked", head_layers=1, steps=2, batch=3, max_batch_tokens=512,
                   optimizer=ADAM)
STAGES = {"sft": dataclasses.replace(SFT, steps=30), "small": PRUNE, "student": STUDENT,
          "labels": dataclasses.replace(LABELS, policy="student"), "rm": RM,
          "large": dataclasses.replace(SFT, policy="sft", steps=2)}


def recipe(**changes):
    made = pipeline(**{**STAGES, **changes})
    return dataclasses.replace(made, settings=dataclasses.replace(made.settings, model=dataclasses.replace(
        made.settings.model, layers=2)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(recipe(), tmp_path_factory.mktemp("pruned") / "run")


def test_a_pruned_pipeline_passes_its_audit_and_is_computed_again_bit_for_bit(whole):
    assert not [(row.name, row.record, row.evidence) for row in audit_run(whole).rows if row.result == "fail"]
    report = replay_run(whole)
    assert not report.mismatches and report.same_bits
    assert {one.stage for one in report.stages} == {"sft", "student", "rm", "large"}


def test_every_stage_leaves_the_shape_that_it_should(whole):
    shapes = {name: read_policy(whole / "checkpoints" / name, source=name).decoder
              for name in ("sft", "small", "student", "large")}
    assert {name: (one.architecture.layers, one.architecture.intermediate) for name, one in shapes.items()} == {
        "sft": (2, 64), "small": (1, 24), "student": (1, 24), "large": (2, 64)}
    with Ledger.open(whole, write=False) as ledger:
        merged = next(one for one in ledger.records(Merged) if one.stage == "small")
        ended = {one.stage: one.ended for one in ledger.records(StageEnd)}
        version = next(one for one in ledger.records(PolicyVersion) if one.id == ended["small"])
    assert merged.method == "pruned" and dict(merged.parts) == {ended["sft"]: 1.0}
    assert version.weights == merged.weights == weight_hash(shapes["small"].named_parameters())


def test_a_run_stopped_inside_the_distillation_of_a_smaller_model_ends_with_the_same_records(whole, tmp_path, monkeypatch):
    assert outcome(run_in_pieces(recipe(), tmp_path / "run", "student", 1, monkeypatch)) == outcome(whole)


@pytest.mark.parametrize(("changed", "said"), [
    ({"small": dataclasses.replace(PRUNE, layers=(1, 0))}, "layers must name layers to keep"),
    ({"small": dataclasses.replace(PRUNE, intermediate=0)}, "intermediate must be"),
    ({"small": dataclasses.replace(PRUNE, policy="nobody")}, "names no earlier stage"),
    ({"soup": r.Merge(policies={"sft": 1.0, "student": 1.0}, method="average")}, "another shape"),
])
def test_what_cannot_be_pruned_or_merged_is_refused_before_anything_starts(changed, said):
    found = problems.Problems()
    validate.check(recipe(**changed).settings, found)
    with pytest.raises(RecipeError, match=said):
        found.raise_any("this recipe")
