"""Episodes of the embedded engine in one open stream: the same as together, cancelled at any point, nothing left behind."""

import dataclasses
import os
import threading
import time

import pytest
import torch
from policies import engine_of, tiny_policy
from scripted import Told, task

from rollbook.environments import load_definition, open_services
from rollbook.records import Dispatch, EnvironmentSpec, EpisodeBudget
from rollbook.records.recipe import SamplingSettings
from rollbook.rollouts.environment import EnvironmentRollouts
from rollbook.rollouts.episodes_in_flight import EpisodesInFlight
from rollbook.rollouts.rules import EpisodeRules

SPEC = EnvironmentSpec(name="sums", definition="rollbook.environments.calculator:Calculator",
                       budget=EpisodeBudget(max_tokens=40, max_turns=3, turn_tokens=12))


def made(policy, engine, services, definition=None):
    return EnvironmentRollouts(sampler=engine, tokenizer=policy.tokenizer, seed=3, max_tokens=40, spec=SPEC,
                               sampling=SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0),
                               definition=definition or load_definition(SPEC), services=services, context=128,
                               rules=EpisodeRules(dialect="fenced", announces=False))


@pytest.fixture
def policy():
    return tiny_policy("llama")


def dispatch(one, number=0, samples=3):
    return Dispatch(scope=f"rl/g/{number:06d}", tasks=(one.id,), samples=samples, envelope="e")


def names(one):
    return tuple(attempt for attempt, _ in one.attempts())


def drain(flying):
    ended = []
    while flying.busy:
        ended += flying.advance()
    return ended


def test_episodes_in_flight_are_the_episodes_of_one_call(policy):
    engine = engine_of(policy)
    with open_services() as services:
        rollouts = made(policy, engine, services)
        one = rollouts.definition.tasks(count=1, seed=1).tasks[0]
        flying = EpisodesInFlight(rollouts, engine, rows=2, on_update="keep")
        order = dispatch(one)
        flying.start(order, one, names(order))
        traces = {trace.attempt: trace for _, trace in drain(flying)}
        flying.close()
        together = rollouts.solve([one], 3, scope=order.scope, envelope=rollouts.envelope("w"))
    assert [traces[trace.attempt].token_ids for trace in together] == [trace.token_ids for trace in together]
    assert [traces[trace.attempt].episode.turns for trace in together] == [trace.episode.turns for trace in together]


def test_weights_that_change_between_turns_and_inside_them_leave_their_versions_in_order(policy):
    engine = engine_of(policy)
    with open_services() as services:
        rollouts = made(policy, engine, services)
        one = rollouts.definition.tasks(count=1, seed=1).tasks[0]
        flying = EpisodesInFlight(rollouts, engine, rows=4, on_update="recompute")
        order = dispatch(one)
        flying.start(order, one, names(order))
        ended, version = [], 0
        while flying.busy:
            ended += flying.advance()
            version += 1
            if version % 5 == 0:
                with torch.no_grad():
                    policy.decoder.embedding.mul_(1.01) if hasattr(policy.decoder, "embedding") else None
                engine.load(policy.decoder, version)
        flying.close()
    for _, trace in ended:
        versions = [segment.version for segment in trace.policy_segments]
        assert versions == sorted(versions)
    assert any(len({segment.version for segment in trace.policy_segments}) > 1 for _, trace in ended)


def test_an_episode_is_cancelled_while_it_samples_and_while_its_environment_makes_it_wait(policy):
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    engine = engine_of(policy)
    with open_services() as services:
        sampling = made(policy, engine, services)
        one = sampling.definition.tasks(count=1, seed=1).tasks[0]
        flying = EpisodesInFlight(sampling, engine, rows=4, on_update="keep")
        flying.start(dispatch(one), one, names(dispatch(one)))
        flying.advance()
        flying.advance()
        cut = [trace for _, trace in flying.cancel("rl/g/000000")]
        flying.close()
        waiting = made(policy, engine, services, definition=Told(fault="slow_reset"))
        waiting = dataclasses.replace(waiting, spec=dataclasses.replace(SPEC, budget=EpisodeBudget(max_tokens=40, max_turns=3,
                                                                                                    call_seconds=60.0)))
        flying = EpisodesInFlight(waiting, engine, rows=4, on_update="keep")
        other = task()
        flying.start(dispatch(other), other, names(dispatch(other)))
        assert flying.advance() == []
        began = time.monotonic()
        cut += [trace for _, trace in flying.cancel("rl/g/000000")]
        assert time.monotonic() - began < 30            # the environment would have taken a minute
        flying.close()
        flying.close()
    assert [trace.stop_reason for trace in cut] == ["cancelled"] * 6
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before
