"""A GRPO step of TRL: the same prompts, group, number of new tokens and model in bf16, its defaults otherwise."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

os.environ.setdefault("WANDB_MODE", "disabled")
import torch
from common import prompt_ids, say, settings
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

given = settings()
torch.set_num_threads(given["threads"])
tokenizer = AutoTokenizer.from_pretrained(given["model"])
model = AutoModelForCausalLM.from_pretrained(given["model"], dtype=torch.bfloat16)
texts = []
for number in range(256):
    ids = prompt_ids(lambda t: tokenizer.encode(t, add_special_tokens=False), number, given["prompt"])
    texts.append(tokenizer.decode(ids))
batch = given["prompts"] * given["group"]


def reward(completions: list[str], **_: object) -> list[float]:
    return [(hash(text) % 256) / 255 for text in completions]


class Turns(TrainerCallback):
    """Waits for its turn before every step and says how long the step took."""

    def on_step_begin(self, *_: object, **__: object) -> None:
        if not sys.stdin.readline():
            raise SystemExit(0)
        self.began = time.perf_counter()

    def on_step_end(self, *_: object, **__: object) -> None:
        say({"seconds": time.perf_counter() - self.began, "tokens": batch * given["new"]})


config = GRPOConfig(
    output_dir=tempfile.mkdtemp(), per_device_train_batch_size=batch, num_generations=given["group"], max_completion_length=given["new"],
    max_steps=10_000, learning_rate=1e-6, bf16=True, use_cpu=True, gradient_checkpointing=False, temperature=1.0, top_p=1.0,
    generation_kwargs={"min_new_tokens": given["new"]}, report_to=[], logging_steps=10_000, save_strategy="no", beta=0.0,
    loss_type="grpo", disable_tqdm=True)
trainer = GRPOTrainer(model=model, reward_funcs=reward, args=config, train_dataset=Dataset.from_dict({"prompt": texts}),
                      processing_class=tokenizer, callbacks=[Turns()])
say({"ready": True, "prompt_tokens": given["prompt"], "trl": json.dumps(config.loss_type)})
trainer.train()
