"""Small real policies for tests."""

import torch

from rollbook.models.load import load_policy
from rollbook.models.weights import save_checkpoint
from rollbook.records import Message, Request
from rollbook.records.recipe import Tiny
from rollbook.rollouts.engines.embedded import EmbeddedEngine

ARCHITECTURES = ("llama", "mistral", "qwen3_moe")


def tiny_policy(architecture, *, seed=3):
    moe = architecture == "qwen3_moe"
    policy = load_policy(Tiny(architecture=architecture, layers=2, hidden=64, heads=4, kv_heads=2, intermediate=96, context=128,
                              window=6 if architecture == "mistral" else None, experts=8 if moe else 0,
                              experts_per_token=2 if moe else 0, seed=seed))
    with torch.no_grad():                       # larger weights: distributions that are not flat
        for parameter in policy.decoder.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    return policy


def prompts(policy):
    return [policy.tokenizer.prompt((Message(role="user", content=text),)) for text in ("1 + 1 =", "23 - 4 =", "what is it?")]


def completions(policy, asked, *, per_prompt, temperature, first=0, dtype=torch.float32, max_tokens=24):
    engine = EmbeddedEngine(stop_ids=policy.tokenizer.stop_ids, dtype=dtype)
    engine.load(policy.decoder, 0)
    requests = [Request(key=f"{place}/{sample}", prompt_ids=prompt, max_tokens=max_tokens, temperature=temperature, top_p=1.0,
                        top_k=0, min_p=0.0, seed=5)
                for place, prompt in enumerate(asked, start=first) for sample in range(per_prompt)]
    made = engine.sample(requests)
    return [made[at:at + per_prompt] for at in range(0, len(made), per_prompt)]


def transformers_logps(policy, folder, asked, answered):
    from transformers import AutoModelForCausalLM
    save_checkpoint(folder, policy.decoder, policy.tokenizer)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    values = []
    for prompt, answers in zip(asked, answered, strict=True):
        for completion in answers:
            with torch.no_grad():
                logp = model(torch.tensor([prompt + completion.token_ids])).logits[0].log_softmax(-1)
            values += [logp[len(prompt) - 1 + i, token] for i, token in enumerate(completion.token_ids)]
    return torch.stack(values)


def engine_of(policy, *, dtype=torch.float32, **settings):
    """An engine that holds the policy's weights as version 0 and can read its text."""
    engine = EmbeddedEngine(stop_ids=policy.tokenizer.stop_ids, dtype=dtype, decode=policy.tokenizer.decode, **settings)
    engine.load(policy.decoder, 0)
    return engine


def request(key, prompt, **changes):
    """A request at temperature 1 over the whole vocabulary, unless changed."""
    return Request(**{"key": key, "prompt_ids": prompt, "max_tokens": 24, "temperature": 1.0, "top_p": 1.0, "top_k": 0,
                      "min_p": 0.0, "seed": 5} | changes)
