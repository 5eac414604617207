"""Extraction of the last box and the exact fast path."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.rewards.boxes import last_box
from rollbook.rewards.numbers import compare, rational


@pytest.mark.parametrize(("text", "state", "answer"), [
    ("", "none", None),
    ("no box, only boxed{3}", "none", None),
    (r"\boxed{3}", "found", "3"),
    (r"\boxed {3}", "found", "3"),
    (r"\boxed{a{b}{c{d}}} then }{", "found", "a{b}{c{d}}"),
    (r"\boxed{\left\{4\right\}}", "found", r"\left\{4\right\}"),
    (r"\boxed{\{1,2\}}", "found", r"\{1,2\}"),
    (r"\boxed{\boxed{19}}", "found", "19"),
    (r"\boxed{x+\boxed{y}}", "found", "x+y"),
    (r"\boxed{\boxed{\boxed{5}}}", "found", "5"),
    (r"\boxed{1} and \boxed{2}", "found", "2"),
    (r"\boxed{1} and \boxed{2", "unclosed", None),
    (r"\boxed{1 and \boxed{2}", "found", "2"),
    (r"{ \boxed{2}", "found", "2"),
    (r"\boxed{\}", "unclosed", None),
    (r"\boxed{" + "{" * 500, "unclosed", None),
    (r"\boxed{}", "empty", None),
    (r"\boxed{\boxed{}}", "empty", None),
])
def test_the_last_box_is_found_by_matching_braces(text, state, answer):
    box = last_box(text)
    assert (box.state, box.answer) == (state, answer)


@given(st.text(alphabet="\\boxed{} 12", max_size=80))
def test_no_text_breaks_the_extraction(text):
    box = last_box(text)
    assert (box.answer is None) == (box.state != "found")


@pytest.mark.parametrize("text", [r"\boxed{" * 150_000, r"\boxed{" * 70_000 + "7" + "}" * 70_000, "{" * 10**6,
                                  r"\boxed{1}" * 110_000, r"\boxed{" + "9" * 10**6 + "}"])
def test_a_megabyte_of_boxes_is_read_once(text):
    assert last_box(text).state in ("found", "unclosed", "none")


@pytest.mark.parametrize(("text", "value"), [
    ("7", 7), ("-7", -7), ("+7", 7), ("\u22127", -7), ("\u20137", -7), ("007", 7), ("42.", 42), ("0.50", Fraction(1, 2)),
    (".5", Fraction(1, 2)),
    ("1,250", 1250), (r"45\,000", 45000), ("1{,}250", 1250), ("-1,250.5", Fraction(-2501, 2)), (r"\frac{3}{4}", Fraction(3, 4)),
    (r"-\dfrac{3}{4}", Fraction(-3, 4)), (r"\frac34", Fraction(3, 4)), (r"\frac{-5}{-6}", Fraction(5, 6)),
    ("3/4", Fraction(3, 4)),
    ("$12$", 12), (r"\(12\)", 12), ("0.2\\%", Fraction(1, 500)), ("30%", Fraction(3, 10)),
    ("3,8", None), ("1,25", None), ("12,3456", None), ("x", None), ("2^3", None), ("1e5", None), (r"\frac{1}{0}", None),
    ("1/0", None),
    ("", None), ("12 13", None), ("--7", None), ("1.2.3", None), ("\u0663", None), ("9" * 5000, None), ("{7}{8}", None),
])
def test_plain_numbers_are_read_exactly_and_nothing_else_is(text, value):
    assert rational(text) == value


@given(above=st.integers(-999, 999), below=st.integers(1, 999))
def test_every_form_of_a_fraction_is_the_same_number(above, below):
    assert rational(rf"\frac{{{above}}}{{{below}}}") == rational(f"{above}/{below}") == Fraction(above, below)
    assert compare(rf"\frac{{{2 * above}}}{{{2 * below}}}", f"{above}/{below}") is True


@given(left=st.integers(-10**6, 10**6), right=st.integers(-10**6, 10**6))
def test_integers_are_equal_exactly_when_they_are(left, right):
    assert compare(str(left), f"{right:,}") is (left == right)


def test_symbols_are_left_open():
    assert compare("60+1", "61") is None
    assert compare("x+1", "x + 1") is None
    assert compare("x+1", "$x+1$") is True
