"""The engine's log-probs, the trainer's and transformers' are the same numbers."""

import pytest
import torch
from policies import ARCHITECTURES, completions, prompts, tiny_policy, transformers_logps

from rollbook.models.layout import Tree, pack
from rollbook.models.logprobs import action_logprobs

TOLERANCE = 1e-4


def _trees(asked, answered):
    return [Tree(prompt=prompt, continuations=tuple(c.token_ids for c in answers),
                 actions=tuple((True,) * len(c.token_ids) for c in answers))
            for prompt, answers in zip(asked, answered, strict=True)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_engine_reports_the_log_probs_the_trainer_recomputes(architecture):
    policy = tiny_policy(architecture)
    asked = prompts(policy)
    answered = completions(policy, asked, per_prompt=3, temperature=0.8)
    layout = pack(_trees(asked, answered), window=policy.decoder.architecture.window)
    with torch.no_grad():
        scored = action_logprobs(policy.decoder, layout, temperature=0.8, dtype=torch.float32)
    reported = torch.tensor([x for answers in answered for c in answers for x in c.logps])
    assert (scored.logp_T - reported).abs().max() < TOLERANCE


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_trainer_computes_the_log_probs_of_the_transformers_model(architecture, tmp_path):
    policy = tiny_policy(architecture)
    asked = prompts(policy)
    answered = completions(policy, asked, per_prompt=2, temperature=1.0)
    layout = pack(_trees(asked, answered), window=policy.decoder.architecture.window)
    with torch.no_grad():
        scored = action_logprobs(policy.decoder, layout, temperature=1.0, dtype=torch.float32)
    expected = transformers_logps(policy, tmp_path / "model", asked, answered)
    assert (scored.logp_T - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_shared_prompt_gives_the_loss_and_gradient_of_a_repeated_one(architecture):
    policy = tiny_policy(architecture)
    asked = prompts(policy)
    trees = _trees(asked, completions(policy, asked, per_prompt=3, temperature=1.0))
    alone = [Tree(prompt=t.prompt, continuations=(own,), actions=(acts,))
             for t in trees for own, acts in zip(t.continuations, t.actions, strict=True)]
    shared, repeated = (_gradient(policy.decoder, [some]) for some in (trees, alone))
    split = _gradient(policy.decoder, [[one] for one in alone])
    for name, gradient in repeated.items():
        limit = 1e-5 * gradient.abs().max().clamp(min=1e-12)
        assert (shared[name] - gradient).abs().max() <= limit, name
        assert (split[name] - gradient).abs().max() <= limit, name


def _gradient(decoder, batches):
    decoder.zero_grad()
    for trees in batches:
        layout = pack(trees, window=decoder.architecture.window)
        scores = action_logprobs(decoder, layout, temperature=1.0, dtype=torch.float32)
        (scores.logp_T * torch.cos(scores.logp_T.detach())).sum().backward()
    return {name: p.grad.clone() for name, p in decoder.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_request_draws_the_same_tokens_alone_and_in_a_batch(architecture):
    policy = tiny_policy(architecture)
    asked = prompts(policy)
    together = completions(policy, asked, per_prompt=2, temperature=1.0)
    for index, prompt in enumerate(asked):
        alone = completions(policy, [prompt], per_prompt=2, temperature=1.0, first=index)[0]
        assert [c.token_ids for c in alone] == [c.token_ids for c in together[index]]
        for one, other in zip(alone, together[index], strict=True):
            assert one.logps == pytest.approx(other.logps, abs=TOLERANCE)


def test_a_window_is_exact_at_its_border():
    policy = tiny_policy("mistral")
    assert policy.decoder.architecture.window is not None
    assert max(len(p) for p in prompts(policy)) > policy.decoder.architecture.window
