"""The bonus for entropy differentiates what autograd does on the whole vocabulary, and changes nothing where it is absent."""

import pytest
import torch
from policies import completions, prompts, tiny_policy

from rollbook.models import logprobs
from rollbook.models.layout import Tree, pack
from rollbook.models.logprobs import action_logprobs


@pytest.fixture(scope="module")
def laid_out():
    policy = tiny_policy("llama")
    asked = prompts(policy)
    answered = completions(policy, asked, per_prompt=2, temperature=1.0)
    trees = [Tree(prompt=prompt, continuations=tuple(c.token_ids for c in answers),
                  actions=tuple((True,) * len(c.token_ids) for c in answers))
             for prompt, answers in zip(asked, answered, strict=True)]
    return policy.decoder, pack(trees, window=None)


def gradients(decoder, loss):
    decoder.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in decoder.named_parameters() if p.grad is not None}


def weighed(logp_T, entropy_T):
    slope_T = torch.linspace(-1.0, 2.0, logp_T.numel())
    return (logp_T * slope_T).sum() + (entropy_T * slope_T.flip(0)).sum()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_of_chunked_entropies_is_that_of_the_whole_distribution(laid_out, temperature, monkeypatch):
    decoder, layout = laid_out
    monkeypatch.setattr(logprobs, "CHUNK", 3)
    monkeypatch.setattr(logprobs, "BLOCK", 5)
    scores = action_logprobs(decoder, layout, temperature=temperature, dtype=torch.float32, entropy_gradient=True)
    mine = gradients(decoder, weighed(scores.logp_T, scores.entropy_T))
    logits = decoder(layout, torch.float32)[layout.predictor_T] @ decoder.head.T / temperature
    logp = logits.log_softmax(-1)
    picked = logp.gather(1, layout.target_T[:, None])[:, 0]
    theirs = gradients(decoder, weighed(picked, -(logp.exp() * logp).sum(-1)))
    assert mine.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert (mine[name] - gradient).abs().max() <= 1e-5 * gradient.abs().max(), name


def test_without_being_asked_entropies_carry_no_gradient_and_the_log_probs_gradient_is_the_same_bits(laid_out):
    decoder, layout = laid_out
    plain = action_logprobs(decoder, layout, temperature=1.0, dtype=torch.float32)
    assert not plain.entropy_T.requires_grad
    before = gradients(decoder, plain.logp_T.sum())
    asked = action_logprobs(decoder, layout, temperature=1.0, dtype=torch.float32, entropy_gradient=True)
    after = gradients(decoder, asked.logp_T.sum())
    assert all(torch.equal(before[name], after[name]) for name in before)
