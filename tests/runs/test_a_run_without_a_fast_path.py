"""A model without a fast path goes through a whole run, its interruption, its audit, and ends as a folder transformers loads."""

import dataclasses

import pytest
from click.testing import CliRunner
from other_models import other_model, plain_model
from small_runs import Quiet, small_recipe

from rollbook.audit.deep import deep_findings
from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.cli import main
from rollbook.ledger import Ledger
from rollbook.models import load
from rollbook.models.weights import weight_hash
from rollbook.orchestration import stages
from rollbook.orchestration.run import resume_run, run_recipe
from rollbook.records import PolicyVersion, Stopped, Update
from rollbook.records.recipe import Pretrained

SHORT = ("run.dtype=float32", "stages.cold_start.steps=60", "stages.cold_start.batch=8", "stages.rl.steps=2",
         "stages.rl.optimizer.warmup_steps=0", "stages.rl.checkpoint_every=1", "stages.rl.probe_every=0", "stages.rl.probe=0")


def recipe(folder, *overrides):
    found = small_recipe(*SHORT, *overrides)
    model = Pretrained(path=str(folder), context=found.settings.model.context)
    return dataclasses.replace(found, settings=dataclasses.replace(found.settings, model=model))


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return other_model("gpt2", tmp_path_factory.mktemp("gpt2"), spread=1.0)


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    progress = Quiet()
    folder = tmp_path_factory.mktemp("run") / "whole"
    with pytest.MonkeyPatch.context() as m:
        m.setattr(load, "_told", set())
        assert run_recipe(recipe(start), folder, progress) == 0
    return folder, progress


def versions(run):
    with Ledger.open(run, write=False) as ledger:
        return list(ledger.records(PolicyVersion)), ledger.semantic_hash(), list(ledger.records(Update))


def test_it_says_once_that_transformers_computes_the_model(whole):
    _, progress = whole
    assert [note for note in progress.notes if "gpt2" in note and "transformers" in note and "fast path" in note]
    assert sum("fast path" in note for note in progress.notes) == 1


def test_the_last_checkpoint_is_the_published_policy_and_transformers_loads_it(whole):
    run, _ = whole
    published, _, updates = versions(run)
    assert updates                                                      # reinforcement learning moved it
    model = plain_model(run / "checkpoints" / "rl")
    assert weight_hash(model.named_parameters()) == published[-1].weights
    assert model.config.model_type == "gpt2" and model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_its_audit_is_clean(whole):
    run, _ = whole
    rows = audit_run(run).rows
    assert not [row for row in rows if row.result == "fail"] and sum(row.result == "pass" for row in rows) >= 10, rows
    found = deep_findings(run, sample=6)
    assert not [one for one in found if one.result == "fail"], found
    assert {one.stage for one in found if one.result == "pass"} >= {7, 11, 12}


def test_its_updates_are_computed_again_bit_for_bit(whole):
    run, _ = whole
    assert replay_run(run).same_bits


@pytest.mark.soak
def test_stopped_and_resumed_it_ends_like_an_undisturbed_run(start, whole, tmp_path, monkeypatch):
    sessions = []
    inner = stages.run_stage

    def remembering(session, *rest):
        sessions.append(session)
        inner(session, *rest)
    monkeypatch.setattr("rollbook.orchestration.run.run_stage", remembering)
    progress = Quiet()
    told = progress.step

    def stop_there(number, metrics):
        told(number, metrics)
        sessions[-1].stop = progress.steps[-1] == ("rl", 1)
    progress.step = stop_there
    with pytest.raises(Stopped):
        run_recipe(recipe(start), tmp_path / "run", progress)
    assert resume_run(tmp_path / "run", Quiet()) == 0
    assert versions(tmp_path / "run")[1] == versions(whole[0])[1]


def test_an_encoder_decoder_model_is_refused_with_exit_code_2_and_leaves_no_folder(tmp_path):
    from transformers import T5Config
    other_model("gpt2", tmp_path / "m")
    T5Config().save_pretrained(tmp_path / "m")
    result = CliRunner().invoke(main, ["run", "magistral-small", "--out", str(tmp_path / "run"),
                                       "--set", f"model.path={tmp_path / 'm'}"])
    assert result.exit_code == 2 and "decoder-only" in result.output, result.output
    assert not (tmp_path / "run").exists()
