"""How much a request's sample depends on what else is in the batch: not beyond floating point."""

import pytest
import torch
from policies import ARCHITECTURES, engine_of, prompts, request, tiny_policy

from rollbook.models.layout import Tree, pack
from rollbook.models.logprobs import full_logprobs
from rollbook.rollouts.engines.sampling import uniforms

NOISE = 1e-5            # of cumulative probability in fp32: how near a border a uniform must be for a sample to go either way
REQUESTS, TOKENS = 64, 16


def in_parts(policy, requests, size):
    """The completions of calls with so many requests each."""
    engine = engine_of(policy)
    return [one for at in range(0, len(requests), size) for one in engine.sample(requests[at:at + size])]


def distance(policy, one, tokens, place):
    """How far the uniform is from the nearest border of either token, by the trainer's distribution at the place they part."""
    tree = Tree(prompt=one.prompt_ids, continuations=(tokens[0][:place + 1],), actions=((False,) * place + (True,),))
    layout = pack([tree], window=policy.decoder.architecture.window)
    (logp,) = full_logprobs(policy.decoder, layout, temperature=one.temperature, dtype=torch.float32)
    cumulative = torch.cat([torch.zeros(1, dtype=torch.float64), logp[0].double().exp().cumsum(0)])
    uniform = uniforms(one.seed, one.key, place + 1)[place]
    borders = [float(cumulative[index]) for tokens_ in tokens for index in (tokens_[place], tokens_[place] + 1)]
    return min(abs(uniform - border) for border in borders)


def parted(policy, requests, batches):
    """The distance from a border of every request whose samples differ, in any of the batches, from the first's."""
    found = []
    for other in batches[1:]:
        for one, mine, theirs in zip(requests, batches[0], other, strict=True):
            if mine.token_ids != theirs.token_ids:
                pairs = zip(mine.token_ids, theirs.token_ids, strict=False)
                place = next(at for at, (a, b) in enumerate(pairs) if a != b)
                found.append(distance(policy, one, (mine.token_ids, theirs.token_ids), place))
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_batches_of_1_7_and_64_draw_the_same_tokens_unless_a_uniform_falls_within_float_noise_of_a_border(architecture):
    policy = tiny_policy(architecture)
    asked = [request(f"r{index}", prompts(policy)[index % 3] + (index,), max_tokens=TOKENS) for index in range(REQUESTS)]
    batches = [in_parts(policy, asked, size) for size in (1, 7, 64)]
    distances = parted(policy, asked, batches)
    assert all(one < NOISE for one in distances), distances
    assert len(distances) <= 2          # 2 x 64 x 16 tokens, each within 1e-5 of one of two borders: 0.04 expected
    for other in batches[1:]:
        for mine, theirs in zip(batches[0], other, strict=True):
            if mine.token_ids == theirs.token_ids:
                assert mine.logps == pytest.approx(theirs.logps, abs=1e-4)


def test_a_sample_that_its_neighbours_really_changed_is_told_from_float_noise():
    policy = tiny_policy("llama")
    asked = [request(f"r{index}", prompts(policy)[index % 3], max_tokens=TOKENS) for index in range(8)]
    mine = in_parts(policy, asked, 8)
    theirs = in_parts(policy, [request(f"s{index}", one.prompt_ids, max_tokens=TOKENS) for index, one in enumerate(asked)], 8)
    assert max(parted(policy, asked, [mine, theirs])) > 100 * NOISE
