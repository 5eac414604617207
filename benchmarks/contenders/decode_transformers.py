"""Decoding with transformers' generate: the same prompts and lengths, bf16, its default cache."""

import torch
from common import prompt_ids, serve, settings
from transformers import AutoModelForCausalLM, AutoTokenizer

given = settings()
torch.set_num_threads(given["threads"])
model = AutoModelForCausalLM.from_pretrained(given["model"], dtype=torch.bfloat16).eval()
tokenizer = AutoTokenizer.from_pretrained(given["model"])
group = given.get("group", 1)
ids = torch.tensor([prompt_ids(lambda t: tokenizer.encode(t, add_special_tokens=False), i // group, given["prompt"])
                    for i in range(given["batch"])])


def round_(number: int) -> dict:
    torch.manual_seed(number)
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                             max_new_tokens=given["new"], min_new_tokens=given["new"], pad_token_id=0)
    return {"tokens": int(out[:, ids.shape[1]:].numel())}


serve(round_)
