"""The planner's simulation against what can be computed by hand, and against its own rules."""

import dataclasses
from types import SimpleNamespace

import pytest

from rollbook.orchestration.planning import simulate as simulating
from rollbook.orchestration.planning.given import asked
from rollbook.orchestration.planning.inputs import Load, Machines, Rules, Spread
from rollbook.orchestration.planning.simulate import best_split, simulate
from rollbook.recipes import load, resolve
from rollbook.records import RecipeError
from rollbook.records.asynchrony import AReaL, AReaLCode, Asynchrony, PrimeRl

NOTHING = Spread(median=0.0)
LOAD = Load(prompt_tokens=0, answer_tokens=Spread(median=100), turns=1, wait_s=NOTHING, verify_s=NOTHING, informative=1.0)
MACHINES = Machines(generators=1, pass_s=0.01, row_s=0.0, prefill_token_s=0.0, kv_bytes=1e9, position_bytes=1e3, verifiers=1,
                    trainers=1, update_s=0.5, update_token_s=0.0, weight_bytes=0.0, broadcast_bytes_s=1e9)


def rules(eta=1, late="wait", throttle=None, concurrency=10**6, age=None, groups=4):
    how = Asynchrony(throttle=throttle or AReaLCode(eta=eta), concurrency=concurrency, on_update="keep", late=late, queue=10**6,
                     stall_s=1.0)
    return Rules(groups=groups, per_task=2, max_policy_age=eta if age is None else age, asynchrony=how)


def test_with_eta_0_sampling_and_training_follow_each_other():
    found = simulate(LOAD, MACHINES, rules(eta=0), steps=40)
    assert found.seconds / 30 == pytest.approx(1.0 + 0.5, rel=1e-6)         # 100 passes of 10 ms, then the update
    assert found.age == {0: 1.0}
    assert found.trainers_busy == pytest.approx(1 / 3, rel=1e-6)


def test_with_eta_1_the_longer_of_the_two_sets_the_pace():
    slow_trainer = dataclasses.replace(MACHINES, update_s=2.0)
    assert simulate(LOAD, slow_trainer, rules(eta=1), steps=40).seconds / 30 == pytest.approx(2.0, rel=0.02)
    assert simulate(LOAD, MACHINES, rules(eta=1), steps=40).seconds / 30 == pytest.approx(1.0, rel=0.3)


def test_rows_share_a_pass_and_slow_each_other_down():
    shared = dataclasses.replace(MACHINES, pass_s=0.0, row_s=0.01)
    found = simulate(LOAD, shared, rules(eta=0), steps=8)
    assert found.seconds / 6 == pytest.approx(100 * 8 * 0.01 + 0.5, rel=1e-6)


def test_memory_bounds_how_many_decode_at_a_time():
    small = dataclasses.replace(MACHINES, kv_bytes=1e3 * 400 * 2)          # two attempts of at most 400 positions
    found = simulate(LOAD, small, rules(eta=0), steps=8)
    assert found.rows == 2
    assert found.seconds / 6 == pytest.approx(4 * 1.0 + 0.5, rel=1e-6)     # eight attempts, two at a time


@pytest.mark.parametrize("late", ["wait", "drop"])
@pytest.mark.parametrize("age", [1, 2, 4])
def test_no_simulated_batch_is_older_than_the_bound(late, age):
    heavy = dataclasses.replace(LOAD, wait_s=Spread(median=1.0, sigma=0.5, tail=0.01, tail_factor=20), informative=0.5)
    found = simulate(heavy, MACHINES, rules(late=late, throttle=PrimeRl(), concurrency=64, age=age), steps=24)
    assert max(found.age) <= age
    assert sum(found.age.values()) == pytest.approx(1.0)


def test_a_heavy_tail_costs_a_synchronous_loop_more_than_an_asynchronous_one():
    heavy = dataclasses.replace(LOAD, wait_s=Spread(median=1.0, sigma=0.3, tail=0.01, tail_factor=20))
    ahead, behind = (simulate(heavy, MACHINES, rules(eta=eta, groups=16), steps=60).trained_per_s for eta in (3, 0))
    assert ahead > 1.5 * behind


def test_a_broadcast_stops_the_generators():
    wide = dataclasses.replace(MACHINES, weight_bytes=1e9, broadcast_bytes_s=2e9)
    found = simulate(LOAD, wide, rules(eta=0), steps=40)
    assert found.seconds / 30 == pytest.approx(1.0 + 0.5 + 0.5, rel=1e-6)
    assert found.broadcasting == pytest.approx(0.25, rel=1e-6)


