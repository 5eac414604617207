"""Pools of tasks: what they hold, when a measurement is too old, which task comes next, and that a resumed stream goes on the
same."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import combinations

import pytest
from answered import task
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.records import RecordError
from rollbook.records.curriculum import Curriculum
from rollbook.tasks import TaskError
from rollbook.tasks.curriculum import PoolStream, pass_at

TASKS = [task(prompt=f"{n} =") for n in range(12)]
RULE = Curriculum(low=0.2, high=0.8, renew=5, explore=0.25, easy=0.0, hard=0.0, report=2)


def stream(rule=RULE, seed=1):
    return PoolStream(TASKS, rule, seed=seed)


def seen(*rates, of=4):
    """Attempts at the first tasks with these numbers of passes."""
    return {TASKS[n].id: [1.0] * rate + [0.0] * (of - rate) for n, rate in enumerate(rates)}


def replaced(**change):
    import dataclasses
    return dataclasses.replace(RULE, **change)


@given(st.integers(1, 6), st.integers(1, 6), st.data())
@settings(max_examples=50, deadline=None)
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(samples, k, data):
    passed = data.draw(st.integers(0, samples))
    k = min(k, samples)
    subsets = list(combinations([True] * passed + [False] * (samples - passed), k))
    assert math.isclose(pass_at(k, samples, passed), sum(map(any, subsets)) / len(subsets))


def test_a_task_is_pooled_by_its_last_measurement_and_a_pass_at_k_curriculum_by_pass_at_k():
    made = stream()
    made.observe(seen(0, 1, 4))
    assert [made.pool(TASKS[n].id) for n in range(4)] == ["too_hard", "learnable", "too_easy", "unmeasured"]
    made.observe(seen(2))
    assert made.pool(TASKS[0].id) == "learnable"
    wide = stream(replaced(pass_at=4))
    wide.observe(seen(0, 1, 4))
    assert [wide.pool(TASKS[n].id) for n in range(3)] == ["too_hard", "too_easy", "too_easy"]


def test_a_measurement_of_an_older_policy_counts_no_more():
    made = stream()
    made.observe(seen(2))
    made.step = 4
    assert made.pool(TASKS[0].id) == "learnable"
    made.step = 5
    assert made.pool(TASKS[0].id) == "unmeasured"


def test_attempts_without_a_verdict_measure_nothing():
    made = stream()
    made.observe({TASKS[0].id: [None, None], TASKS[1].id: [1.0, None, 0.0]})
    assert made.pool(TASKS[0].id) == "unmeasured" and made.measured[TASKS[1].id] == (2, 1, 0)


def test_draws_keep_to_the_shares_and_empty_pools_give_theirs_away():
    made = stream(replaced(explore=0.5, hard=0.25))
    made.observe(seen(0, 2, 2, 4, 4, 4))
    counts = Counter(made.pool(next(made).id) for _ in range(400))
    assert counts["too_easy"] == 0 and 150 < counts["unmeasured"] < 250 and 60 < counts["too_hard"] < 140
    nothing = stream(replaced(explore=0.0))
    assert nothing.pool(next(nothing).id) == "unmeasured"
    easy = stream(replaced(explore=0.0))
    easy.observe(seen(*[4] * 12))
    assert next(easy) in TASKS


def test_tasks_take_turns_within_a_pool_unless_the_hard_ones_are_preferred():
    made = stream(replaced(explore=1.0))
    assert len({next(made).id for _ in range(12)}) == 12
    preferred = stream(replaced(explore=0.0, high=0.95, prioritised=True))
    preferred.observe({TASKS[0].id: [1.0] * 9 + [0.0], TASKS[1].id: [1.0] * 3 + [0.0] * 7})
    counts = Counter(next(preferred).id for _ in range(200))
    assert counts[TASKS[1].id] > 3 * counts[TASKS[0].id]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(1, 20), st.integers(0, 3))
def test_a_resumed_stream_draws_what_the_first_would_have_drawn(rates, drawn, seed):
    made = stream(seed=seed)
    made.step = 3
    made.observe(seen(*rates))
    for _ in range(drawn):
        next(made)
    again = stream(seed=seed)
    again.restore(json.loads(json.dumps(made.state())))
    assert [next(again).id for _ in range(10)] == [next(made).id for _ in range(10)]
    assert again.report("rl") == made.report("rl")


def test_a_report_says_what_moved_and_what_a_group_cost_and_begins_anew():
    made = stream()
    made.observe(seen(0, 2, 4))
    made.observe(seen(1))
    report = made.report("rl")
    assert report.pools == {"unmeasured": 9, "too_easy": 1, "learnable": 2, "too_hard": 0}
    assert report.moved == {"too_hard > learnable": 1, "unmeasured > learnable": 1, "unmeasured > too_easy": 1,
                            "unmeasured > too_hard": 1}
    assert (report.measured, report.attempts, report.informative) == (4, 16, 2)
    assert made.report("rl").attempts == 0


def test_a_state_of_other_tasks_and_a_rule_that_means_nothing_are_refused():
    made = stream()
    made.observe(seen(1))
    with pytest.raises(TaskError, match="other tasks"):
        PoolStream([task(prompt="another")], RULE, seed=1).restore(made.state())
    for change in ({"low": 0.9}, {"explore": 0.9, "hard": 0.2}, {"renew": 0}, {"pass_at": 0}, {"easy": -0.1}):
        with pytest.raises(RecordError):
            replaced(**change)
