"""Requests in flight: they come at any time, weights change inside a sequence, every token knows whose it is."""

import pytest
import torch
from policies import tiny_policy

from rollbook.models.layout import Tree, pack
from rollbook.models.logprobs import action_logprobs
from rollbook.records import ModelError, Request
from rollbook.rollouts.engines.embedded import EmbeddedEngine

TOLERANCE = 1e-4


def request(key, prompt=(5, 6, 7, 8), new=12):
    return Request(key=key, prompt_ids=tuple(prompt), max_tokens=new, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=3)


@pytest.fixture
def policy():
    return tiny_policy("llama")


@pytest.fixture
def engine(policy):
    made = EmbeddedEngine(stop_ids=frozenset(), dtype=torch.float32)
    made.load(policy.decoder, 0)
    return made


def drain(stream):
    done = {}
    while stream.busy:
        done |= {one.key: one for one in stream.advance()}
    return done


def moved(decoder, by=0.05):
    """Other weights, large enough a step that no log-prob could be mistaken for the old ones'."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter += by * torch.randn(parameter.shape, generator=generator)


def trained(decoder, prompt, tokens):
    with torch.no_grad():
        layout = pack([Tree(prompt=prompt, continuations=(tokens,), actions=((True,) * len(tokens),))])
        return action_logprobs(decoder, layout, temperature=1.0, dtype=torch.float32).logp_T


def test_a_stream_answers_as_a_call_does(engine):
    asked = [request(f"k{i}", prompt=range(5, 8 + i)) for i in range(6)]
    stream = engine.stream(rows=4, longest_prompt=16, longest_answer=12)
    stream.submit(asked)
    found, whole = drain(stream), engine.sample(asked)
    assert [found[one.key].token_ids for one in asked] == [one.token_ids for one in whole]


def test_a_request_may_come_while_others_are_being_answered(engine):
    stream = engine.stream(rows=4, longest_prompt=16, longest_answer=12)
    stream.submit([request("first")])
    for _ in range(5):
        stream.advance()
    stream.submit([request("late")])
    found = drain(stream)
    assert found["late"].token_ids == engine.sample([request("late")])[0].token_ids
    assert found["first"].token_ids == engine.sample([request("first")])[0].token_ids


@pytest.mark.parametrize("on_update", ["keep", "recompute"])
def test_a_token_carries_the_version_that_sampled_it(engine, policy, on_update):
    stream = engine.stream(rows=2, longest_prompt=8, longest_answer=12, on_update=on_update)
    stream.submit([request("a")])
    for _ in range(4):
        stream.advance()
    moved(policy.decoder)
    engine.load(policy.decoder, 1)
    done = drain(stream)["a"]
    first = done.versions.index(1)
    assert 0 < first < len(done.versions) and done.versions == (0,) * first + (1,) * (len(done.versions) - first)


def test_recomputed_keys_and_values_give_the_new_policys_own_log_probs_and_kept_ones_do_not(engine, policy):
    gaps = {}
    for on_update in ("recompute", "keep"):
        start = tiny_policy("llama").decoder
        engine.load(start, 0)
        stream = engine.stream(rows=3, longest_prompt=8, longest_answer=12, on_update=on_update)
        stream.submit([request("a"), request("b", prompt=(9, 9, 9)), request("c", prompt=(4, 30, 2, 8, 1))])
        for _ in range(5):
            stream.advance()
        moved(start)
        engine.load(start, 1)
        done = drain(stream)
        gap = 0.0
        for asked in (request("a"), request("b", prompt=(9, 9, 9)), request("c", prompt=(4, 30, 2, 8, 1))):
            one = done[asked.key]
            new = [version == 1 for version in one.versions]
            gap = max(gap, float((trained(start, asked.prompt_ids, one.token_ids) - torch.tensor(one.logps))[new].abs().max()))
        gaps[on_update] = gap
    assert gaps["recompute"] < TOLERANCE < 10 * TOLERANCE < gaps["keep"]


def test_a_cancelled_request_gives_back_what_was_said_and_leaves_the_others_alone(engine):
    stream = engine.stream(rows=2, longest_prompt=8, longest_answer=12)
    stream.submit([request("a"), request("b"), request("waiting")])
    for _ in range(3):
        stream.advance()
    gone = {one.key: one for one in stream.cancel(frozenset({"a", "waiting"}))}
    assert {one.stop_reason for one in gone.values()} == {"cancelled"}
    assert 0 < len(gone["a"].token_ids) < 12 and gone["waiting"].token_ids == ()
    whole = {one.key: one.token_ids for one in engine.sample([request("a"), request("b")])}
    assert whole["a"][:len(gone["a"].token_ids)] == gone["a"].token_ids
    assert drain(stream)["b"].token_ids == whole["b"]


def test_a_request_longer_than_the_streams_rows_is_refused(engine):
    stream = engine.stream(rows=2, longest_prompt=8, longest_answer=12)
    with pytest.raises(ModelError, match="longer than the stream's rows"):
        stream.submit([request("a", new=40)])


def test_a_stream_that_does_not_fit_the_budget_is_refused(policy):
    small = EmbeddedEngine(stop_ids=frozenset(), dtype=torch.float32, kv_bytes=10_000)
    small.load(policy.decoder, 0)
    with pytest.raises(ModelError, match="do not fit the budget"):
        small.stream(rows=64, longest_prompt=64, longest_answer=64)