def test_twenty_thousand_environments_are_simulated():
    waiting = dataclasses.replace(LOAD, wait_s=Spread(median=60.0, sigma=0.5))
    machines = dataclasses.replace(MACHINES, generators=64, row_s=1e-5, kv_bytes=1e12, verifiers=64)
    found = simulate(waiting, machines, rules(eta=4, groups=2000, concurrency=20_000), steps=4)
    assert found.trained_per_s > 0


def test_the_best_split_gives_machines_to_what_is_slower():
    slow = dataclasses.replace(MACHINES, update_s=0.0, update_token_s=0.01)
    ranked = best_split(LOAD, slow, rules(eta=2), total=6)
    assert ranked[0][0] < 3                                                # trainers need more than half
    assert ranked[0][1].trained_per_s >= ranked[-1][1].trained_per_s


@pytest.mark.parametrize("total", [2, 7, 13, 14, 200, 1000])
def test_the_best_of_many_splits_is_found_without_trying_all(monkeypatch, total):
    tried = []

    def paced(load, machines, rules, *, steps, seed):
        tried.append(machines.generators)
        return SimpleNamespace(trained_per_s=min(3.0 * machines.generators, 5.0 * machines.trainers))
    monkeypatch.setattr(simulating, "simulate", paced)
    ranked = best_split(LOAD, MACHINES, rules(), total=total)
    assert ranked[0][1].trained_per_s == max(min(3.0 * one, 5.0 * (total - one)) for one in range(1, total))
    assert len(tried) == len(set(tried)) <= 40


def test_a_loop_that_cannot_go_on_is_refused_and_not_simulated_for_ever():
    with pytest.raises(RecipeError, match="stands still"):
        simulate(dataclasses.replace(LOAD, informative=0.1), MACHINES, rules(throttle=AReaL(eta=0)), steps=8)


@pytest.mark.parametrize("wrong", [{"generators": 0}, {"kv_bytes": 1.0}, {"broadcast_bytes_s": 0.0}, {"pass_s": 0.0}])
def test_machines_that_could_not_work_are_refused(wrong):
    with pytest.raises(RecipeError):
        simulate(LOAD, dataclasses.replace(MACHINES, **wrong), rules(), steps=4)


@pytest.mark.parametrize("field,value", [("weight_bytes", -1.0), ("update_s", -5.0), ("update_token_s", -1.0), ("row_s", -0.005),
                                         ("prefill_token_s", -1.0), ("position_bytes", -5.0), ("kv_bytes", -1.0)])
def test_machines_of_negative_times_or_sizes_are_refused(field, value):
    with pytest.raises(RecipeError, match=field):
        dataclasses.replace(MACHINES, **{field: value})


@pytest.mark.parametrize("changes", [{"turns": 0}, {"turns": -3}, {"prompt_tokens": -1.0}, {"informative": 0.0},
                                     {"informative": -1.0}, {"informative": 2.0}])
def test_a_load_that_could_never_be_trained_on_is_refused(changes):
    with pytest.raises(RecipeError, match="informative"):
        dataclasses.replace(LOAD, **changes)


@pytest.mark.parametrize("machines,load", [
    (dataclasses.replace(MACHINES, pass_s=1e-300), LOAD),
    (MACHINES, dataclasses.replace(LOAD, wait_s=Spread(median=1e300))),
    (MACHINES, dataclasses.replace(LOAD, wait_s=Spread(median=1.0, sigma=1000.0)))])
def test_times_that_the_clock_cannot_tell_apart_do_not_stop_it(machines, load):
    assert simulate(load, machines, rules(), steps=4).steps == 4


def test_a_part_of_a_turn_or_of_a_verifier_is_refused():
    numbers = {"prompt_tokens": 100, "answer_tokens": 100, "pass_s": 0.01, "kv_bytes": 1e9, "position_bytes": 1e3,
               "update_token_s": 1e-4, "weight_bytes": 1e6, "broadcast_bytes_s": 1e9}
    recipe = resolve(load("dapo"), "tiny")
    for part in ({"turns": 0.5}, {"verifiers": 1.9}):
        with pytest.raises(RecipeError, match="counted"):
            asked(recipe, given=numbers | part, generators=1, trainers=1)
