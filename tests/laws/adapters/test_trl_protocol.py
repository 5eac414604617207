"""The recording of a TRL trainer, against a host that keeps TRL's protocol; the real one is in test_trl.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import torch
from fake_trl import GRPOTrainer
from safetensors.numpy import load

from rollbook.adapters import trl, trl_facts
from rollbook.adapters.trl import record
from rollbook.adapters.trl_generation import Known
from rollbook.adapters.weights import weight_hash
from rollbook.audit.passage import audit_run
from rollbook.ledger import Ledger
from rollbook.models import weights as models_weights
from rollbook.records import (
    Census,
    Credit,
    HostRun,
    HostTask,
    HostUpdate,
    LedgerError,
    NotExposed,
    PolicyVersion,
    RecordError,
    RunEnd,
    SamplingEnvelope,
    Scored,
    Unscored,
)


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(trl, "trl_version", lambda: "1.16.0")
    monkeypatch.setattr(trl_facts, "trl_version", lambda: "1.16.0")


def right(completions, answer, **_):
    return [1.0, 0.0, 0.5, 0.25]


def sometimes(completions, **_):
    return [None, float("nan"), 2.0, 4.0]


def held(path, kind):
    return list(Ledger.open(path, write=False).records(kind))


def recorded(path, trainer, steps=2, **options):
    record(trainer, path, reference="answer", **options)
    trainer.train(steps)
    assert Ledger.open(path, write=False).verify().holds
    return Ledger.open(path, write=False)


def test_a_generation_is_recorded_as_the_trainer_made_it(tmp_path) -> None:
    ledger = recorded(tmp_path / "run", GRPOTrainer([right, sometimes]))
    rows = list(ledger.read_traces())
    first = [(trace.prompt_ids, trace.segments[1].token_ids, trace.stop_reason, trace.text) for trace, _, _ in rows[:4]]
    assert first == [((3, 5), (7, 8, 2), "end_of_turn", "a"), ((3, 5), (9, 2), "end_of_turn", "b"),
                     ((4, 4, 5), (7, 8, 7, 8), "length", "c"), ((4, 4, 5), (2,), "end_of_turn", "d")]
    assert {trace.segments[1].logps for trace, _, _ in rows} == {NotExposed()}
    assert [trace.segments[1].version for trace, _, _ in rows] == [0] * 4 + [1] * 4
    assert held(tmp_path / "run", HostTask) == [HostTask(family="host", prompt="3 + 1 =", reference="4"),
                                                HostTask(family="host", prompt="4 + 1 =", reference="5")]
    kinds = [event.kind for event in ledger.events()]
    assert kinds.index("Dispatch") < kinds.index("TraceTable") < kinds.index("Census") < kinds.index("HostUpdate")
    assert held(tmp_path / "run", RunEnd)[0].status == "completed"


def test_every_part_of_the_reward_stands_beside_the_total(tmp_path) -> None:
    verdicts = [verdict for _, verdict, _ in recorded(tmp_path / "run", GRPOTrainer([right, sometimes]), 1).read_traces()]
    assert [verdict.vector.total for verdict in verdicts] == [1.0, 0.0, 1.5, 2.25]
    assert [len(verdict.vector.absent) for verdict in verdicts] == [1, 1, 0, 0]
    assert verdicts[1].vector.absent[0].reason == "the host gave nan"
    digests = {part.name: part.verifier.digest for part in verdicts[2].vector.components}
    assert len(digests["right"]) == 64 and digests["right"] != digests["sometimes"]


def test_a_completion_that_no_function_scored_is_unscored(tmp_path) -> None:
    trainer = GRPOTrainer([sometimes])
    verdicts = [verdict for _, verdict, _ in recorded(tmp_path / "run", trainer, 1).read_traces()]
    assert [type(verdict) for verdict in verdicts] == [Unscored, Unscored, Scored, Scored]
    assert not held(tmp_path / "run", Credit)


def test_rewards_of_models_and_of_coroutines_are_heard(tmp_path) -> None:
    class Scorer(torch.nn.Module):
        def forward(self, values):
            return SimpleNamespace(logits=values[:, None])

    async def later(completions, **_):
        return [3.0] * 4

    told = []
    listening = trl.listen(later, 0, lambda: SimpleNamespace(rewards={}, take=told.append))
    assert listening.__name__ == "later" and asyncio.iscoroutinefunction(listening)
    assert asyncio.run(listening(completions="abcd")) == [3.0] * 4 and len(told) == 1
    verdicts = [verdict for _, verdict, _ in recorded(tmp_path / "run", GRPOTrainer([right, Scorer()]), 1).read_traces()]
    assert [verdict.vector.value("model") for verdict in verdicts] == [0.0, 1.0, 2.0, 3.0]


def test_log_probs_of_an_engine_and_tokens_of_a_tool_are_kept_apart(tmp_path) -> None:
    trainer = GRPOTrainer([right], use_vllm=True)
    trainer.extra = {"sampling_per_token_logps": torch.tensor([[-1.0, 0.0, -2.0, 0.0], [-1.0, float("nan"), 0.0, 0.0],
                                                               [-0.5] * 4, [-0.25, 0.0, 0.0, 0.0]]),
                     "tool_mask": torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]])}
    traces = [trace for trace, _, _ in recorded(tmp_path / "run", trainer, 1).read_traces()]
    assert [(s.owner, s.token_ids, s.logps) for s in traces[0].segments[1:]] == [
        ("policy", (7,), (-1.0,)), ("tool", (8,), None), ("policy", (2,), (-2.0,))]
    assert traces[1].segments[1].logps == NotExposed() and traces[1].observed == {"logps/not_finite": 1.0}
    assert traces[2].segments[1].logps == (-0.5,) * 4 and traces[3].segments[1].logps == (-0.25,)
    update = held(tmp_path / "run", HostUpdate)[0]
    assert update.unmatched == 0
    assert load(Ledger.open(tmp_path / "run", write=False).get(update.tensors))["length"].tolist() == [4, 2, 1, 2]


def test_tools_without_a_limit_leave_no_envelope(tmp_path) -> None:
    trainer = GRPOTrainer([right], max_tool_calling_iterations=None)
    trainer.tools = [print]
    ledger = recorded(tmp_path / "run", trainer, 1)
    assert not held(tmp_path / "run", SamplingEnvelope)
    assert {trace.envelope for trace, _, _ in ledger.read_traces()} == {None}


def test_a_prompt_of_messages_is_kept_as_messages() -> None:
    shown = [{"type": "text", "text": "3 + 1"}, {"type": "image"}]
    prompt = [{"role": "system", "content": "Add."}, {"role": "user", "content": shown}]
    assert [(one.role, one.content) for one in trl_facts.prompt_of(prompt)] == [("system", "Add."), ("user", "3 + 1\n[image]")]


def test_an_update_names_the_trajectories_that_the_loss_was_given(tmp_path) -> None:
    ledger = recorded(tmp_path / "run", GRPOTrainer([right]))
    ids = [trace.id for trace, _, _ in ledger.read_traces()]
    updates = held(tmp_path / "run", HostUpdate)
    assert [update.traces for update in updates] == [tuple(ids[i] for i in (2, 0, 3, 1)), tuple(ids[4 + i] for i in (2, 0, 3, 1))]
    assert [(u.index, u.loss, u.grad_norm, u.not_finite, u.averaged_over, u.unmatched) for u in updates] == [
        (1, 0.5, None, ("grad_norm",), 1, 0), (2, 0.5, None, ("grad_norm",), 1, 0)]
    tensors = load(ledger.get(updates[0].tensors))
    assert tensors["length"].tolist() == [4, 3, 1, 2]
    credit = held(tmp_path / "run", Credit)[0]
    by_trace = dict(zip(credit.traces, credit.advantage, strict=True))
    assert tensors["advantage"].tolist() == pytest.approx([by_trace[trace] for trace in updates[0].traces])


def test_equal_sequences_are_told_apart_by_their_advantage_and_taken_in_turn() -> None:
    known = Known()
    for trace, advantage in (("Trace:1", 0.5), ("Trace:2", -0.5), ("Trace:3", -0.5)):
        known.add("5d", trace, advantage)
    assert [known.find("5d", -0.5) for _ in range(3)] == ["Trace:2", "Trace:3", "Trace:2"] and known.find("5d", 0.5) == "Trace:1"
    assert known.find("5d", 0.25) is None and known.find("6e", 0.5) is None


def test_a_loss_that_is_given_other_tokens_than_were_sampled_is_told(tmp_path) -> None:
    trainer = GRPOTrainer([right])
    trainer.noise = 1
    recorded(tmp_path / "run", trainer, 1)
    update = held(tmp_path / "run", HostUpdate)[0]
    assert update.unmatched == 4 and update.traces == () and len(update.sequences) == 4


def test_a_completion_that_the_trainer_masks_is_truncated_and_not_trained(tmp_path) -> None:
    ledger = recorded(tmp_path / "run", GRPOTrainer([right], masked=True), 1)
    rows = list(ledger.read_traces())
    assert [outcome.code for _, _, outcome in rows] == ["accepted", "accepted", "truncated", "accepted"]
    assert rows[2][0].segments[1].token_ids == (7, 8, 7, 8)
    update = held(tmp_path / "run", HostUpdate)[0]
    assert len(update.traces) == 3 and rows[2][0].id not in update.traces and update.unmatched == 0
    assert held(tmp_path / "run", Census)[0].outcomes == {"host": {"accepted": 3, "truncated": 1}}


def test_versions_are_weights_by_hash_in_one_line(tmp_path) -> None:
    trainer = GRPOTrainer([right])
    recorded(tmp_path / "run", trainer)
    versions = held(tmp_path / "run", PolicyVersion)
    assert [version.index for version in versions] == [0, 1, 2] and len({version.weights for version in versions}) == 3
    assert versions[2].weights == models_weights.weight_hash(trainer.model.named_parameters())
    assert [envelope.policy for envelope in held(tmp_path / "run", SamplingEnvelope)] == [v.weights for v in versions[:2]]
    updates = held(tmp_path / "run", HostUpdate)
    assert [(u.weights_before, u.weights_after) for u in updates] == [
        (versions[0].weights, versions[1].weights), (versions[1].weights, versions[2].weights)]


def test_without_hashes_the_stages_that_need_them_are_unseen(tmp_path) -> None:
    recorded(tmp_path / "run", GRPOTrainer([right]), hash_weights=False)
    assert not held(tmp_path / "run", PolicyVersion) and held(tmp_path / "run", SamplingEnvelope)[0].policy is None
    assert {"events", "publication"} <= set(held(tmp_path / "run", HostRun)[0].unseen)
    assert [row.name for row in audit_run(tmp_path / "run").rows if row.result == "fail"] == []


def test_the_hash_of_weights_is_that_of_the_models_package() -> None:
    tensors = [("b", torch.randn(2, 3)), ("a", torch.randn(4).bfloat16()), ("c", torch.tensor([1, 2]))]
    tensors += [("large", torch.randn(3_000_000)), ("empty", torch.empty(0))]
    before = models_weights.weight_hash(tensors)
    assert weight_hash(tensors) == (before, True)
    tensors[-2][1][-1] += 1.0
    assert weight_hash(tensors)[0] == models_weights.weight_hash(tensors) != before
    assert weight_hash([("a", torch.tensor([float("nan")]))])[1] is False


def test_the_audit_says_what_trl_does_not_show(tmp_path) -> None:
    recorded(tmp_path / "run", GRPOTrainer([right]))
    rows = {row.name: row for row in audit_run(tmp_path / "run").rows}
    for stage in ("acquisition", "normalisation", "splits", "environment", "cold start", "update", "publication", "evaluation",
                  "gate"):
        assert rows[stage].result == "not_applicable" and rows[stage].evidence.startswith("trl.GRPOTrainer 1.16.0: ")
    assert rows["reward"].result == rows["request"].result == rows["events"].result == "pass"
    assert "gives no log-probs" in rows["events"].evidence
    assert [row for row in rows.values() if row.result == "fail"] == []


def test_a_resumed_training_goes_on_in_its_record_and_its_later_steps_are_void(tmp_path) -> None:
    recorded(tmp_path / "run", GRPOTrainer([right]), 3)
    trainer = GRPOTrainer([right])
    record(trainer, tmp_path / "run", reference="answer")
    trainer.train(4, start=2)
    assert [update.index for update in held(tmp_path / "run", HostUpdate)] == [1, 2, 3, 4]
    assert [version.index for version in held(tmp_path / "run", PolicyVersion)] == [0, 1, 2, 3, 4]
    assert len(held(tmp_path / "run", HostRun)) == 1 and len(held(tmp_path / "run", RunEnd)) == 1


def test_a_folder_with_a_begun_record_or_other_weights_is_refused(tmp_path) -> None:
    recorded(tmp_path / "run", GRPOTrainer([right]))
    fresh = GRPOTrainer([right])
    record(fresh, tmp_path / "run", reference="answer")
    with pytest.raises(LedgerError, match="a training that has begun"):
        fresh.train(1)
    other = GRPOTrainer([right])
    other.model.register_parameter("more", torch.nn.Parameter(torch.ones(1)))
    record(other, tmp_path / "run", reference="answer")
    with pytest.raises(LedgerError, match="other weights than were recorded"):
        other.train(2, start=1)
    with Ledger.open(tmp_path / "run"):
        pass


def test_an_exception_in_a_generation_ends_its_attempts_and_leaves_the_trainer_as_it_was(tmp_path) -> None:
    def breaks(completions, **_):
        raise ZeroDivisionError

    trainer = GRPOTrainer([breaks])
    recording = record(trainer, tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        trainer.train(1)
    with pytest.raises(LedgerError, match="another process is writing"):
        Ledger.open(tmp_path / "run")
    recording.close()
    assert held(tmp_path / "run", Census)[0].count("failed") == 4
    assert trainer.reward_funcs == [breaks] and "compute_loss" not in vars(trainer)
    assert "_generate_and_score_completions" not in vars(trainer)


def test_recording_changes_nothing_that_the_trainer_computes(tmp_path) -> None:
    plain, watched = GRPOTrainer([right]), GRPOTrainer([right])
    plain.train(2)
    recorded(tmp_path / "run", watched)
    assert plain.losses == watched.losses and torch.equal(plain.model.weight, watched.model.weight)
    for name, value in plain.generation().items():
        assert torch.equal(value, watched.generation()[name])


def test_only_the_main_process_records(tmp_path) -> None:
    trainer = GRPOTrainer([right])
    trainer.accelerator.is_main_process = False
    record(trainer, tmp_path / "run")
    trainer.train(1)
    assert not (tmp_path / "run").exists()


def test_no_path_and_no_token_of_the_arguments_reaches_the_record(tmp_path) -> None:
    recorded(tmp_path / "run", GRPOTrainer([right]))
    stored = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert b"hf_secret_of_mine" not in stored and b"/home/someone" not in stored
    settings = held(tmp_path / "run", HostRun)[0].settings
    assert settings["loss_type"] == "withheld" and settings["optim"] == "adamw" and "output_dir" not in settings


@pytest.mark.parametrize(("changes", "kind"), [
    ({}, "GroupNormalized"), ({"scale_rewards": "none"}, "GroupCentered"), ({"scale_rewards": "batch"}, None),
    ({"multi_objective_aggregation": "normalize_then_sum"}, None)])
def test_a_rule_that_the_audit_cannot_recompute_is_said_and_not_recorded(tmp_path, changes, kind) -> None:
    recorded(tmp_path / "run", GRPOTrainer([right], **changes), 1)
    assert [credit.rule["kind"] for credit in held(tmp_path / "run", Credit)] == ([kind] if kind else [])
    assert ("credit" in held(tmp_path / "run", HostRun)[0].unseen) is (kind is None)


def test_a_trl_that_works_otherwise_is_refused_by_name(tmp_path, monkeypatch) -> None:
    trainer = GRPOTrainer([right])
    monkeypatch.delattr(GRPOTrainer, "_generate_and_score_completions")
    record(trainer, tmp_path / "run")
    with pytest.raises(RecordError, match="has no method _generate_and_score_completions"):
        trainer.train(1)
    with pytest.raises(RecordError, match="this trainer cannot be recorded"):
        record(SimpleNamespace(), tmp_path / "other")


def test_a_version_of_trl_that_was_not_looked_at_is_refused(monkeypatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.0.1")
    with pytest.raises(RecordError, match="this version of TRL is not known"):
        trl_facts.trl_version()
