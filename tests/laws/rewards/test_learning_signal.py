"""The signal of a few groups: what is counted, what is doubted, what costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from answered import task, trace

from rollbook.records import RewardVector, Scored, Unscored, VerifierStamp
from rollbook.rewards import RewardError
from rollbook.rewards.signal import signal
from rollbook.rewards.signal import told as lines_of

SEVEN = task()


def made(*groups, stop="end_of_turn", tokens=4):
    """Traces and verdicts: one list of rewards per group, None for unscored."""
    traces, verdicts = [], []
    for number, rewards in enumerate(groups):
        for sample, reward in enumerate(rewards):
            one = trace("x", SEVEN, group=f"g{number}", sample=sample, stop=stop, tokens=tokens)
            vector = RewardVector(components=(), absent=(), composition="c", composition_digest="c", total=reward or 0.0,
                                  accuracy=reward)
            traces.append(one)
            verdicts.append(Scored(trace=one.id, vector=vector) if reward is not None else
                            Unscored(trace=one.id, verifier=VerifierStamp(name="v", version="1", digest="d"), code="timeout",
                                     detail=""))
    return traces, verdicts


def test_groups_with_a_spread_are_useful_and_uniform_ones_are_told_apart():
    found = signal(*made([1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]), seconds=6.0)
    assert (found.groups, found.useful, found.solved, found.failed) == (3, 1, 1, 1)
    assert found.within == pytest.approx(0.25 / 3) and found.mean == 0.5 and found.total == 0.25
    assert (found.cost_tokens, found.cost_seconds) == (48.0, 6.0) and not found.doubts


def test_without_a_spread_there_is_no_signal_and_no_cost_per_useful_group():
    found = signal(*made([1, 1], [0, 0]), seconds=1.0)
    assert found.cost_tokens is None and any("one reward" in doubt for doubt in found.doubts)


def test_a_spread_of_rounding_is_none():
    assert signal(*made([0.1 + 0.2, 0.3]), seconds=1.0).useful == 0


def test_missing_verdicts_unequal_second_verdicts_and_cut_attempts_are_doubted():
    traces, verdicts = made([1, None, 0], [None, None, 1])
    found = signal(traces, verdicts, seconds=1.0)
    assert found.unscored == {"timeout": 3} and any("no verdict" in doubt for doubt in found.doubts)
    traces, verdicts = made([1, 0], [0, 1])
    found = signal(traces, verdicts, seconds=1.0, again=[verdicts[0], verdicts[1], verdicts[3], verdicts[2]])
    assert found.agreement == 0.5 and any("judged again" in doubt for doubt in found.doubts)
    assert any("budget" in doubt for doubt in signal(*made([1, 0], stop="length"), seconds=1.0).doubts)


def test_a_spread_that_is_of_length_or_form_alone_is_doubted():
    traces, verdicts = made([0, 0, 0], [1, 1, 1])
    paid = [Scored(trace=one.trace, vector=replace(one.vector, total=one.vector.total - 0.1 * place)) for place, one in
            enumerate(verdicts)]
    found = signal(traces, paid, seconds=1.0)
    assert found.useful == 2 and any("form or length alone" in doubt for doubt in found.doubts)
    unknown = [Scored(trace=one.trace, vector=replace(one.vector, accuracy=None)) for one in paid]
    assert not signal(traces, unknown, seconds=1.0).doubts


def test_where_nothing_was_scored_nothing_is_said_of_rewards_and_the_signal_is_unknown_not_absent():
    traces, verdicts = made([None, None], [None, None])
    found = signal(traces, verdicts, seconds=1.0, again=verdicts)
    assert (found.known, found.useful, found.solved, found.failed) == (0, 0, 0, 0) and found.unscored == {"timeout": 4}
    assert found.mean is found.within is found.total is found.agreement is found.cost_tokens is None
    told = dict(lines_of(found))
    assert told["reward"] == "nothing was scored" and told["cost"] == "not known: nothing was scored"
    assert told["signal"].startswith("unknown: no attempt has a verdict") and "4 of them: timeout" in told["signal"]
    assert "one reward" not in str(told) and "of 2 the spread is not known" in told["groups"] and "judged again" not in str(told)


def test_a_group_with_one_verdict_has_no_known_spread_and_is_neither_solved_nor_failed():
    found = signal(*made([1, None], [0, None]), seconds=1.0)
    assert (found.known, found.solved, found.failed, found.mean) == (0, 0, 0, 0.5) and found.within is None
    told = dict(lines_of(found))
    assert told["signal"].startswith("unknown: no group has two attempts with a verdict") and told["cost"] == "not known"
    assert "within groups not known" in told["reward"]
    assert signal(*made([1, 0], [0, None]), seconds=1.0).known == 1


def test_of_groups_of_one_attempt_all_attempts_are_compared():
    assert not signal(*made([1], [0], [1]), seconds=1.0).doubts
    assert dict(lines_of(signal(*made([1], [1]), seconds=1.0)))["signal"].startswith("no: the one group with a known spread")
    assert "spread is not known" not in str(lines_of(signal(*made([1], [0]), seconds=1.0)))


def test_nothing_is_no_signal_but_an_error():
    with pytest.raises(RewardError):
        signal([], [], seconds=1.0)
