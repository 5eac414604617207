"""Real TRL trainers on a model of 20 thousand parameters, on the record. Skipped where TRL is not installed."""

from __future__ import annotations

import pytest

pytest.importorskip("trl", reason="TRL is not installed: pip install 'rollbook[bench]'")

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer, SFTConfig, SFTTrainer

from rollbook.adapters.trl import record
from rollbook.audit.passage import audit_run
from rollbook.ledger import Ledger
from rollbook.records import (
    Census,
    Credit,
    HostCheckpoint,
    HostEvaluation,
    HostRun,
    HostTask,
    HostUpdate,
    NotExposed,
    PolicyVersion,
    SamplingEnvelope,
    Scored,
    content_id,
)

CHARACTERS = ("<pad>", "<eos>", "<bos>", *"0123456789+-= ")
SUMS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(4) for b in range(4)]
COMMON = {"per_device_train_batch_size": 4, "max_steps": 3, "logging_steps": 1, "report_to": [], "use_cpu": True, "bf16": False,
          "learning_rate": 1e-2, "seed": 3, "gradient_checkpointing": False, "disable_tqdm": True}
SAMPLING = {"num_generations": 4, "max_completion_length": 6}


def tokenizer():
    plain = Tokenizer(models.WordLevel({one: place for place, one in enumerate(CHARACTERS)}, unk_token="<pad>"))
    plain.pre_tokenizer, plain.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>")


def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(CHARACTERS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=2))


def right(completions, answer, **_):
    return [float(one.strip().startswith(wanted)) for one, wanted in zip(completions, answer, strict=True)]


def short(completions, **_):
    return [-0.1 * len(one) if one else None for one in completions]


def grpo(out, evals=None, **changes):
    arguments = {**COMMON, **SAMPLING, "gradient_accumulation_steps": 2, "save_steps": 2, "output_dir": str(out), **changes}
    return GRPOTrainer(model=model(), reward_funcs=[right, short], args=GRPOConfig(**arguments), processing_class=tokenizer(),
                       train_dataset=Dataset.from_list(SUMS), eval_dataset=evals)


