"""Log-probs over the support that was sampled from: what the engine reports is what the trainer recomputes from the record."""

import pytest
import torch
from policies import ARCHITECTURES, engine_of, prompts, request, tiny_policy

from rollbook.models.layout import Tree, pack
from rollbook.models.logprobs import action_logprobs, support_logprobs
from rollbook.models.support import recorded_support
from rollbook.records import ModelError

NARROW = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05}


def sampled(policy, **settings):
    asked = [request(f"{place}/{sample}", prompt, **settings)
             for place, prompt in enumerate(prompts(policy)) for sample in range(3)]
    done = engine_of(policy).sample(asked)
    trees = [Tree(prompt=prompt, continuations=tuple(one.token_ids for one in done[3 * place:3 * place + 3]),
                  actions=tuple((True,) * len(one.token_ids) for one in done[3 * place:3 * place + 3]))
             for place, prompt in enumerate(prompts(policy))]
    return done, pack(trees, window=policy.decoder.architecture.window)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("settings", [NARROW, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.0, "min_p": 0.05}])
def test_engine_and_trainer_agree_over_the_recorded_support(architecture, settings):
    policy = tiny_policy(architecture)
    done, layout = sampled(policy, **settings)
    reported = torch.tensor([logp for one in done for logp in one.logps])
    support = recorded_support([one.support for one in done])
    with torch.no_grad():
        inside = support_logprobs(policy.decoder, layout, support, temperature=settings["temperature"], dtype=torch.float32)
        plain = action_logprobs(policy.decoder, layout, temperature=settings["temperature"], dtype=torch.float32)
    assert (inside.logp_T - reported).abs().max() < 1e-4
    mass = torch.tensor([one for completion in done for one in completion.support.log_mass])
    assert (plain.logp_T - mass - reported).abs().max() < 1e-4          # the mass leads back to the whole vocabulary
    assert (plain.logp_T - reported).abs().max() > 0.01                 # and the two differ, so that the test can tell


def test_the_gradient_over_the_support_is_that_of_the_plain_expression():
    policy = tiny_policy("llama")
    done, layout = sampled(policy, **NARROW)
    support = recorded_support([one.support for one in done])
    parameters = dict(policy.decoder.named_parameters())
    scores = support_logprobs(policy.decoder, layout, support, temperature=0.7, dtype=torch.float32)
    weight = torch.cos(scores.logp_T.detach())
    found = torch.autograd.grad((weight * scores.logp_T).sum(), list(parameters.values()))
    logits = policy.decoder(layout, torch.float32)[layout.predictor_T] @ policy.decoder.head.T / 0.7
    logp = logits.masked_fill(~support.mask(logits.shape[1]), float("-inf")).log_softmax(-1)
    plain = logp.gather(1, layout.target_T[:, None])[:, 0]
    entropy = torch.distributions.Categorical(logits=logp).entropy()
    for name, one, other in zip(parameters, found, torch.autograd.grad((weight * plain).sum(), list(parameters.values())),
                                strict=True):
        assert (one - other).abs().max() <= 1e-5 * other.abs().max(), name
    assert torch.allclose(scores.entropy_T, entropy.detach(), atol=1e-5)


def test_a_completion_over_the_whole_vocabulary_has_no_support_and_cannot_be_mixed_with_one_that_has():
    policy = tiny_policy("llama")
    (narrow, *_), _ = sampled(policy, **NARROW)
    (plain, *_), _ = sampled(policy)
    assert plain.support is None and sum(narrow.support.counts) == len(narrow.support.ids)
    assert len(narrow.support.counts) == len(narrow.support.log_mass) == len(narrow.token_ids)
    with pytest.raises(ModelError, match="for every sequence or for none"):
        recorded_support([narrow.support, plain.support])
