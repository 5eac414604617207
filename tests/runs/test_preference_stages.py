"""Comparisons, reward models, rejection sampling, preference optimisation and merges: run, audit, replay, resume."""

import dataclasses

import pytest
from small_stages import ADAM, LABELS, SAMPLED, SFT, outcome, pipeline, run, run_in_pieces

from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.records import Agreement, BestOf, Curation, Demonstration, EvalReport, Ranking
from rollbook.records import recipe as r

RM = r.RewardModel(policy="sft", data={"labels": 1.0}, loss="ranked", head_layers=2, steps=3, batch=4, max_batch_tokens=512,
                   optimizer=dataclasses.replace(ADAM, frozen=("body.model.embed_tokens.*",)))
STAGES = {
    "sft": SFT, "labels": LABELS, "rm": RM,
    "best": r.RejectionSampling(policy="sft", tasks="train", prompts=8, samples=4, keep="best", per_task=1, sampling=SAMPLED,
                                scorer="rm"),
    "again": dataclasses.replace(SFT, policy="sft", traces={}, data={"best": 1.0}, steps=3, batch=4),
    "dpo": r.Preference(policy="again", data={"labels": 1.0}, loss=r.Dpo(beta=0.1), by="score", steps=3, batch=4, optimizer=ADAM,
                        max_batch_tokens=512, reference="sft", merging=r.Merging(rule="dare", base="start", alpha=1e-4, keep=0.9,
                                                                                 seed=1)),
    "pick": r.Evaluate(policy="sft", sampling=SAMPLED, trials=3, seed=5, scorer="rm"),
    "soup": r.Merge(policies={"again": 1.0, "dpo": 1.0}, method="average"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(pipeline(**STAGES), tmp_path_factory.mktemp("preference") / "run")


def test_a_pipeline_of_preference_stages_passes_its_audit(whole):
    rows = audit_run(whole).rows
    assert not [(row.name, row.record, row.evidence) for row in rows if row.result == "fail"]


def test_every_stage_that_trains_is_computed_again_bit_for_bit(whole):
    report = replay_run(whole)
    assert not report.mismatches and report.same_bits
    assert [one.stage for one in report.stages] == ["sft", "rm", "again", "dpo"]


@pytest.mark.parametrize("stage", ["dpo", *(pytest.param(one, marks=pytest.mark.soak) for one in ("again", "rm"))])
def test_a_run_stopped_in_the_middle_of_a_stage_ends_with_the_same_records(whole, tmp_path, monkeypatch, stage):
    assert outcome(run_in_pieces(pipeline(**STAGES), tmp_path / "run", stage, 2, monkeypatch)) == outcome(whole)


def test_the_answers_that_are_kept_are_the_ones_that_are_learnt(whole):
    with Ledger.open(whole, write=False) as ledger:
        kept = next(ledger.records(Curation))
        shown = [one for one in ledger.records(Demonstration) if one.author == "policy:sft"]
        tasks = {trace.id: trace.task for trace, _, _ in ledger.read_traces("best")}
    assert len(kept.kept) == len(shown) == 8 and kept.scorer is not None
    for trace in kept.kept:
        assert kept.ratings[trace] == max(rating for other, rating in kept.ratings.items() if tasks[other] == tasks[trace])


def test_best_of_n_is_reported_by_n_beside_one_answer_and_the_best_possible(whole):
    with Ledger.open(whole, write=False) as ledger:
        best, report = next(ledger.records(BestOf)), next(one for one in ledger.records(EvalReport) if one.stage == "pick")
    assert list(best.picked) == list(best.possible) == ["1", "2", "3"] and len(best.ratings) == 48
    assert best.picked["1"] == pytest.approx(report.accuracy.estimate) == pytest.approx(best.possible["1"])
    assert all(best.picked[n] <= best.possible[n] for n in best.picked)
    assert best.gain.estimate == pytest.approx(best.picked["3"] - best.picked["1"])


def test_rankings_kept_apart_are_measured_and_train_nothing(whole):
    with Ledger.open(whole, write=False) as ledger:
        rankings = list(ledger.records(Ranking))
        agreement = next(ledger.records(Agreement))
    assert agreement.rankings == sum(one.heldout for one in rankings) == 3
    assert 0 <= agreement.with_truth <= agreement.known
