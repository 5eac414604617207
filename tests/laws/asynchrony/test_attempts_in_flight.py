"""Attempts of the embedded engine under weights that change: what a trajectory says of itself."""

import pytest
import torch
from policies import engine_of, tiny_policy

from rollbook.records import Budget, Dispatch, Message, Task, sampled_hash
from rollbook.records.recipe import SamplingSettings
from rollbook.rollouts.in_flight import InFlight
from rollbook.rollouts.solve import Rollouts

TASK = Task(raw="r", family="sums", prompt=(Message(role="user", content="1 + 1 ="),), reference="2", canonical="sum:1+1",
            predicate="p", initial_state="prompt", tools=(), budget=Budget(max_tokens=8), termination=("length",))
DISPATCH = Dispatch(scope="rl/g/000000", tasks=(TASK.id,), samples=3, envelope="SamplingEnvelope:1")
NAMES = tuple(attempt for attempt, _ in DISPATCH.attempts())


@pytest.fixture
def made():
    policy = tiny_policy("llama")
    engine = engine_of(policy)
    engine.stop_ids = frozenset()
    rollouts = Rollouts(sampler=engine, tokenizer=policy.tokenizer, seed=1, max_tokens=12,
                        sampling=SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0))
    return policy, engine, rollouts, InFlight(rollouts, engine, rows=2, longest_prompt=64, on_update="keep")


def test_a_trajectory_under_two_versions_has_a_segment_of_each_and_its_hash_covers_both(made):
    policy, engine, _, flying = made
    flying.start(DISPATCH, TASK, NAMES)
    ended = [pair for _ in range(5) for pair in flying.advance()]
    with torch.no_grad():
        for parameter in policy.decoder.parameters():
            parameter.mul_(1.1)
    engine.load(policy.decoder, 7)
    while flying.busy:
        ended += flying.advance()
    traces = {trace.attempt: trace for scope, trace in ended if scope == DISPATCH.scope}
    assert sorted(traces) == sorted(NAMES)
    first = traces[NAMES[0]]
    assert [segment.version for segment in first.policy_segments] == [0, 7]
    ids, logps, versions = [], [], []
    for segment in first.policy_segments:
        ids += segment.token_ids
        logps += segment.logps
        versions += [segment.version] * len(segment.token_ids)
    assert first.sampled == (sampled_hash(ids, logps, versions),)
    assert {segment.version for segment in traces[NAMES[2]].policy_segments} == {7}       # it waited for a row


def test_attempts_are_the_same_as_in_one_call_while_the_weights_stay(made):
    _, _, rollouts, flying = made
    flying.start(DISPATCH, TASK, NAMES)
    ended = {}
    while flying.busy:
        ended |= {trace.attempt: trace for _, trace in flying.advance()}
    together = rollouts.solve([TASK], 3, scope=DISPATCH.scope, envelope=rollouts.envelope("w"))
    assert [ended[one.attempt].token_ids for one in together] == [one.token_ids for one in together]


def test_a_cancelled_dispatch_gives_back_what_was_sampled_and_leaves_the_others_alone(made):
    _, _, _, flying = made
    other = Dispatch(scope="rl/g/000001", tasks=(TASK.id,), samples=1, envelope="SamplingEnvelope:1")
    flying.start(DISPATCH, TASK, NAMES)
    flying.start(other, TASK, tuple(attempt for attempt, _ in other.attempts()))
    flying.advance()
    cut = [trace for _, trace in flying.cancel(DISPATCH.scope)]
    assert sorted(trace.attempt for trace in cut) == sorted(NAMES)
    assert {trace.stop_reason for trace in cut} == {"cancelled"}
    assert any(trace.action_count for trace in cut)
    ended = []
    while flying.busy:
        ended += flying.advance()
    assert [(scope, trace.stop_reason) for scope, trace in ended] == [(other.scope, "length")]
