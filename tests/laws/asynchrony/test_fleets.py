"""Generators elsewhere: whichever dies, whenever, every attempt comes back once, by weights that are known."""

import os
import signal
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import tiny_policy
from small_runs import small_recipe

from rollbook.models.weights import published_hash
from rollbook.orchestration.runtimes.fleet import DEATHS, Fleet, Told
from rollbook.orchestration.runtimes.host import HostSpec
from rollbook.orchestration.runtimes.processes import Processes
from rollbook.records import Budget, Dispatch, Message, ModelError, Segment, Task, Trace
from rollbook.records.recipe import SamplingSettings

TASK = Task(raw="r", family="sums", prompt=(Message(role="user", content="1 + 1 ="),), reference="2", canonical="sum:1+1",
            predicate="p", initial_state="prompt", tools=(), budget=Budget(max_tokens=8), termination=("length",))
POLICY = tiny_policy("llama")


def dispatch(number, samples=3):
    return Dispatch(scope=f"rl/g/{number:06d}", tasks=(TASK.id,), samples=samples, envelope="e")


def names(one):
    return tuple(attempt for attempt, _ in one.attempts())


def trajectory(attempt):
    return Trace(attempt=attempt, task=TASK.id, group="g", envelope="e", stop_reason="length", text="",
                 segments=(Segment(owner="user", token_ids=(1, 2)),
                           Segment(owner="policy", token_ids=(3,), logps=(-0.5,), version=0)))


class Puppet:
    """A generator that ends attempts, or dies, when the test says so."""

    def __init__(self, say, die, hashed="w"):
        self.say, self.die, self.hashed = say, die, hashed
        self.open, self.closed, self.loads = {}, False, []

    def load(self, weights, version):
        self.loads.append(version)
        self.say(Told(loaded=(version, self.hashed)))

    def start(self, dispatch, task, attempts):
        self.open |= dict.fromkeys(attempts, dispatch.scope)

    def cancel(self, scope):
        self.say(Told(ended=tuple((scope, trajectory(attempt)) for attempt, of in self.open.items() if of == scope)))
        self.open = {attempt: of for attempt, of in self.open.items() if of != scope}

    def end(self, count):
        for attempt in list(self.open)[:count]:
            self.say(Told(ended=((self.open.pop(attempt), trajectory(attempt)),)))

    def close(self):
        self.closed = True


class Theatre:
    name = "puppet"

    def __init__(self, hashes=("w",)):
        self.hashes, self.built = hashes, []

    def share(self, weights, version):
        return "weights"

    def build(self, say, die):
        self.built.append(Puppet(say, die, self.hashes[len(self.built) % len(self.hashes)]))
        return self.built[-1]


def living(theatre):
    return [puppet for puppet in theatre.built if not getattr(puppet, "dead", False) and not puppet.closed]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from(["start", "end", "die", "late words"]), st.integers(0, 10**6)),
                                   max_size=40))
def test_every_attempt_comes_back_exactly_once_however_many_generators_die(size, acts):
    theatre = Theatre()
    fleet = Fleet(theatre, size)
    fleet.load(POLICY.decoder, 0)
    issued, ended, deaths = [], [], 0
    for number, (act, chance) in enumerate(acts):
        one = living(theatre)[chance % len(living(theatre))]
        if act == "start":
            order = dispatch(number)
            fleet.start(order, TASK, names(order))
            issued += names(order)
        elif act == "end":
            one.end(1 + chance % 4)
        elif act == "die" and deaths < DEATHS:
            deaths += 1
            one.dead = True
            one.die("killed")
        elif act == "late words":
            for ghost in [puppet for puppet in theatre.built if getattr(puppet, "dead", False)]:
                ghost.end(2)                                    # what a dead one had already sent is not counted again
        ended += [trace.attempt for _, trace in fleet.advance()] if chance % 3 == 0 else []
    while fleet.busy:
        for one in living(theatre):
            one.end(100)
        ended += [trace.attempt for _, trace in fleet.advance()]
    assert sorted(ended) == sorted(issued)
    fleet.close()
    assert all(puppet.closed or getattr(puppet, "dead", False) for puppet in theatre.built)


def test_a_generator_that_is_built_again_gets_the_present_weights_before_its_attempts():
    theatre = Theatre()
    fleet = Fleet(theatre, 1)
    fleet.load(POLICY.decoder, 3)
    fleet.load(POLICY.decoder, 4)
    order = dispatch(0)
    fleet.start(order, TASK, names(order))
    theatre.built[0].dead = True
    theatre.built[0].die("killed")
    assert theatre.built[1].loads == [4]
    assert sorted(theatre.built[1].open) == sorted(names(order))


def test_generators_that_took_different_weights_are_refused():
    with pytest.raises(ModelError, match="different weights as version 5"):
        Fleet(Theatre(hashes=("a", "b")), 2).load(POLICY.decoder, 5)


def test_a_generator_that_dies_again_and_again_ends_the_run_with_its_reason():
    theatre = Theatre()
    fleet = Fleet(theatre, 1)
    fleet.load(POLICY.decoder, 0)
    for _ in range(DEATHS + 1):
        theatre.built[-1].die("out of memory")
    with pytest.raises(ModelError, match=r"(?s)died 6 times.*out of memory"):
        fleet.advance()


def test_a_real_process_that_is_killed_loses_no_attempt_and_leaves_nothing_behind():
    recipe = small_recipe()
    before = {thread.name for thread in threading.enumerate()}
    spec = HostSpec(settings=recipe.settings, rows=4, longest_prompt=64, on_update="keep", dtype="float32", threads=1,
                    sampling=SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0))
    from rollbook.models.load import load_policy
    decoder = load_policy(recipe.settings.model).decoder
    fleet = Fleet(Processes(spec), 1)
    try:
        import torch
        assert fleet.load(decoder, 0) == published_hash(decoder, torch.float32)
        orders = [dispatch(number, samples=4) for number in range(3)]
        for order in orders:
            fleet.start(order, TASK, names(order))
        victim = fleet._members[0].remote.process
        os.kill(victim.pid, signal.SIGKILL)
        ended = []
        while fleet.busy:
            ended += [trace.attempt for _, trace in fleet.advance()]
        assert sorted(ended) == sorted(attempt for order in orders for attempt in names(order))
    finally:
        fleet.close()
    assert not victim.is_alive()
    assert {thread.name for thread in threading.enumerate()} <= before | {"rollbook-listener"}

