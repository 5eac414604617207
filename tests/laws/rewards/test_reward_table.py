"""Magistral's reward, every branch of the gate and of the penalty, at the knots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.records import VerifierStamp
from rollbook.records.recipe import RewardSettings
from rollbook.rewards import RewardError, format_gate, length_penalty
from rollbook.rewards.magistral import Stamps, gated_vector, graded_vector

STAMP = VerifierStamp(name="t", version="1", digest="d")
STAMPS = Stamps(format=STAMP, correctness=STAMP, length=STAMP)
SETTINGS = RewardSettings(composition="magistral", format_reward=0.1, correct_reward=0.9, length_penalty=0.1, length_max=64,
                          length_cache=16, language_reward=None, verify_seconds=1.0, verify_workers=1)


@pytest.mark.parametrize(("text", "reason"), [
    (r"\boxed{7}", "no_opening_tag"),
    (r"so <think>3+4</think>\boxed{7}", "no_opening_tag"),
    (r" <think>3+4</think>\boxed{7}", "no_opening_tag"),
    (r"3+4</think>\boxed{7}", "no_opening_tag"),
    (r"<Think>3+4</Think>\boxed{7}", "no_opening_tag"),
    ("", "no_opening_tag"),
    (r"<think><think>3+4</think>\boxed{7}", "several_opening_tags"),
    (r"<think>3+4</think>\boxed{7}<think>", "several_opening_tags"),
    (r"<think>3+4 \boxed{7}", "no_closing_tag"),
    (r"<think>3+4</think>\boxed{7}</think>", "several_closing_tags"),
    (r"<think>3+4</think></think>\boxed{7}", "several_closing_tags"),
    (r"<think>3+4=\boxed{7}</think>", "no_box"),
    (r"<think>3+4</think>7", "no_box"),
    (r"<think>3+4</think>the word \boxed alone", "no_box"),
    (r"<think>3+4</think>\boxed{7", "unclosed_box"),
    (r"<think>3+4</think>\boxed{7} or \boxed{8", "unclosed_box"),
    (r"<think>3+4</think>\boxed{}", "empty_box"),
    (r"<think>3+4</think>\boxed{ }", "empty_box"),
])
def test_a_response_outside_the_format_fails_the_gate_with_the_rule_that_it_broke(text, reason):
    gate = format_gate(text)
    assert (gate.passed, gate.reason, gate.answer) == (False, reason, None)


@pytest.mark.parametrize(("text", "answer"), [
    (r"<think>3+4</think>\boxed{7}", "7"),
    ("<think>\n3+4=7\n</think>\n\\boxed{7}", "7"),
    (r"<think></think>So the answer is $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
    (r"<think>\boxed{1}</think>\boxed{2}, no: \boxed{3}", "3"),
])
def test_a_response_in_the_format_passes_the_gate_with_its_last_boxed_answer(text, answer):
    gate = format_gate(text)
    assert (gate.passed, gate.reason, gate.answer) == (True, None, answer)


@pytest.mark.parametrize(("length", "penalty"), [
    (0, 0.0), (47, 0.0), (48, 0.0), (49, -0.1 / 16), (56, -0.05), (63, -0.1 * 15 / 16), (64, -0.1), (65, -0.1), (10**9, -0.1),
])
def test_the_length_penalty_is_zero_up_to_the_first_knot_linear_to_the_second_and_flat_beyond(length, penalty):
    assert length_penalty(length, length_max=64, length_cache=16, scale=0.1) == pytest.approx(penalty, abs=1e-15)


def test_the_length_penalty_at_its_knots_is_exact():
    assert length_penalty(48, length_max=64, length_cache=16, scale=0.1) == 0.0
    assert length_penalty(64, length_max=64, length_cache=16, scale=0.1) == -0.1


@given(length=st.integers(0, 10**6), length_max=st.integers(1, 10**5), share=st.floats(0.001, 1), scale=st.floats(0, 10))
def test_the_length_penalty_never_rewards_and_never_exceeds_its_scale(length, length_max, share, scale):
    cache = max(1, int(share * length_max))
    here = length_penalty(length, length_max=length_max, length_cache=cache, scale=scale)
    assert -scale <= here <= 0
    assert length_penalty(length + 1, length_max=length_max, length_cache=cache, scale=scale) <= here


@pytest.mark.parametrize(("length_max", "length_cache", "scale"), [(64, 0, 0.1), (64, 65, 0.1), (64, 16, -0.1), (0, 0, 0.1)])
def test_an_impossible_length_penalty_is_refused(length_max, length_cache, scale):
    with pytest.raises(RewardError, match="length_cache"):
        length_penalty(10, length_max=length_max, length_cache=length_cache, scale=scale)


@pytest.mark.parametrize(("correct", "length", "total", "accuracy"), [
    (True, 48, 1.0, 1.0), (True, 64, 0.9, 1.0), (True, 56, 0.95, 1.0), (False, 48, 0.1, 0.0), (False, 64, 0.0, 0.0),
    (False, 100, 0.0, 0.0),
])
def test_a_graded_response_is_paid_format_plus_correctness_plus_length(correct, length, total, accuracy):
    vector = graded_vector(correct=correct, length=length, detail="", settings=SETTINGS, stamps=STAMPS, composition_digest="c")
    assert vector.total == pytest.approx(total, abs=1e-12)
    assert vector.total == sum(part.value for part in vector.components)
    assert vector.accuracy == accuracy
    assert [part.name for part in vector.components] == ["format", "correctness", "length"]
    assert [(part.name, part.reason) for part in vector.absent] == [("language_consistency", "not configured")]


def test_a_correct_short_response_is_paid_exactly_one():
    assert graded_vector(correct=True, length=1, detail="", settings=SETTINGS, stamps=STAMPS, composition_digest="c").total == 1.0


def test_a_failed_gate_pays_zero_and_leaves_the_later_parts_absent_not_zero():
    vector = gated_vector(format_gate("7"), STAMPS, "c")
    assert (vector.total, vector.accuracy) == (0.0, 0.0)
    assert [(part.name, part.value) for part in vector.components] == [("format", 0.0)]
    assert vector.value("correctness") is None and vector.value("length") is None
    assert [part.name for part in vector.absent] == ["correctness", "length", "language_consistency"]
    assert all("no_opening_tag" in part.reason for part in vector.absent[:2])
