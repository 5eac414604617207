"""Sampling draws from the distribution it reports, from uniforms that only the attempt's name decides."""

import dataclasses

import numpy as np
import pytest
import torch
from policies import completions, prompts, tiny_policy
from scipy import stats

from rollbook.records import ModelError, Request
from rollbook.rollouts.engines import sampling
from rollbook.rollouts.engines.embedded import EmbeddedEngine
from rollbook.rollouts.engines.sampling import draw, support, uniforms

REQUEST = Request(key="a", prompt_ids=(1,), max_tokens=4, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=1)


def test_draws_follow_the_softmax_at_the_sampling_temperature():
    logits = torch.tensor([[1.0, -0.5, 2.0, 0.0, -3.0]])
    request = dataclasses.replace(REQUEST, temperature=0.7)
    count = 20_000
    drawn = draw(logits.repeat(count, 1), torch.from_numpy(uniforms(3, "k", count)), request)
    expected = torch.softmax(logits[0] / 0.7, -1)
    observed = np.bincount(drawn.token_B.numpy(), minlength=5)
    assert stats.chisquare(observed, expected.double().numpy() / float(expected.double().sum()) * count).pvalue > 1e-4
    assert drawn.logp_B.exp() == pytest.approx(expected[drawn.token_B], abs=1e-6)


def allowed_by_definition(logits, request):
    """Top-k, then top-p, then min-p over the whole sorted vocabulary: row by row, id by id."""
    mask = torch.zeros_like(logits, dtype=torch.bool)
    for row, probability in enumerate(logits.softmax(-1)):
        order = probability.sort(descending=True).indices.tolist()
        before = 0.0
        for rank, token in enumerate(order):
            if rank and ((request.top_k and rank >= request.top_k) or (request.top_p < 1.0 and before >= request.top_p)
                         or float(probability[token]) < request.min_p * float(probability[order[0]])):
                break
            mask[row, token] = True
            before += float(probability[token])
    return mask


FILTERS = [{"top_k": 2}, {"top_p": 0.6}, {"min_p": 0.3}, {"top_k": 3, "top_p": 0.9, "min_p": 0.01}]


@pytest.mark.parametrize("changes", FILTERS)
def test_log_probs_are_those_of_the_support_that_was_sampled_from(changes):
    request = dataclasses.replace(REQUEST, **changes)
    logits = torch.randn(64, 11, generator=torch.Generator().manual_seed(2))
    allowed = allowed_by_definition(logits, request)
    drawn = draw(logits, torch.rand(64, generator=torch.Generator().manual_seed(3), dtype=torch.float64), request)
    inside = torch.log_softmax(logits.masked_fill(~allowed, float("-inf")), -1)
    assert allowed[torch.arange(64), drawn.token_B].all()
    assert torch.allclose(drawn.logp_B, inside[torch.arange(64), drawn.token_B], atol=1e-5)


@pytest.mark.parametrize("changes", [*FILTERS, {"top_k": 5000}, {"top_p": 1e-6}, {"min_p": 1.0}])
@pytest.mark.parametrize("spread", [0.05, 2.0])         # nearly flat: more candidates than are looked at first
def test_the_recorded_support_is_its_definition_and_its_mass_the_probability_it_held(changes, spread):
    request = dataclasses.replace(REQUEST, **changes)
    logits = spread * torch.randn(6, 3000, generator=torch.Generator().manual_seed(4))
    kept = support(logits, request)
    allowed = allowed_by_definition(logits, request)
    for row in range(6):
        ids = kept.id_BC[row, :int(kept.count_B[row])].tolist()
        expected = allowed[row].nonzero()[:, 0].tolist()
        assert ids == sorted(ids) and len(set(ids) ^ set(expected)) <= 1        # one may sit on the border of the sum
        assert float(kept.log_mass_B[row]) == pytest.approx(float(logits[row].softmax(-1)[ids].sum().log()), abs=1e-4)


def test_a_row_draws_the_same_from_its_support_whatever_its_neighbours_need():
    request = dataclasses.replace(REQUEST, top_p=0.9)
    logits = torch.randn(3, 3000, generator=torch.Generator().manual_seed(5)) * torch.tensor([[6.0], [0.05], [3.0]])
    uniform = torch.tensor([0.3, 0.8, 0.99], dtype=torch.float64)
    together = draw(logits, uniform, request)
    for row in range(3):
        assert draw(logits[row:row + 1], uniform[row:row + 1], request).token_B[0] == together.token_B[row]


