"""Decoding with the embedded engine: `batch` requests of `prompt` tokens, `new` tokens each, stops switched off."""

from pathlib import Path

import torch
from common import matmul_limit, prompt_ids, serve, settings

from rollbook.models.load import read_policy
from rollbook.models.runtime import keep_memory
from rollbook.records import Request
from rollbook.rollouts.engines.embedded import EmbeddedEngine

given = settings()
torch.set_num_threads(given["threads"])
policy = read_policy(Path(given["model"]), source="benchmark")
torch.set_flush_denormal(True)
keep_memory()
engine = EmbeddedEngine(stop_ids=frozenset(), dtype=torch.bfloat16, max_rows=max(given["batch"], 1))
engine.load(policy.decoder, 0)
group = given.get("group", 1)
parameters = sum(p.numel() for p in policy.decoder.parameters())
body = parameters - policy.decoder.model.embed_tokens.weight.numel()
prompts = [tuple(prompt_ids(lambda t: list(policy.tokenizer.encode(t)), i // group, given["prompt"])) for i in range(given["batch"])]


def once(number: int) -> dict:
    requests = [Request(key=f"{number}/{i}", prompt_ids=p, max_tokens=given["new"], temperature=1.0, top_p=1.0, top_k=0, min_p=0.0,
                        seed=1) for i, p in enumerate(prompts)]
    done = engine.sample(requests)
    return {"tokens": sum(len(one.token_ids) for one in done)}


def round_(number: int) -> dict:
    if number == 0:
        return once(0) | {"limit_gflops": matmul_limit(torch), "parameters": parameters, "body": body}
    return once(number)


serve(round_)
