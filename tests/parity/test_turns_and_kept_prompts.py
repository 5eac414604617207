"""Keys and values that are kept, between turns or calls, give what computing them again would; never with other weights."""

import pytest
import torch
from policies import ARCHITECTURES, engine_of, prompts, request, tiny_policy

from rollbook.models.layout import Tree, pack
from rollbook.models.logprobs import action_logprobs
from rollbook.models.working_copy import WorkingCopy
from rollbook.records import ModelError
from rollbook.rollouts.engines.memory import needed, position_bytes

TOLERANCE = 1e-4
SEEN = ((7, 8, 9), (10,), tuple(range(30, 41)))


def scored(policy, prompt, spoken):
    """The trainer's log-probs of sampled tokens after a prompt that holds everything before them."""
    layout = pack([Tree(prompt=prompt, continuations=(spoken,), actions=((True,) * len(spoken),))],
                  window=policy.decoder.architecture.window)
    with torch.no_grad():
        return action_logprobs(policy.decoder, layout, temperature=1.0, dtype=torch.float32).logp_T


@pytest.fixture
def computed(monkeypatch):
    """How many tokens every prefill computed."""
    counts, real = [], WorkingCopy.prefill

    def prefill(self, token_BP, length_B, prefix=None):
        counts.append(int(length_B.sum()))
        return real(self, token_BP, length_B, prefix)
    monkeypatch.setattr(WorkingCopy, "prefill", prefill)
    return counts


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_turns_that_keep_their_cache_equal_computing_everything_again(architecture, computed):
    policy = tiny_policy(architecture)
    engine = engine_of(policy)
    with engine.open(request("a", prompts(policy)[0], max_tokens=8)) as turns:
        for observation in SEEN:
            before = turns.token_ids
            new = len(before) - turns.cached
            computed.clear()
            done = turns.sample()
            assert computed == [new] and turns.cached == len(turns.token_ids) - 1
            assert turns.token_ids == before + done.token_ids
            assert torch.tensor(done.logps) == pytest.approx(scored(policy, before, done.token_ids), abs=TOLERANCE)
            turns.append(observation)


def test_the_turns_of_several_attempts_decode_together_as_each_would_alone():
    policy = tiny_policy("llama")
    said = []
    for together in (True, False):
        engine = engine_of(policy)
        several = [engine.open(request(f"t{place}", prompt, max_tokens=6)) for place, prompt in enumerate(prompts(policy))]
        for observation in SEEN:
            found = engine.sample_turns(several) if together else [turns.sample() for turns in several]
            assert all(one.fault is None for one in found)
            for turns in several:
                turns.append(observation)
        said.append([turns.token_ids for turns in several])
    assert said[0] == said[1]


def test_the_first_turn_is_the_single_turn_request_and_later_ones_continue_its_uniforms():
    policy = tiny_policy("llama")
    engine, asked = engine_of(policy), request("a", prompts(policy)[0], max_tokens=12, stop_ids=())
    (whole,) = engine.sample([asked])
    turns = engine.open(request("a", asked.prompt_ids, max_tokens=4))
    parts = [turns.sample() for _ in range(3)]
    assert sum((one.token_ids for one in parts), ()) == whole.token_ids
    assert sum((one.logps for one in parts), ()) == pytest.approx(whole.logps, abs=TOLERANCE)


def moved(policy, by=0.02):
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in policy.decoder.parameters():
            if parameter.ndim > 1:
                parameter.add_(by * torch.randn(parameter.shape, generator=generator))


def test_an_update_between_two_turns_computes_the_history_with_the_new_weights(computed):
    policy = tiny_policy("llama")
    engine = engine_of(policy)
    turns = engine.open(request("a", prompts(policy)[1], max_tokens=8))
    first = turns.sample()
    turns.append(SEEN[0])
    moved(policy)
    engine.load(policy.decoder, 1)
    before = turns.token_ids
    computed.clear()
    second = turns.sample()
    assert computed == [len(before)]
    assert set(first.versions) == {0} and set(second.versions) == {1}
    assert torch.tensor(second.logps) == pytest.approx(scored(policy, before, second.token_ids), abs=TOLERANCE)


