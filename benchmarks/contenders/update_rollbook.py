"""One optimizer step of the policy on groups with a shared prompt, nothing sampled or recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from common import matmul_limit, peak_gib, prompt_ids, serve, settings

from rollbook.models.layout import Tree, pack
from rollbook.models.load import read_policy
from rollbook.models.logprobs import action_logprobs
from rollbook.models.runtime import keep_memory
from rollbook.records.recipe import OptimizerSettings
from rollbook.training.optimizer import Optimizer

given = settings()
torch.set_num_threads(given["threads"])
torch.set_flush_denormal(True)
keep_memory()
policy = read_policy(Path(given["model"]), source="benchmark")
decoder = policy.decoder
decoder.checkpointing = given.get("checkpointing", False)
adam = OptimizerSettings(learning_rate=1e-6, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, warmup_steps=0, schedule="constant",
                         max_grad_norm=1.0)
optimizer = Optimizer(decoder.parameters(), adam, 1000)
encode = lambda text: list(policy.tokenizer.encode(text))  # noqa: E731
trees = [Tree(prompt=tuple(prompt_ids(encode, g, given["prompt"])),
              continuations=tuple(tuple(prompt_ids(encode, 1000 + g * given["group"] + i, given["new"])) for i in range(given["group"])),
              actions=tuple((True,) * given["new"] for _ in range(given["group"]))) for g in range(given["prompts"])]
packed = sum(len(tree.prompt) + given["group"] * given["new"] for tree in trees)
actions = given["prompts"] * given["group"] * given["new"]
per_micro = max(1, given.get("max_batch_tokens", 4096) // (given["prompt"] + given["group"] * given["new"]))


def flops() -> float:
    """Products of one forward and its backward: 6 per weight and token; the head sees action tokens alone."""
    head = decoder.head.numel()
    body = sum(p.numel() for p in decoder.parameters()) - decoder.model.embed_tokens.weight.numel()
    body -= 0 if decoder.architecture.tied else head
    return 6.0 * (body * packed + head * actions) + 2.0 * head * actions       # logits are computed again in backward


def round_(number: int) -> dict[str, Any]:
    optimizer.zero()
    for at in range(0, len(trees), per_micro):
        layout = pack(trees[at:at + per_micro], window=decoder.architecture.window)
        scores = action_logprobs(decoder, layout, temperature=1.0, dtype=torch.bfloat16)
        (-scores.logp_T.sum() / actions).backward()
    optimizer.step("benchmark")
    more = {"limit_gflops": matmul_limit(torch), "flops": flops(), "packed": packed} if number == 0 else {}
    return {"tokens": given["prompts"] * given["group"] * (given["prompt"] + given["new"]), "peak_gib": peak_gib()} | more


serve(round_)
