"""The deep audit: environments, judges, models and gradients run again on a sample agree with an honest run only."""

import dataclasses
import shutil

import pytest
import torch
from attacked import quick_recipe
from forging import forge
from small_runs import Quiet

from rollbook.audit.deep import deep_findings
from rollbook.ledger import Ledger
from rollbook.orchestration.run import run_recipe
from rollbook.records import LedgerError


def found(run, sample=24):
    return {finding.stage: finding for finding in deep_findings(run, sample=sample)}


def model_of(run):
    with Ledger.open(run, write=False) as ledger:
        return ledger.manifest["model"]


def test_an_honest_run_passes_in_every_stage_that_can_be_executed_again(small_run):
    told = []
    findings = deep_findings(small_run, sample=24, told=told.append)
    assert {finding.stage: finding.result for finding in findings} == dict.fromkeys((4, 6, 7, 8, 11, 12), "pass")
    assert told and "24 trajectories judged again" in next(one.evidence for one in findings if one.stage == 8)
    assert "weights are not stored" in next(one.evidence for one in findings if one.stage == 7)
    assert deep_findings(small_run, sample=24) == findings


def test_a_judge_that_paid_for_wrong_answers_while_it_ran_is_found(small_run, tmp_path, monkeypatch):
    from rollbook.rewards import judge
    real = judge.graded_vector
    with monkeypatch.context() as patch:
        patch.setattr(judge, "graded_vector", lambda *, correct, length, **rest: real(
            correct=correct or length % 2 == 0, length=length, **rest))
        assert run_recipe(quick_recipe(model_of(small_run)), tmp_path / "run", Quiet()) == 0
    finding = found(tmp_path / "run", sample=200)[8]
    assert finding.result == "fail" and finding.record.startswith("Trace:") and "judged again" in finding.evidence


def test_log_probs_of_other_weights_and_a_gradient_of_another_loss_are_found(small_run, tmp_path, monkeypatch):
    from rollbook.rollouts.engines import stream
    from rollbook.training import policy
    take, total = stream.Stream._take, policy.total_loss

    def flattering(self, rows, logits):
        tokens = take(self, rows, logits)
        for row in rows:
            row.logps[-1] = torch.tensor(row.logps[-1] / 2 - 0.125).item()
        return tokens
    with monkeypatch.context() as patch:
        patch.setattr(stream.Stream, "_take", flattering)
        patch.setattr(policy, "total_loss", lambda terms, weights: 2 * total(terms, weights))
        assert run_recipe(quick_recipe(model_of(small_run)), tmp_path / "run", Quiet()) == 0
    findings = found(tmp_path / "run")
    assert findings[7].result == "fail" and "nats per token off" in findings[7].evidence
    assert findings[11].result == "fail" and "`gradient`" in findings[11].evidence and findings[11].record.startswith("Update:")


def test_attempts_under_luckier_uniforms_and_an_optimizer_that_steps_twice_are_found(small_run, tmp_path, monkeypatch):
    from rollbook.rollouts.engines import stream
    from rollbook.training.optimizer import Optimizer
    uniforms, step = stream.uniforms, Optimizer.step

    def twice(self, where):
        done = step(self, where)
        self.steps -= 1
        step(self, where)
        return done
    with monkeypatch.context() as patch:
        patch.setattr(stream, "uniforms", lambda seed, key, count: uniforms(seed + 1, key, count))
        patch.setattr(Optimizer, "step", twice)
        assert run_recipe(quick_recipe(model_of(small_run)), tmp_path / "run", Quiet()) == 0
    findings = found(tmp_path / "run")
    assert findings[6].result == "fail" and "come out otherwise" in findings[6].evidence
    assert findings[11].result == "fail" and "weights_after" in findings[11].evidence


def test_a_proof_that_was_written_and_not_made_is_found(small_run, tmp_path):
    def change(kind, body, number):
        if kind == "EnvironmentProof":
            body["trials"] = [{**one, "first": "5" * 64, "second": "5" * 64} if one["kind"] == "clock" else one
                              for one in body["trials"]]
        return body
    finding = next(one for one in deep_findings(forge(small_run, tmp_path / "run", change), sample=4) if one.stage == 4)
    assert finding.result == "fail" and "made again" in finding.evidence and finding.record.startswith("EnvironmentProof:")


def test_a_checkpoint_of_other_weights_is_found(small_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    shutil.copyfile(run / "checkpoints" / "cold_start" / "model.safetensors", run / "checkpoints" / "rl" / "model.safetensors")
    finding = found(run)[12]
    assert finding.result == "fail" and finding.record.startswith("PolicyVersion:") and "checkpoints/rl" in finding.evidence


def test_without_checkpoints_it_says_what_was_not_executed(small_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    shutil.rmtree(run / "checkpoints")
    findings = found(run)
    assert "not rl (its start weights are not stored)" in findings[11].evidence
    assert findings[12].result == "pass" and "1 versions hashed again" in findings[12].evidence


class Hinting:
    """A tokenizer that says one word more than the task."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def prompt(self, messages):
        return self.inner.prompt([*messages[:-1], dataclasses.replace(messages[-1], content=messages[-1].content + " 7")])


def test_a_prompt_that_its_task_does_not_give_is_found(small_run, tmp_path, monkeypatch):
    from rollbook.rollouts import solve
    real = solve.Rollouts.solve

    def hinting(self, tasks, per_task, *, scope, envelope):
        return real(dataclasses.replace(self, tokenizer=Hinting(self.tokenizer)), tasks, per_task, scope=scope, envelope=envelope)
    with monkeypatch.context() as patch:
        patch.setattr(solve.Rollouts, "solve", hinting)
        assert run_recipe(quick_recipe(model_of(small_run), "stages.rl.steps=1"), tmp_path / "run", Quiet()) == 0
    finding = found(tmp_path / "run")[4]
    assert finding.result == "fail" and "tokens" in finding.evidence and finding.record.startswith("Trace:")


def test_a_sample_of_nothing_is_refused(small_run):
    with pytest.raises(LedgerError, match="sample"):
        deep_findings(small_run, sample=0)