def test_a_budget_without_room_for_kept_turns_computes_them_again_and_says_the_same():
    policy = tiny_policy("llama")
    one = position_bytes(policy.decoder.architecture, torch.float32)
    said = []
    for budget in (None, one * (2 * (len(prompts(policy)[0]) + 8 + len(SEEN[0])) + 8)):         # what one turn needs alone
        engine = engine_of(policy, kv_bytes=budget)
        several = [engine.open(request(f"t{index}", prompts(policy)[0], max_tokens=8)) for index in range(3)]
        for observation in SEEN[:2]:
            assert all(done.fault is None for done in engine.sample_turns(several))
            for turns in several:
                turns.append(observation)
        assert budget is None or sum(turns.bytes for turns in several) <= budget
        said.append([turns.token_ids for turns in several])
    assert said[0] == said[1]


def test_an_open_attempt_gives_its_cache_up_to_a_request_that_needs_the_whole_budget_and_goes_on_as_before():
    policy = tiny_policy("llama")
    large = request("large", prompts(policy)[2], max_tokens=60)
    budget = position_bytes(policy.decoder.architecture, torch.float32) * needed(large)
    said = []
    for disturbed in (True, False):
        engine = engine_of(policy, kv_bytes=budget)
        turns = engine.open(request("a", prompts(policy)[0], max_tokens=8))
        turns.sample()
        assert turns.cached > 0
        if disturbed:
            assert engine.sample([large])[0].fault is None and turns.cached == 0
        turns.append(SEEN[0])
        turns.sample()
        said.append(turns.token_ids)
    assert said[0] == said[1]


def test_a_turn_cut_by_the_context_says_so_and_one_that_has_none_left_fails_and_closes():
    policy = tiny_policy("llama")
    engine, prompt = engine_of(policy), prompts(policy)[0]
    turns = engine.open(request("a", prompt, max_tokens=128))
    done = turns.sample()
    while done.stop_reason == "end_of_turn":
        done = turns.sample()
    assert done.stop_reason == "context_full" and len(turns.token_ids) == policy.decoder.architecture.context
    assert turns.sample().fault.code == "context"
    with pytest.raises(ModelError, match="turns of a are over"):
        turns.append((1,))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_kept_prompt_gives_the_tokens_and_log_probs_of_one_that_is_computed(architecture, computed):
    policy = tiny_policy(architecture)
    engine = engine_of(policy, prefix_bytes=1 << 20)
    asked = [request(f"r{index}", prompts(policy)[index % 3], max_tokens=8) for index in range(6)]
    fresh = engine.sample(asked)
    computed.clear()
    kept = engine.sample(asked)
    assert computed == [] and engine.prompts.hits == 6
    assert [one.token_ids for one in kept] == [one.token_ids for one in fresh]
    for one, other in zip(kept, fresh, strict=True):
        assert one.logps == pytest.approx(other.logps, abs=TOLERANCE)


def test_kept_prompts_are_dropped_by_an_update_that_moved_the_weights_and_by_no_other():
    policy = tiny_policy("llama")
    engine = engine_of(policy, prefix_bytes=1 << 20)
    asked = [request("r", prompts(policy)[0], max_tokens=8)]
    engine.sample(asked)
    engine.load(policy.decoder, 1)                      # the same weights under a new version
    (still,) = engine.sample(asked)
    assert engine.prompts.hits == 1 and set(still.versions) == {1}
    moved(policy)
    engine.load(policy.decoder, 2)
    (done,) = engine.sample(asked)
    assert engine.prompts.hits == 1
    assert torch.tensor(done.logps) == pytest.approx(scored(policy, asked[0].prompt_ids, done.token_ids), abs=TOLERANCE)


def test_kept_prompts_stay_within_their_bytes_and_the_longest_unused_goes_first():
    policy = tiny_policy("llama")
    asked = [request(f"r{index}", prompt, max_tokens=2) for index, prompt in enumerate(prompts(policy))]
    one = position_bytes(policy.decoder.architecture, torch.float32)
    room = one * (len(asked[1].prompt_ids) + len(asked[2].prompt_ids)) + 2 * 4 * policy.decoder.architecture.vocab
    engine = engine_of(policy, prefix_bytes=room, kv_bytes=room + one * 4 * max(map(needed, asked)))
    for single in asked:
        engine.sample([single])
    assert engine.prompts.bytes <= room and set(engine.prompts.held) == {asked[1].prompt_ids, asked[2].prompt_ids}
