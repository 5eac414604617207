"""Repetition in what is imitated: which tokens carry no loss."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.experience.repeats import again, repeated
from rollbook.records import Demonstration, Message, Span
from rollbook.records.recipe import Repeats

RULE = Repeats(period=3, copies=2, span=8)


def periodic(ids, start, end, period):
    return all(ids[at] == ids[at - period] for at in range(start + period, end))


def slow(ids, rule):
    """The rule as its text says it, over every span that there is."""
    return [any(periodic(ids, start, end, period) and end - start >= rule.span and start + rule.copies * period <= at < end
                for period in range(1, rule.period + 1) for start in range(at + 1) for end in range(at + 1, len(ids) + 1))
            for at in range(len(ids))]


@given(st.lists(st.integers(0, 1), max_size=16), st.integers(1, 4), st.integers(1, 3), st.integers(1, 10))
def test_what_is_left_out_is_what_every_span_of_the_rule_leaves_out(ids, period, copies, span):
    rule = Repeats(period=period, copies=copies, span=span)
    assert again(ids, rule) == slow(ids, rule)


@given(st.lists(st.integers(0, 2), max_size=30))
def test_the_first_tokens_of_a_turn_are_always_learnt_and_more_copies_never_leave_out_more(ids):
    some, more = (again(ids, dataclasses.replace(RULE, copies=copies)) for copies in (1, 2))
    assert not any(some[:1]) and all(one or not other for one, other in zip(some, more, strict=True))


def test_the_worked_example():
    left = again([7, 1, 2, 1, 2, 1, 2, 9], Repeats(period=2, copies=1, span=6))
    assert [at for at, out in enumerate(left) if out] == [3, 4, 5, 6]


def test_a_short_repetition_and_one_of_a_long_unit_are_learnt():
    assert not any(again([1] * 7, RULE)) and sum(again([1] * 8, RULE)) == 6
    assert not any(again([1, 2, 3, 4] * 5, RULE))


def test_only_the_policys_turns_are_left_out_and_each_begins_anew():
    turns = (("user", 9), ("policy", 6), ("tool", 2), ("policy", 9))
    one = Demonstration(task="t", messages=(Message(role="user", content="x"),), token_ids=(5,) * 26, tokenizer="a", template="b",
                        owners=tuple(Span(owner=owner, length=length) for owner, length in turns), author="program:x/1",
                        validation="none")
    assert [at for at, out in enumerate(repeated(one, RULE)) if out] == list(range(19, 26))
    assert not any(repeated(one, None)) and len(repeated(one, RULE)) == 26


@pytest.mark.parametrize("name", ["period", "copies", "span"])
def test_a_rule_of_nothing_is_refused(name):
    from rollbook.recipes import bounds
    from rollbook.records.problems import Problems
    found = Problems()
    bounds.check(dataclasses.replace(RULE, **{name: 0}), "stages.cpt.repeats", found)
    assert [error.what for error in found.found] == [f"stages.cpt.repeats.{name} must be >= 1"]
