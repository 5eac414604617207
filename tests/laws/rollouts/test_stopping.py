"""What ends a request: ids, strings in its text, its length; and that it says which."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import engine_of, prompts, request, tiny_policy

from rollbook.models.load import locate
from rollbook.models.tokenizer import byte_tokenizer, load_tokenizer
from rollbook.rollouts.engines.stopping import Stops

TOKENIZER = byte_tokenizer()
TEXTS = st.text(alphabet="ab é€\n🙂", min_size=1, max_size=5)


@pytest.fixture(scope="module")
def policy():
    return tiny_policy("llama")


def first_completed(ids, strings):
    """By decoding everything again after every token: how many tokens it takes, and the strings that are then in the text."""
    for count in range(1, len(ids) + 1):
        met = {one for one in strings if one in TOKENIZER.decode(ids[:count])}
        if met:
            return count, met
    return None


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab é€\n🙂", max_size=20), st.lists(TEXTS, min_size=1, max_size=3), st.integers(0, 3))
def test_a_stop_string_is_found_with_the_token_that_completes_it_though_characters_span_tokens(text, strings, cut):
    ids = TOKENIZER.encode(text)[cut:]                                  # may begin within a character
    stops = Stops(ids=frozenset(), strings=tuple(strings), decode=TOKENIZER.decode)
    found = next(((count, stops.met(ids[:count])) for count in range(1, len(ids) + 1) if stops.met(ids[:count])), None)
    expected = first_completed(ids, strings)
    assert (found is None) == (expected is None)
    if found and expected:
        assert found[0] == expected[0] and found[1] in expected[1]


def test_a_stop_string_that_begins_and_ends_within_tokens_of_a_real_vocabulary_is_found_as_by_decoding_all():
    real = load_tokenizer(locate("smollm2-135m-instruct"))
    generator = random.Random(1)
    ids = real.encode("Let's see: 12 + 30 = 42, naïve café — 日本語 🙂.\n\nSo the answer is \\boxed{42}. ")
    for _ in range(200):
        tokens = [generator.choice(ids if generator.random() < 0.8 else range(real.vocab)) for _ in range(40)]
        text = real.decode(tokens)
        at, length = generator.randrange(len(text)), generator.randrange(1, 9)
        wanted = text[at:at + length]
        if "\ufffd" in wanted:
            continue
        stops = Stops(ids=frozenset(), strings=(wanted,), decode=real.decode)
        found = next(count for count in range(1, 41) if stops.met(tokens[:count]))
        assert found == next(count for count in range(1, 41) if wanted in real.decode(tokens[:count]))


def test_of_several_strings_the_one_that_ends_first_is_named_and_of_those_the_longest():
    whole = Stops(ids=frozenset(), strings=("b", "ab", "bc"), decode=lambda ids: "abcd"[:4 * len(ids)])
    assert whole.met([7]) == "ab"


def test_a_stop_string_ends_a_request_with_the_token_that_completed_it(policy):
    engine, prompt = engine_of(policy), prompts(policy)[0]
    (free,) = engine.sample([request("a", prompt)])
    text = policy.tokenizer.decode(free.token_ids)
    wanted = next(text[at:at + 3] for at in range(4, len(text) - 3) if "\ufffd" not in text[at:at + 3])
    (stopped,) = engine.sample([request("a", prompt, stop=("never in it", wanted))])
    count = next(n for n in range(1, 25) if wanted in policy.tokenizer.decode(free.token_ids[:n]))
    assert stopped.token_ids == free.token_ids[:count] and stopped.logps == pytest.approx(free.logps[:count], abs=1e-5)
    assert (stopped.stop_reason, stopped.stopped_by) == ("stop_string", wanted)


def test_every_stop_id_of_a_request_ends_it_and_is_named(policy):
    engine, prompt = engine_of(policy), prompts(policy)[0]
    (free,) = engine.sample([request("a", prompt)])
    at, other = 5, 9
    assert len(set(free.token_ids[:at + 1])) == len(free.token_ids[:at + 1])
    ids = (free.token_ids[other], free.token_ids[at])
    first = min(free.token_ids.index(one) for one in ids)
    stopped, beside = engine.sample([request("a", prompt, stop_ids=ids), request("b", prompt)])
    assert stopped.token_ids == free.token_ids[:first + 1]
    assert (stopped.stop_reason, stopped.stopped_by) == ("end_of_turn", free.token_ids[first])
    assert beside.stop_reason == "length" and beside.stopped_by is None and len(beside.token_ids) == 24


REFUSED = {"stop_ids": ({"stop_ids": (3, 9999)}, "stop_id", "9999 for a vocabulary"),
           "empty": ({"stop": ("x", "")}, "stop_string", "empty stop string"),
           "bytes": ({"stop": ("\ufffd",)}, "stop_string", "no character"),
           "context": ({"max_tokens": 128}, "context", "128 new tokens for 128"),
           "nothing": ({"max_tokens": 0}, "empty_request", "0 new tokens"),
           "no prompt": ({"prompt_ids": ()}, "empty_request", "0 prompt tokens"),
           "sampling": ({"top_p": 0.0}, "bad_sampling", "top_p 0.0")}


@pytest.mark.parametrize("which", REFUSED)
def test_a_request_that_cannot_be_answered_is_named_with_its_numbers_and_the_others_are_answered(policy, which):
    changes, code, words = REFUSED[which]
    engine, asked = engine_of(policy), prompts(policy)
    good = [request("good/0", asked[0]), request("good/1", asked[1])]
    bad = request("the bad one", changes.get("prompt_ids", asked[2]), **{k: v for k, v in changes.items() if k != "prompt_ids"})
    one, failed, two = engine.sample([good[0], bad, good[1]])
    assert [c.token_ids for c in (one, two)] == [c.token_ids for c in engine.sample(good)]
    assert failed.stop_reason == "failed" and failed.token_ids == () and failed.sampled is None
    assert failed.fault.code == code and "request the bad one" in failed.fault.detail and words in failed.fault.detail


def test_stop_strings_need_an_engine_that_can_read(policy):
    engine = engine_of(policy)
    engine.decode = None
    (failed,) = engine.sample([request("a", prompts(policy)[0], stop=("x",))])
    assert failed.fault.code == "stop_string" and "decode" in failed.fault.detail
