"""The same optimizer step in a plain transformers loop: one padded row per answer, log-softmax over the whole vocabulary, AdamW."""

from __future__ import annotations

from typing import Any

import torch
from common import peak_gib, prompt_ids, serve, settings
from transformers import AutoModelForCausalLM, AutoTokenizer

given = settings()
torch.set_num_threads(given["threads"])
tokenizer = AutoTokenizer.from_pretrained(given["model"])
model = AutoModelForCausalLM.from_pretrained(given["model"], dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
encode = lambda text: tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
rows = torch.tensor([prompt_ids(encode, g, given["prompt"]) + prompt_ids(encode, 1000 + g * given["group"] + i, given["new"])
                     for g in range(given["prompts"]) for i in range(given["group"])])
per_micro = max(1, given.get("max_batch_tokens", 4096) // rows.shape[1])


def round_(number: int) -> dict[str, Any]:
    optimizer.zero_grad()
    for part in rows.split(per_micro):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(part).logits[:, given["prompt"] - 1:-1]
        logp = logits.float().log_softmax(-1).gather(-1, part[:, given["prompt"]:, None])
        (-logp.sum() / (rows.shape[0] * given["new"])).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return {"tokens": rows.numel(), "peak_gib": peak_gib()}


serve(round_)
