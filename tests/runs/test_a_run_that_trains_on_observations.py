"""A recipe may train on what the policy did not write, a fault to be measured: the audit says so, and finds it elsewhere."""

import pytest
import torch
from small_runs import Quiet
from test_a_run_in_an_environment import SMALL, failed

import rollbook.orchestration.step as stepping
from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.audit.stored import tensors
from rollbook.ledger import Ledger
from rollbook.orchestration.run import run_recipe
from rollbook.recipes import load, resolve
from rollbook.records import Batch, RollbookError, Segment, Trace
from rollbook.records.rollout import UNSAMPLED

OBJECTIVE = "{kind: Grpo, low: 0.2, high: 0.28, beta: 0.0, credit: {kind: GroupNormalized, eps: 1.0e-6, ddof: 0}}"
HERE = ("environment.misfit_penalty=0.0", f"stages.rl.objective={OBJECTIVE}", "stages.rl.filter=none")
# Enough for the model to write a call now and then; the objective has no reward to move by where it does not.
SURE = ("stages.cold_start.steps=60", "stages.cold_start.optimizer.learning_rate=5e-3", "stages.rl.prompts=4")


def ran(out, *overrides):
    given = (*HERE, *SURE, *overrides)
    replaced = {one.split("=")[0] for one in given}
    assert run_recipe(resolve(load("tool-calculator"), "tiny", (*(s for s in SMALL if s.split("=")[0] not in replaced), *given)),
                      out, Quiet()) == 0
    return out


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return ran(tmp_path_factory.mktemp("observations") / "run", "stages.rl.observation_loss=true")


def batches_of(out):
    with Ledger.open(out, write=False) as ledger:
        return [(one, tensors(ledger, one.tensors)) for one in ledger.records(Batch)]


def test_what_the_tool_wrote_is_in_the_batch_without_a_version(trained):
    version_T = torch.cat([held["version"] for _, held in batches_of(trained)])
    assert 0 < int((version_T == UNSAMPLED).sum()) < version_T.numel()
    assert all(batch.max_age == 0 for batch, _ in batches_of(trained))


def test_the_audit_of_such_a_run_is_clean_and_says_what_was_trained_on(trained):
    assert failed(trained) == {}
    assert "observations that no policy wrote" in {row.stage: row for row in audit_run(trained).rows}[10].evidence
    assert replay_run(trained).mismatches == ()


def test_the_same_batch_without_the_recipes_word_is_found(tmp_path, monkeypatch):
    real = stepping.packed_of

    def secretly(run, parts, credits):
        return real(run, [stepping.as_if_written(part) for part in parts], credits)

    monkeypatch.setattr(stepping, "packed_of", secretly)
    assert "train on the tokens the policy emitted" in {
        row.stage: row.remedy for row in audit_run(ran(tmp_path / "run")).rows if row.result == "fail"}[10]


def test_a_batch_that_leaves_out_what_the_recipe_wants_trained_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(stepping, "as_if_written", lambda part: part)
    assert 10 in failed(ran(tmp_path / "run", "stages.rl.observation_loss=true"))


@pytest.mark.parametrize(("setting", "words"), [
    ("environment.misfit_penalty=0.1", "misfit_penalty"),
    ("stages.rl.objective={kind: DrGrpo, low: 0.2, high: 0.28, aggregate: fixed_length, credit: {kind: GroupCentered}}",
     "fixed length"),
    ("stages.rl.objective={kind: Magistral, low: 0.2, high: 0.3, ratio_to: behavior, credit: {kind: MinibatchStandardized, "
     "eps: 1e-6, ddof: 0}}", "engine's log-probs")])
def test_what_observations_have_no_number_for_is_refused_before_a_run(tmp_path, setting, words):
    with pytest.raises(RollbookError, match=words):
        given = (*(one for one in HERE if one.split("=")[0] != setting.split("=")[0]), setting, "stages.rl.observation_loss=true")
        run_recipe(resolve(load("tool-calculator"), "tiny", (*SMALL, *given)), tmp_path / "run", Quiet())
    assert not (tmp_path / "run").exists()


def test_only_what_others_said_changes_its_owner_and_nothing_its_ids():
    said, told, again = (Segment(owner="policy", token_ids=(7, 8), logps=(-0.5, -0.25), version=3),
                         Segment(owner="tool", token_ids=(9,)),
                         Segment(owner="policy", token_ids=(2,), logps=(-1.0,), version=4))
    prompt = Segment(owner="user", token_ids=(1, 5))
    trace = Trace(attempt="a", task="t", group="g", envelope=None, segments=(prompt, said, told, again), stop_reason="terminal",
                  text="")
    other = trace.as_if_written()
    assert other.token_ids == trace.token_ids and other.segments[:2] == (prompt, said) and other.segments[3] == again
    assert other.segments[2] == Segment(owner="policy", token_ids=(9,), logps=(0.0,), version=UNSAMPLED)
