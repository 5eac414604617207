"""Replay: equal bits where nothing was touched; the first update and tensor that differ where something was."""

import json
import shutil

import pytest
import torch
from attacked import quick_recipe
from click.testing import CliRunner
from forging import forge, other_tensor
from safetensors.torch import load_file, save_file
from small_runs import Quiet

from rollbook.audit.replay import replay_run
from rollbook.cli import main
from rollbook.ledger import Ledger, environment_manifest
from rollbook.models.runtime import usable_cores
from rollbook.orchestration.run import resume_run, run_recipe
from rollbook.records import Batch, LedgerError, PolicyVersion, Stopped, Update


def first(run, **options):
    """The first mismatch of a replay."""
    return replay_run(run, **options).mismatches[0]


def test_an_untouched_run_replays_bit_for_bit_and_exits_with_0(small_run):
    result = CliRunner().invoke(main, ["replay", str(small_run), "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    with Ledger.open(small_run, write=False) as ledger:
        last = list(ledger.records(PolicyVersion))[-1]
        count = len(list(ledger.records(Update)))
    assert report["exact"] and report["same_bits"] and report["mismatches"] == []
    stages = [(one["stage"], one["updates"], one["ended"]) for one in report["stages"]]
    assert stages == [("cold_start", 2, True), ("rl", count, True)]
    assert count > 1 and report["stages"][-1]["weights"] == last.weights


def test_one_stage_replays_alone_from_the_checkpoint_it_began_with(small_run):
    report = replay_run(small_run, only=["rl"])
    assert report.same_bits and [one.stage for one in report.stages] == ["rl"]
    with pytest.raises(LedgerError, match="no training stage"):
        replay_run(small_run, only=["lr"])


def scope_of(run, number):
    """The scope of the batch with this number, from 1."""
    with Ledger.open(run, write=False) as ledger:
        return list(ledger.records(Batch))[number - 1].scope


@pytest.mark.parametrize("name", ["behavior", "advantage", "weight", "token_ids", "correct"])
def test_one_changed_value_of_a_stored_batch_is_named_although_every_hash_holds(small_run, tmp_path, name):
    def bump(tensor):
        tensor.view(-1)[3] += 1

    def change(kind, body, number):
        if kind == "Batch" and number == 2:
            body["tensors"] = other_tensor(tmp_path / "run", body["tensors"], name, bump)
        return body
    found = first(forge(small_run, tmp_path / "run", change))
    assert (found.stage, found.place, found.tensor) == ("rl", scope_of(small_run, 2), f"batch.{name}")
    assert found.record.startswith("Update:") and "1 of " in found.detail


@pytest.mark.parametrize("name", ["logp", "entropy", "gradient"])
def test_one_changed_value_of_a_stored_update_is_named(small_run, tmp_path, name):
    def nudge(tensor):
        tensor[5] = tensor[5] * (1 + 1e-6) + 1e-7

    def change(kind, body, number):
        if kind == "Update" and number == 1:
            body["tensors"] = other_tensor(tmp_path / "run", body["tensors"], name, nudge)
        return body
    report = replay_run(forge(small_run, tmp_path / "run", change))
    assert [(one.place, one.tensor) for one in report.mismatches] == [(scope_of(small_run, 1), name)]


def test_an_update_left_out_of_the_log_is_found_at_the_next_one(small_run, tmp_path):
    def change(kind, body, number):
        return None if kind in ("Update", "Batch", "Credit") and number == 2 else body
    found = first(forge(small_run, tmp_path / "run", change))
    assert found.tensor in ("weights", "weights_before", "window")
    assert found.stage == "rl"


def test_a_supervised_step_left_out_of_the_log_is_found(small_run, tmp_path):
    found = first(forge(small_run, tmp_path / "run", lambda kind, body, n: None if kind == "SftReport" and n == 1 else body))
    assert (found.place, found.tensor) == ("cold_start step 2", "step")


def test_an_update_that_the_producer_reported_and_did_not_take_is_found(small_run, tmp_path, monkeypatch):
    from rollbook.training.optimizer import Optimizer, Stepped
    real, place = Optimizer.step, scope_of(small_run, 2)

    def lazy(self, where):
        before = [p.detach().clone() for p in self.parameters]
        done = real(self, where)
        if where == place:
            with torch.no_grad():
                for parameter, old in zip(self.parameters, before, strict=True):
                    parameter.copy_(old)
        return Stepped(grad_norm=done.grad_norm, clipped=done.clipped, learning_rate=done.learning_rate)
    with Ledger.open(small_run, write=False) as ledger:
        model = ledger.manifest["model"]
    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "step", lazy)
        assert run_recipe(quick_recipe(model), tmp_path / "run", Quiet()) == 0
    report = replay_run(tmp_path / "run")
    assert [(one.place, one.tensor) for one in report.mismatches] == [(place, "weights_after")]


@pytest.mark.parametrize(("stage", "setting", "value", "place"), [
    ("cold_start", "learning_rate", 4e-3, ("cold_start step 1",)),
    ("cold_start", "beta2", 0.5, ("cold_start step 2", "version 1")),
    ("rl", "max_grad_norm", 1e-3, None), ("rl", "eps", 1e-6, None), ("rl", "weight_decay", 0.1, None),
])
def test_another_optimizer_setting_than_the_recipe_states_is_found(small_run, tmp_path, stage, setting, value, place):
    def change(kind, body, number):
        if kind == "ResolvedRecipe":
            assert body["settings"]["stages"][stage]["optimizer"][setting] != value
            body["settings"]["stages"][stage]["optimizer"][setting] = value
        return body
    found = first(forge(small_run, tmp_path / "run", change))
    assert found.stage == stage and found.place in (place or (scope_of(small_run, 1),))     # the first step may round away beta2


def test_a_swapped_checkpoint_is_named_parameter_by_parameter(small_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    shutil.copyfile(run / "checkpoints" / "cold_start" / "model.safetensors", run / "checkpoints" / "rl" / "model.safetensors")
    with Ledger.open(run, write=False) as ledger:
        assert ledger.verify().holds
    result = CliRunner().invoke(main, ["replay", str(run)])
    assert result.exit_code == 1
    found = first(run)
    assert found.place == "end of rl" and found.tensor.startswith("model.") and "parameters differ" in found.detail
    assert f"DIFFERS first at {found.place}" in result.output


def test_one_flipped_weight_of_a_checkpoint_is_named(small_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    file = run / "checkpoints" / "rl" / "model.safetensors"
    tensors = load_file(str(file))
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][2, 3] += 1e-7
    save_file(tensors, str(file), metadata={"format": "pt"})
    found = first(run)
    assert found.tensor == name and "1 of " in found.detail


def test_other_start_weights_than_the_recorded_ones_are_found(small_run, tmp_path):
    with Ledger.open(small_run, write=False) as ledger:
        model = ledger.manifest["model"]
    shutil.copytree(model, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    save_file({name: tensor * 1.0001 for name, tensor in load_file(str(file)).items()}, str(file), metadata={"format": "pt"})

    def change(kind, body, number):
        if kind == "ResolvedRecipe":
            body["settings"]["model"]["path"] = str(tmp_path / "model")
        return body
    found = first(forge(small_run, tmp_path / "run", change))
    assert (found.stage, found.tensor) == ("start", "weights")


def test_an_open_stage_replays_as_far_as_it_goes(small_run, tmp_path):
    seen = []

    def change(kind, body, number):
        seen.append(kind)
        return body if seen.count("Update") < 1 or (kind == "Update" and number == 1) else None
    report = replay_run(forge(small_run, tmp_path / "run", change))
    assert not report.mismatches
    assert [(one.stage, one.updates, one.ended) for one in report.stages] == [("cold_start", 2, True), ("rl", 1, False)]


def test_a_run_that_was_stopped_and_resumed_replays_like_any_other(small_run, tmp_path, monkeypatch):
    from rollbook.orchestration import stages
    with Ledger.open(small_run, write=False) as ledger:
        model = ledger.manifest["model"]
        last = list(ledger.records(PolicyVersion))[-1]
    sessions, progress, inner = [], Quiet(), stages.run_stage

    def remembering(session, *rest):
        sessions.append(session)
        inner(session, *rest)

    def stop_after_one(number, metrics):
        progress.steps.append((progress.steps[-1][0], number))
        sessions[-1].stop = progress.steps[-1] == ("rl", 1)
    monkeypatch.setattr("rollbook.orchestration.run.run_stage", remembering)
    monkeypatch.setattr(progress, "step", stop_after_one)
    with pytest.raises(Stopped):
        run_recipe(quick_recipe(model), tmp_path / "run", progress)
    assert resume_run(tmp_path / "run", Quiet()) == 0
    report = replay_run(tmp_path / "run")
    assert report.same_bits and report.stages[-1].weights == last.weights


def test_a_damaged_run_is_refused(small_run, tmp_path):
    shutil.copytree(small_run, tmp_path / "run")
    log = tmp_path / "run" / "events" / "000001.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"index":1', b'"index":2', 1))
    with pytest.raises(LedgerError, match="damaged"):
        replay_run(tmp_path / "run")


def test_a_run_of_more_threads_than_this_process_has_cores_is_replayed_with_fewer(small_run, monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr("rollbook.audit.replay_report.usable_cores", lambda: 1)
    try:
        report = replay_run(small_run, threads=64)
    finally:
        torch.set_num_threads(threads)
    assert report.threads == 1 and report.mismatches == ()


@pytest.mark.skipif(usable_cores() < 2, reason="one core has no second thread")
def test_with_other_threads_numbers_are_compared_within_a_stated_tolerance(small_run):
    threads = torch.get_num_threads()
    try:
        result = CliRunner().invoke(main, ["replay", str(small_run), "--threads", "2"])
    finally:
        torch.set_num_threads(threads)
    assert result.exit_code == 0, result.output
    assert "threads: 1 there, 2 here" in result.output and "compared within Tolerance(" in result.output


def test_on_another_machine_a_changed_batch_is_still_found_and_small_noise_is_not(small_run, tmp_path, monkeypatch):
    here = environment_manifest()
    here["machine"] = {**here["machine"], "cpu": "another processor"}
    monkeypatch.setattr("rollbook.audit.replay.environment_manifest", lambda: here)
    _noisy_start(monkeypatch)
    report = replay_run(small_run)
    assert not report.exact and not report.same_bits and not report.mismatches
    assert "machine.cpu" in {one.what for one in report.unlike}

    def change(kind, body, number):
        if kind == "Update" and number == 2:
            body["tensors"] = other_tensor(tmp_path / "run", body["tensors"], "logp", lambda tensor: tensor.sub_(1.0))
        return body
    found = first(forge(small_run, tmp_path / "run", change))
    assert (found.place, found.tensor) == (scope_of(small_run, 2), "logp") and "tolerance" in found.detail


def _noisy_start(monkeypatch):
    """Start weights off by a millionth, as another machine's arithmetic would leave them after a step."""
    from rollbook.audit import replay
    real = replay.load_policy

    def noisy(settings):
        policy = real(settings)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in policy.decoder.parameters():
                parameter.mul_(1 + 1e-6 * torch.randn(parameter.shape, generator=generator))
        return policy
    monkeypatch.setattr(replay, "load_policy", noisy)