def test_temperature_zero_takes_the_most_likely_token():
    drawn = draw(torch.tensor([[0.0, 3.0, 1.0]]), torch.tensor([0.999]), dataclasses.replace(REQUEST, temperature=0.0))
    assert drawn.token_B.tolist() == [1]


def test_the_largest_uniform_still_draws_a_token_of_positive_probability():
    logits = torch.tensor([[2.0, 1.0, float("-inf")]])
    top = float(np.nextafter(1.0, 0.0))
    assert draw(logits, torch.tensor([top], dtype=torch.float64), REQUEST).token_B.tolist() == [1]


@pytest.mark.parametrize("vocab", [255, 256, 257, 1000, 49_152])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_draw_is_the_inverse_of_the_whole_cumulative_distribution_wherever_its_blocks_end(vocab, dtype):
    rows = sampling.NEAR // vocab + 3 if vocab > 1000 else 40            # more rows than are passed over together
    logits = (3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab))).to(dtype)
    uniform = torch.from_numpy(uniforms(7, "k", rows))
    drawn = draw(logits, uniform, REQUEST)
    cumulative = logits.double().softmax(-1).cumsum(-1)
    above = cumulative.gather(1, drawn.token_B[:, None])[:, 0]
    below = torch.where(drawn.token_B > 0, cumulative.gather(1, (drawn.token_B - 1).clamp(min=0)[:, None])[:, 0], 0.0)
    assert bool(((below - 1e-6 <= uniform) & (uniform <= above + 1e-6)).all())
    exact = logits.double().log_softmax(-1).gather(1, drawn.token_B[:, None])[:, 0]
    assert drawn.logp_B.double() == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("changes", [{}, {"top_k": 5}])
def test_a_row_that_cannot_be_drawn_from_says_so_and_leaves_the_others_alone(bad, changes):
    request = dataclasses.replace(REQUEST, **changes)
    logits = torch.randn(9, 600, generator=torch.Generator().manual_seed(2))
    uniform = torch.from_numpy(uniforms(7, "k", 9))
    plain = draw(logits, uniform, request)
    logits[4, 311] = bad
    drawn = draw(logits, uniform, request)
    others = torch.arange(9) != 4
    assert drawn.sound_B.tolist() == others.tolist()
    assert torch.equal(drawn.token_B[others], plain.token_B[others]) and torch.equal(drawn.logp_B[others], plain.logp_B[others])


def test_uniforms_depend_on_seed_key_and_position_alone():
    assert np.array_equal(uniforms(1, "a", 8)[:3], uniforms(1, "a", 3))
    assert not np.array_equal(uniforms(1, "a", 3), uniforms(1, "b", 3))
    assert not np.array_equal(uniforms(1, "a", 3), uniforms(2, "a", 3))


def test_more_requests_than_rows_give_the_same_tokens_as_room_for_all():
    policy = tiny_policy("llama")
    asked = prompts(policy) * 3
    plain = completions(policy, asked, per_prompt=3, temperature=1.0)
    engine = EmbeddedEngine(stop_ids=policy.tokenizer.stop_ids, dtype=torch.float32, max_rows=4)
    engine.load(policy.decoder, 0)
    requests = [Request(key=f"{place}/{sample}", prompt_ids=prompt, max_tokens=24, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0,
                        seed=5) for place, prompt in enumerate(asked) for sample in range(3)]
    tight = engine.sample(requests)
    assert [c.token_ids for c in tight] == [c.token_ids for group in plain for c in group]


def test_an_engine_without_weights_or_with_one_key_twice_refuses_the_call():
    policy = tiny_policy("llama")
    engine = EmbeddedEngine(stop_ids=policy.tokenizer.stop_ids, dtype=torch.float32)
    with pytest.raises(ModelError, match="no weights"):
        engine.sample([REQUEST])
    engine.load(policy.decoder, 0)
    with pytest.raises(ModelError, match="one key"):
        engine.sample([REQUEST, REQUEST])
