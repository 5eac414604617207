"""The census closes or names the attempts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.ledger import close_census, merge
from rollbook.records import Census, Outcome, RecordError

CODES = ["accepted", "uniform", "stale", "failed", "timed_out"]
FATES = st.dictionaries(st.integers(0, 50).map("a{}".format), st.tuples(st.sampled_from("xyz"), st.sampled_from([*CODES, None])))


def census_of(fates: dict[str, tuple[str, str | None]], scope: str = "s") -> Census:
    return close_census(scope, {attempt: family for attempt, (family, _) in fates.items()},
                        [Outcome(attempt=attempt, family=family, code=code) for attempt, (family, code) in fates.items() if code],
                        [attempt for attempt, (_, code) in fates.items() if code is None])


@given(FATES)
def test_issued_is_the_sum_of_outcomes_and_in_flight_per_family(fates) -> None:
    census = census_of(fates)
    assert census.total == len(fates)
    for code in CODES:
        assert census.count(code) == sum(fate[1] == code for fate in fates.values())
    assert census.issued == Counter(family for family, _ in fates.values())
    assert census.in_flight == Counter(family for family, code in fates.values() if code is None)


@given(FATES, FATES)
def test_merging_adds_up_and_does_not_depend_on_order(first, second) -> None:
    one, two = census_of(first, "one"), census_of(second, "two")
    both = merge([one, two])
    assert both == merge([two, one]) and both.total == len(first) + len(second)
    assert all(both.count(code) == one.count(code) + two.count(code) for code in CODES)


@pytest.mark.parametrize(("issued", "ended", "flying", "message"), [
    ({"a": "f", "b": "f"}, ["a"], [], "1 attempts have no outcome, got b"),
    ({"a": "f"}, ["a", "a"], [], "1 attempts ended more than once, got a"),
    ({"a": "f"}, ["a", "c"], [], "1 attempts ended without having been issued, got c"),
    ({"a": "f"}, ["a"], ["a"], "1 attempts ended and are still in flight, got a"),
    ({"a": "f"}, ["a"], ["z"], "1 attempts are in flight without having been issued, got z"),
    ({"a": "g"}, ["a"], [], "1 attempts ended in another family than they were issued in, got a"),
    ({f"a{i}": "f" for i in range(8)}, [], [], "8 attempts have no outcome, got a0, a1, a2, a3, a4 and 3 more"),
])
def test_attempts_that_do_not_add_up_are_named(issued, ended, flying, message: str) -> None:
    outcomes = [Outcome(attempt=attempt, family="f", code="accepted") for attempt in ended]
    with pytest.raises(RecordError) as refusal:
        close_census("rl/1", issued, outcomes, flying)
    assert message in str(refusal.value) and "rl/1" in str(refusal.value)


def test_one_scope_cannot_be_merged_twice() -> None:
    with pytest.raises(RecordError, match="comes twice"):
        merge([census_of({}, "s"), census_of({}, "s")])
    assert merge([]).total == 0
