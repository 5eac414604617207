"""Decoding with vLLM's CPU build: the same prompts and lengths, bf16, eager, log-probs of the sampled token as RL needs them."""

import os

from common import prompt_ids, serve, settings

given = settings()
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "all")
from vllm import LLM, SamplingParams

model = LLM(given["model"], dtype="bfloat16", max_num_seqs=given["batch"], max_model_len=given["prompt"] + given["new"] + 16,
            enforce_eager=True, enable_prefix_caching=False, disable_log_stats=True)
tokenizer = model.get_tokenizer()
group = given.get("group", 1)
prompts = [{"prompt_token_ids": prompt_ids(lambda t: tokenizer.encode(t, add_special_tokens=False), i // group, given["prompt"])}
           for i in range(given["batch"])]


def round_(number: int) -> dict:
    asked = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=given["new"], min_tokens=given["new"], ignore_eos=True,
                           seed=None, logprobs=0 if given.get("logprobs") else None, detokenize=False)
    done = model.generate(prompts, asked, use_tqdm=False)
    return {"tokens": sum(len(one.outputs[0].token_ids) for one in done)}


serve(round_)
