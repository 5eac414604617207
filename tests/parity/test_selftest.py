"""The self-test agrees with a sound engine and finds engines that drift."""

import json

import pytest
import torch
from click.testing import CliRunner
from policies import ARCHITECTURES, tiny_policy

from rollbook.cli import main
from rollbook.models.weights import save_checkpoint, weight_hash
from rollbook.models.working_copy import WorkingCopy
from rollbook.orchestration import selftest
from rollbook.rollouts.engines.embedded import EmbeddedEngine
from rollbook.rollouts.engines.memory import Prompts


def rows_of(policy, *dtypes):
    return list(selftest.compare(policy, dtypes or (torch.float32,)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_engine_and_trainer_agree_before_and_after_an_update_and_at_learning_rate_0(architecture):
    policy = tiny_policy(architecture)
    before = weight_hash(policy.decoder.named_parameters())
    rows = rows_of(policy, torch.float32, torch.bfloat16)
    assert [row.problem for row in rows] == [""] * 10
    assert [row.version for row in rows] == [0, 1, 2, 3, 4] * 2
    assert all(row.moved > 0.01 if row.version == 1 else row.moved is None for row in rows)
    kept = [row.kept_prompts for row in rows[:5]]
    assert max(kept[:2]) < 4 and kept[2:] == [8, 8, 8]                  # kept through steps that changed no bit, only those
    assert weight_hash(policy.decoder.named_parameters()) == before     # and the weights are put back


def test_an_engine_that_keeps_its_old_weights_is_found(monkeypatch):
    real = EmbeddedEngine.load

    def stale(self, decoder, version):
        if version == 0:
            return real(self, decoder, version)
        self.version = version
        return weight_hash(WorkingCopy(decoder, self.dtype).named())
    monkeypatch.setattr(EmbeddedEngine, "load", stale)
    problems = [row.problem for row in rows_of(tiny_policy("llama"))]
    assert problems[0] == "" and all("any_logp" in one for one in problems[1:])
    assert "too little to tell old weights from new" in problems[1]


def test_prompts_kept_from_older_weights_are_found(monkeypatch):
    monkeypatch.setattr(Prompts, "use", lambda self, weights: None)
    problems = [row.problem for row in rows_of(tiny_policy("llama"))]
    assert problems[0] == "" and "any_logp" in problems[1]


def test_an_engine_that_changes_a_little_with_every_step_is_found(monkeypatch):
    real = EmbeddedEngine.load

    def drifting(self, decoder, version):
        taken = real(self, decoder, version)
        self.weights.norm *= 1 + 1e-3 * max(0, version - 1)
        return taken
    monkeypatch.setattr(EmbeddedEngine, "load", drifting)
    rows = rows_of(tiny_policy("llama"))
    assert [bool(row.problem) for row in rows] == [False, False, True, True, True]
    assert rows[2].mean_kl < rows[3].mean_kl < rows[4].mean_kl


def test_tokens_stamped_with_another_version_are_found(monkeypatch):
    real = EmbeddedEngine.load
    monkeypatch.setattr(EmbeddedEngine, "load", lambda self, decoder, version: real(self, decoder, max(0, version - 1)))
    problems = [row.problem for row in rows_of(tiny_policy("llama"))]
    assert problems[0] == "" and all("stamped with versions" in one for one in problems[1:])


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A tiny model's folder; the command leaves this process's threads as they are."""
    policy = tiny_policy("llama")
    save_checkpoint(tmp_path / "model", policy.decoder, policy.tokenizer)
    monkeypatch.setattr(selftest, "prepare", lambda settings: torch.bfloat16)
    return str(tmp_path / "model")


def test_the_command_prints_a_table_and_exits_0_where_they_agree(model):
    done = CliRunner().invoke(main, ["selftest", model])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert sum(line.startswith("float32 ") for line in lines) == 5 and sum(line.startswith("bfloat16 ") for line in lines) == 5
    assert any(line.startswith("allowed in float32") for line in lines)


def test_the_command_exits_1_on_drift_and_names_it_in_table_and_json(model, monkeypatch):
    monkeypatch.setattr(Prompts, "use", lambda self, weights: None)
    shown = CliRunner().invoke(main, ["selftest", model])
    assert shown.exit_code == 1 and "DRIFT" in shown.output
    done = CliRunner().invoke(main, ["selftest", model, "--json"])
    document = json.loads(done.output)
    assert done.exit_code == 1 and document["agree"] is False
    assert [bool(row["problem"]) for row in document["rows"]][:2] == [False, True]
    assert set(document["tolerances"]) == {"float32", "bfloat16"}


def test_a_model_that_is_not_there_is_refused(tmp_path):
    done = CliRunner().invoke(main, ["selftest", str(tmp_path / "nothing")])
    assert done.exit_code == 2 and "no model found" in done.output
