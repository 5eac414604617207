"""A model of one layer decodes like any other: its cache grows as far as its memory reaches."""

import torch

from rollbook.models.layout import Tree, pack
from rollbook.models.load import load_policy
from rollbook.models.logprobs import action_logprobs
from rollbook.records import Request
from rollbook.records.recipe import Tiny
from rollbook.rollouts.engines.embedded import EmbeddedEngine


def test_a_single_layer_answers_beyond_the_first_room_of_its_cache_as_the_trainer_scores_it():
    policy = load_policy(Tiny(architecture="llama", layers=1, hidden=32, heads=2, kv_heads=1, intermediate=64, context=128,
                              window=None, experts=0, experts_per_token=0, seed=1))
    with torch.no_grad():
        for parameter in policy.decoder.parameters():
            parameter.mul_(8.0 if parameter.ndim > 1 else 1.0)          # far enough from uniform for the cache to matter
    engine = EmbeddedEngine(stop_ids=policy.tokenizer.stop_ids, dtype=torch.float32, decode=policy.tokenizer.decode)
    engine.load(policy.decoder, 0)
    prompt = policy.tokenizer.encode("<|im_start|>12+34=")
    asked = [Request(key=str(i), prompt_ids=prompt, max_tokens=64, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=1)
             for i in range(6)]
    answers = engine.sample(asked)
    assert max(len(one.token_ids) for one in answers) > 40
    for one in answers:
        tree = Tree(prompt=prompt, continuations=(one.token_ids,), actions=((True,) * len(one.token_ids),))
        with torch.no_grad():
            trainer = action_logprobs(policy.decoder, pack((tree,)), temperature=1.0, dtype=torch.float32).logp_T
        assert (trainer - torch.tensor(one.logps)).abs().max() < 1e-3
