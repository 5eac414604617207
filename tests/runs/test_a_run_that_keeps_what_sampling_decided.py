"""Keep Sampling Mask and Keep Routing: the learner scores over the ids the engine drew from, along the experts it took."""

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from small_runs import Quiet, small_recipe

import rollbook.training.policy as learning
from rollbook.audit import deep_support
from rollbook.audit.export import export_run
from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.orchestration.run import run_recipe
from rollbook.records import Kept, RollbookError, StepReport
from rollbook.rollouts.solve import Rollouts

CUT = ("stages.rl.sampling.top_p=0.9", "stages.rl.sampling.top_k=12", "stages.rl.sampling_mask=true")
SPARSE = ("model.architecture=qwen3_moe", "model.experts=4", "model.experts_per_token=2", "stages.rl.routing=sampled")
QUICK = ("stages.rl.steps=2", "stages.rl.minibatches=2", "stages.rl.groups=4", "stages.rl.max_waves=4", "tasks.heldout=8",
         "stages.rl.probe_every=0", "stages.cold_start.steps=45", "stages.rl.filter=none", "run.dtype=float32")


def ran(out, *overrides):
    assert run_recipe(small_recipe(*QUICK, *CUT, *SPARSE, *overrides), out, Quiet()) == 0
    return out


def failed(out, sample=0):
    return {row.stage: row.evidence for row in audit_run(out, sample=sample).rows if row.result == "fail"}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return ran(tmp_path_factory.mktemp("kept") / "run")


def test_its_audit_is_clean_also_where_models_are_run_again_and_its_updates_come_out_bit_for_bit(kept):
    assert failed(kept, sample=8) == {} and replay_run(kept).mismatches == ()


def test_tokens_drawn_from_other_ids_than_the_envelope_leaves_are_found_where_models_are_run_again(kept, monkeypatch):
    real = deep_support.misplaced
    monkeypatch.setattr(deep_support, "misplaced", lambda logp, ids, envelope: real(logp, ids, replace(envelope, top_p=0.6)))
    assert "drew from other ids than its envelope leaves" in failed(kept, sample=8)[7]


def test_its_bundle_says_what_sampling_decided(kept, tmp_path):
    export_run(kept, tmp_path / "bundle")
    table = pq.read_table(tmp_path / "bundle" / "06_rollouts" / "trajectories.parquet", columns=["attempt", "kept"]).to_pylist()
    own = [json.loads(row["kept"]) for row in table if row["attempt"].startswith("rl/")]
    assert own and all(one["routes"] and one["counts"] for one in own)
    assert all(row["kept"] is None for row in table if not row["attempt"].startswith("rl/"))


def test_engine_and_learner_agree_on_tokens_drawn_from_a_part_of_the_vocabulary(kept):
    with Ledger.open(kept, write=False) as ledger:
        reports = [one for one in ledger.records(StepReport) if one.updates]
        traces = [trace for event in ledger.events("TraceTable") if event.body["name"].startswith("rl/")
                  for _, (trace, _, _) in ledger.rows(event)]
    assert reports and all(one.metrics["policy/mismatch_abs_nats"] < 1e-5 for one in reports)
    assert all(trace.kept is not None and trace.kept.routes and trace.kept.counts for trace in traces)
    assert max(count for trace in traces for count in trace.kept.counts) <= 12


def test_a_learner_that_forgets_what_tokens_were_drawn_from_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "sampled_supports", lambda traces: None)
    assert "differ from the trainer's" in failed(ran(tmp_path / "run"))[12]


def test_a_trajectory_that_keeps_other_ids_than_its_tokens_were_drawn_from_is_found(tmp_path, monkeypatch):
    real = Rollouts._kept

    def one_less(self, completion):
        held = real(self, completion)
        return held if held is None or not held.counts else replace(
            held, support=Kept.of(ids=held.ids[1:], counts=()).support, counts=(*held.counts[:-1], held.counts[-1] - 1))

    monkeypatch.setattr(Rollouts, "_kept", one_less)
    try:
        found = failed(ran(tmp_path / "run"))
    except RollbookError as error:                  # the learner meets a token outside of its own support before an audit does
        assert "support" in str(error)
    else:
        assert 7 in found


@pytest.mark.parametrize(("settings", "words"), [
    (("stages.rl.sampling_mask=true",), "sampling from all ids"), (CUT[:2], "sampling_mask=true"),
    (("stages.rl.routing=sampled",), "model with experts"),
    ((*CUT, "run.learner={kind: Fsdp2, ranks: 2}"), "ranks")])
def test_what_cannot_be_kept_or_told_is_refused_before_a_run(tmp_path, settings, words):
    with pytest.raises(RollbookError, match=words):
        run_recipe(small_recipe(*QUICK, *settings), tmp_path / "run", Quiet())
    assert not (tmp_path / "run").exists()
