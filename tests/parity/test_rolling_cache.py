"""A sliding window needs no more of a row than the window: long answers decode in a cache of that width, exactly."""

import pytest
import torch
from policies import tiny_policy

from rollbook.models.layout import Tree, pack
from rollbook.models.logprobs import action_logprobs
from rollbook.records import Request
from rollbook.rollouts.engines import embedded
from rollbook.rollouts.engines.embedded import EmbeddedEngine
from rollbook.rollouts.engines.memory import position_bytes

TOLERANCE = 1e-4


def engine(policy, **settings):
    made = EmbeddedEngine(stop_ids=frozenset(), dtype=torch.float32, **settings)
    made.load(policy.decoder, 0)
    return made


def request(key, length, new):
    return Request(key=key, prompt_ids=tuple(3 + (7 * i + len(key)) % 90 for i in range(length)), max_tokens=new, temperature=1.0,
                   top_p=1.0, top_k=0, min_p=0.0, seed=5)


def trained(policy, asked, done):
    trees = [Tree(prompt=r.prompt_ids, continuations=(c.token_ids,), actions=((True,) * len(c.token_ids),))
             for r, c in zip(asked, done, strict=True)]
    with torch.no_grad():
        return action_logprobs(policy.decoder, pack(trees, window=policy.decoder.architecture.window), temperature=1.0,
                               dtype=torch.float32).logp_T


def gap(policy, asked, done):
    reported = torch.tensor([x for one in done for x in one.logps])
    return float((trained(policy, asked, done) - reported).abs().max())


@pytest.fixture
def policy():
    found = tiny_policy("mistral")
    assert found.decoder.architecture.window is not None
    return found


def test_answers_several_windows_long_have_the_trainers_log_probs(policy):
    window = policy.decoder.architecture.window
    asked = [request("a", 2, 3 * window), request("bb", window - 1, 2 * window), request("ccc", 2 * window + 3, window + 5),
             request("dddd", window, 1)]
    done = engine(policy).sample(asked)
    assert [len(one.token_ids) for one in done] == [one.max_tokens for one in asked]
    assert gap(policy, asked, done) < TOLERANCE


def test_a_row_takes_no_more_room_than_the_window(policy, monkeypatch):
    window = policy.decoder.architecture.window
    seen = []
    real = embedded.Cache.empty.__func__

    def empty(cls, a, rows, capacity, *where):
        seen.append((rows, capacity))
        return real(cls, a, rows, capacity, *where)
    monkeypatch.setattr(embedded.Cache, "empty", classmethod(empty))
    engine(policy).sample([request("a", 2, 4 * window)])
    assert max(capacity for _, capacity in seen) <= window


def test_a_budget_that_holds_only_windows_answers_long_requests(policy):
    a = policy.decoder.architecture
    asked = [request(str(i), 2, 3 * a.window) for i in range(4)]
    tight = engine(policy, kv_bytes=(2 * a.window + 3 * 2) * 2 * position_bytes(a, torch.float32))
    done = tight.sample(asked)
    assert all(one.fault is None for one in done), [one.fault for one in done]
    assert gap(policy, asked, done) < TOLERANCE


def test_a_second_turn_goes_on_from_a_rolled_cache(policy):
    window = policy.decoder.architecture.window
    made = engine(policy)
    with made.open(request("t", 5, 2 * window)) as turns:
        first = turns.sample()
        before = turns.token_ids
        turns.append((9, 10, 11))
        assert turns.cached >= len(before) - 1
        second = turns.sample()
    asked = [request("t", 5, 0)]
    history = asked[0].prompt_ids + first.token_ids + (9, 10, 11)
    tree = Tree(prompt=history, continuations=(second.token_ids,), actions=((True,) * len(second.token_ids),))
    with torch.no_grad():
        found = action_logprobs(policy.decoder, pack([tree], window=window), temperature=1.0, dtype=torch.float32).logp_T
    assert (found - torch.tensor(second.logps)).abs().max() < TOLERANCE
