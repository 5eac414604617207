"""Runs whose sampling is done by servers, whose training by ranks: the same stages, the same records."""

import dataclasses

import pytest
from like_vllm import LikeVllm
from small_runs import Quiet
from small_stages import ADAM, SAMPLED, SFT, pipeline, run

from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.models.load import load_policy
from rollbook.orchestration.run import run_recipe
from rollbook.records import Outcome, PolicyVersion, RecipeError, StageEnd, Trace, Unserved
from rollbook.records import recipe as r
from rollbook.records.asynchrony import AReaLCode, Asynchrony

CREDIT = {"kind": "GroupNormalized", "eps": 1e-6, "ddof": 0}
RL = r.PolicyGradient(
    policy="sft", tasks="train", steps=2, prompts=4, per_task=2, groups=4, max_waves=1, minibatches=1, max_policy_age=0,
    sampling=SAMPLED, optimizer=ADAM, max_batch_tokens=128, probe=0, probe_every=0, checkpoint_every=1, filter="none",
    objective={"kind": "Grpo", "low": 0.2, "high": 0.2, "beta": 0.0, "credit": CREDIT})
HOW = Asynchrony(throttle=AReaLCode(eta=1), concurrency=8, on_update="keep", late="wait", queue=8, stall_s=60.0)
STAGES = {"sft": dataclasses.replace(SFT, steps=20), "rl": RL}
ASYNC = {**STAGES, "rl": dataclasses.replace(RL, max_policy_age=1, asynchrony=HOW)}


def on(recipe, **changes):
    settings = recipe.settings
    return dataclasses.replace(recipe, settings=dataclasses.replace(settings, run=dataclasses.replace(settings.run, **changes)))


@pytest.mark.parametrize("stages", [pytest.param(STAGES, marks=pytest.mark.soak, id="in turns"),
                                    pytest.param(ASYNC, id="while training")])
def test_a_run_that_samples_on_a_server_passes_its_audit(stages, tmp_path):
    recipe = pipeline(**stages)
    with LikeVllm(load_policy(recipe.settings.model)) as server:
        out = run(on(recipe, engine=r.Vllm(servers=(server.url,), request_s=30.0, update_s=30.0)), tmp_path / "run")
    assert not [(row.name, row.record, row.evidence) for row in audit_run(out).rows if row.result == "fail"]
    with Ledger.open(out, write=False) as ledger:
        versions = list(ledger.records(PolicyVersion))
        assert all({one.consumer for one in version.acknowledged} == {"vllm x 1"} for version in versions)
        assert all(one.weights == version.published for version in versions for one in version.acknowledged)
        assert {outcome.code for outcome in ledger.records(Outcome)} <= {"accepted", "surplus", "cancelled", "uniform"}
        assert any(segment.version for trace in ledger.records(Trace) for segment in trace.policy_segments)


def test_a_server_that_dies_ends_the_run_with_its_code_and_leaves_it_to_be_resumed(tmp_path):
    recipe = pipeline(**STAGES)
    with LikeVllm(load_policy(recipe.settings.model)) as server:
        given = on(recipe, engine=r.Vllm(servers=(server.url,), request_s=5.0, update_s=5.0))

        class Killing(Quiet):
            def stage(self, name, index, total, steps):
                super().stage(name, index, total, steps)
                if name == "rl":
                    server.__exit__()
        with pytest.raises(Unserved) as caught:
            run_recipe(given, tmp_path / "run", Killing())
    assert caught.value.code == "unreachable" and caught.value.exit_code == 5
    with Ledger.open(tmp_path / "run", write=False) as ledger:
        assert [end.stage for end in ledger.records(StageEnd)] == ["sft"]


def test_generators_of_their_own_and_servers_are_not_mixed(tmp_path):
    stages = {**STAGES, "rl": dataclasses.replace(ASYNC["rl"], asynchrony=dataclasses.replace(HOW, runtime="processes"))}
    with pytest.raises(RecipeError, match="threads where servers sample"):
        run_recipe(on(pipeline(**stages), engine=r.Vllm(servers=("http://127.0.0.1:9",))), tmp_path / "run", Quiet())
    assert not (tmp_path / "run").exists()


@pytest.mark.soak
def test_a_run_trained_by_two_ranks_passes_its_audit_and_is_computed_again_within_rounding(tmp_path):
    out = run(on(pipeline(**STAGES), learner=r.Fsdp2(ranks=2)), tmp_path / "run")
    assert not [(row.name, row.record, row.evidence) for row in audit_run(out).rows if row.result == "fail"]
    report = replay_run(out)
    assert not report.mismatches and not report.exact
    assert any(one.what == "learner" for one in report.unlike)