def held(path, kind):
    return list(Ledger.open(path, write=False).records(kind))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three steps of GRPO, on the record."""
    folder = tmp_path_factory.mktemp("grpo")
    trainer = grpo(folder / "host")
    record(trainer, folder / "run", reference="answer")
    trainer.train()
    return folder / "run"


def test_a_grpo_run_is_on_record_and_audits(run) -> None:
    ledger = Ledger.open(run, write=False)
    assert ledger.verify().holds
    rows = list(ledger.read_traces())
    assert len(rows) == 24 and {s.logps for trace, _, _ in rows for s in trace.policy_segments} == {NotExposed()}
    updates = held(run, HostUpdate)
    assert [len(update.traces) for update in updates] == [8, 8, 8] and {update.unmatched for update in updates} == {0}
    assert {trace for update in updates for trace in update.traces} == {trace.id for trace, _, _ in rows}
    assert all(update.loss is not None and update.grad_norm is not None and update.averaged_over == 1 for update in updates)
    assert [version.index for version in held(run, PolicyVersion)] == [0, 1, 2, 3]
    assert [one.index for one in held(run, HostCheckpoint)] == [2, 3]
    found = {row.name: row for row in audit_run(run).rows}
    assert [row for row in found.values() if row.result == "fail"] == []
    assert {name for name, row in found.items() if row.evidence.startswith("trl.GRPOTrainer") and row.result != "pass"} == set(
        held(run, HostRun)[0].unseen)


def test_the_advantages_follow_the_rule_that_is_recorded(run) -> None:
    for credit in held(run, Credit):
        reward = torch.tensor(credit.reward, dtype=torch.float64).view(-1, 4)
        expected = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, correction=credit.rule["ddof"], keepdim=True)
                                                              + credit.rule["eps"])
        torch.testing.assert_close(torch.tensor(credit.advantage, dtype=torch.float64), expected.view(-1), atol=1e-4, rtol=1e-4)


def test_recording_does_not_change_the_weights_that_come_out(run, tmp_path) -> None:
    trainer = grpo(tmp_path / "host")
    trainer.train()
    record_of_weights = held(run, PolicyVersion)[-1].weights
    from rollbook.adapters.weights import weight_hash
    assert weight_hash(trainer.model.named_parameters())[0] == record_of_weights


def test_a_training_that_resumes_from_a_checkpoint_goes_on_in_its_record(tmp_path) -> None:
    first = grpo(tmp_path / "host")
    record(first, tmp_path / "run", reference="answer")
    first.train()
    before = held(tmp_path / "run", HostUpdate)
    second = grpo(tmp_path / "host", max_steps=4)
    record(second, tmp_path / "run", reference="answer")
    second.train(resume_from_checkpoint=str(tmp_path / "host" / "checkpoint-2"))
    after = held(tmp_path / "run", HostUpdate)
    assert [update.index for update in after] == [1, 2, 3, 4] and after[:2] == before[:2]
    assert Ledger.open(tmp_path / "run", write=False).verify().holds


def test_a_generation_that_serves_several_steps_and_masks_what_was_cut_off(tmp_path) -> None:
    trainer = grpo(tmp_path / "host", steps_per_generation=4, num_iterations=2, max_steps=5, logging_steps=2, save_strategy="no",
                   mask_truncated_completions=True)
    record(trainer, tmp_path / "run")
    trainer.train()
    codes = {trace.id: outcome.code for trace, _, outcome in Ledger.open(tmp_path / "run", write=False).read_traces()}
    updates = held(tmp_path / "run", HostUpdate)
    assert len(updates) == 5 and {update.unmatched for update in updates} == {0}
    assert {codes[trace] for update in updates for trace in update.traces} == {"accepted"} and "truncated" in codes.values()
    assert [update.averaged_over for update in updates] == [None, 2, None, 2, None]


def test_evaluations_are_attempts_of_their_own(tmp_path) -> None:
    trainer = grpo(tmp_path / "host", evals=Dataset.from_list(SUMS[:4]), eval_strategy="steps", eval_steps=2, max_steps=2,
                   per_device_eval_batch_size=4, save_strategy="no")
    record(trainer, tmp_path / "run", reference="answer")
    trainer.train()
    evaluation = held(tmp_path / "run", HostEvaluation)[0]
    assert evaluation.index == 2 and "eval_reward" in evaluation.metrics
    scopes = [census.scope for census in held(tmp_path / "run", Census)]
    assert sum(scope.startswith("eval/host/000002/") for scope in scopes) == 4 and len(scopes) == 6


def test_prompts_of_messages_are_recorded_with_the_ids_that_the_template_gave(tmp_path) -> None:
    chat = tokenizer()
    chat.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
    rows = [{"prompt": [{"role": "user", "content": one["prompt"][:-1]}], "answer": one["answer"]} for one in SUMS]

    def correct(completions, answer, **_):
        return [float(one[0]["content"] == wanted) for one, wanted in zip(completions, answer, strict=True)]

    trainer = GRPOTrainer(model=model(), reward_funcs=[correct], processing_class=chat, train_dataset=Dataset.from_list(rows),
                          args=GRPOConfig(output_dir=str(tmp_path / "host"), save_strategy="no", **COMMON, **SAMPLING))
    record(trainer, tmp_path / "run", reference="answer")
    trainer.train()
    tasks = {content_id(task): task for task in held(tmp_path / "run", HostTask)}
    for trace, verdict, _ in Ledger.open(tmp_path / "run", write=False).read_traces():
        assert chat.decode(trace.prompt_ids) == tasks[trace.task].prompt[0].content + "="
        assert trace.text == chat.decode(trace.segments[1].token_ids, skip_special_tokens=True)
        assert isinstance(verdict, Scored)
    assert len(held(tmp_path / "run", SamplingEnvelope)[0].template) == 64


def test_an_rloo_run_is_on_record(tmp_path) -> None:
    trainer = RLOOTrainer(model=model(), reward_funcs=[right, short], processing_class=tokenizer(), args=RLOOConfig(
        output_dir=str(tmp_path / "host"), beta=0.0, save_strategy="no", **COMMON, **SAMPLING),
        train_dataset=Dataset.from_list(SUMS))
    record(trainer, tmp_path / "run", reference="answer")
    trainer.train()
    assert {update.unmatched for update in held(tmp_path / "run", HostUpdate)} == {0}
    assert all(isinstance(verdict, Scored) for _, verdict, _ in Ledger.open(tmp_path / "run", write=False).read_traces())
    assert {credit.rule["kind"] for credit in held(tmp_path / "run", Credit)} == {"LeaveOneOut"}
    for credit in held(tmp_path / "run", Credit):
        reward = torch.tensor(credit.reward, dtype=torch.float64).view(-1, 4)
        others = (reward.sum(1, keepdim=True) - reward) / 3
        torch.testing.assert_close(torch.tensor(credit.advantage, dtype=torch.float64), (reward - others).view(-1), atol=1e-6,
                                   rtol=1e-5)


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_supervised_and_preference_runs_keep_what_their_loss_saw(tmp_path, kind: str) -> None:
    shared = {**COMMON, "output_dir": str(tmp_path / "host"), "save_strategy": "no"}
    if kind == "sft":
        rows = [{"prompt": one["prompt"], "completion": one["answer"]} for one in SUMS]
        trainer = SFTTrainer(model=model(), args=SFTConfig(**shared), train_dataset=Dataset.from_list(rows),
                             processing_class=tokenizer())
    else:
        rows = [{"prompt": one["prompt"], "chosen": one["answer"], "rejected": "9"} for one in SUMS]
        trainer = DPOTrainer(model=model(), ref_model=model(), args=DPOConfig(**shared), train_dataset=Dataset.from_list(rows),
                             processing_class=tokenizer())
    record(trainer, tmp_path / "run")
    trainer.train()
    updates = held(tmp_path / "run", HostUpdate)
    assert len(updates) == 3 and all(update.tensors is not None and len(update.sequences) >= 4 for update in updates)
    assert {"events", "reward", "admission"} <= set(held(tmp_path / "run", HostRun)[0].unseen)
    assert not [row for row in audit_run(tmp_path / "run").rows if row.result == "fail"]
