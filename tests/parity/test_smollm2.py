"""The shipped 135M model: engine, trainer and transformers agree on it."""

import pytest
import torch
from policies import completions, transformers_logps

from rollbook.models.layout import Tree, pack
from rollbook.models.load import load_policy
from rollbook.models.logprobs import action_logprobs
from rollbook.records import Message
from rollbook.records.recipe import Pretrained


@pytest.fixture(scope="module")
def answered():
    policy = load_policy(Pretrained(path="smollm2-135m-instruct", context=512))
    asked = [policy.tokenizer.prompt((Message(role="user", content=text),)) for text in ("23 + 38 =", "Name a colour.")]
    return policy, asked, completions(policy, asked, per_prompt=2, temperature=1.0, max_tokens=16)


def logps(policy, asked, answers, dtype):
    trees = [Tree(prompt=p, continuations=tuple(c.token_ids for c in some),
                  actions=tuple((True,) * len(c.token_ids) for c in some)) for p, some in zip(asked, answers, strict=True)]
    with torch.no_grad():
        return action_logprobs(policy.decoder, pack(trees), temperature=1.0, dtype=dtype).logp_T


def test_engine_trainer_and_transformers_agree_in_fp32(answered, tmp_path):
    policy, asked, answers = answered
    reported = torch.tensor([x for some in answers for c in some for x in c.logps])
    trained = logps(policy, asked, answers, torch.float32)
    assert (trained - reported).abs().max() < 1e-4
    assert (trained - transformers_logps(policy, tmp_path / "m", asked, answers)).abs().max() < 1e-4


def test_the_bf16_mismatch_is_small_on_tokens_the_engine_sampled(answered):
    policy, asked, _ = answered
    sampled = completions(policy, asked, per_prompt=4, temperature=1.0, dtype=torch.bfloat16, max_tokens=16)
    reported = torch.tensor([x for some in sampled for c in some for x in c.logps])
    gap = logps(policy, asked, sampled, torch.bfloat16) - reported
    assert float((torch.exp(gap) - 1 - gap).mean()) < 0.01
