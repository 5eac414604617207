"""Fill in the middle: what is rearranged can be put together again, and both forms are met."""

import random

from hypothesis import given
from hypothesis import strategies as st

from rollbook.tasks.fim import MIDDLE, PREFIX, SUFFIX, filled_in, restored

TEXT = st.text(max_size=40)


@given(text=TEXT, seed=st.integers(0, 10**6))
def test_a_document_that_was_rearranged_is_restored_to_the_character(text, seed):
    assert restored(filled_in(text, random.Random(seed))) == text


@given(text=TEXT)
def test_a_document_that_was_left_as_it_is_stays_so(text):
    assert restored(text) == text


def test_both_forms_are_met_and_every_place_is_cut():
    made = [filled_in("abc", random.Random(seed)) for seed in range(400)]
    last = sum(text.startswith(PREFIX + SUFFIX) and not text.endswith(MIDDLE) for text in made)
    assert 100 < last < 300
    assert {text.partition(SUFFIX)[0] for text in made} == {PREFIX, f"{PREFIX}a", f"{PREFIX}ab", f"{PREFIX}abc"}
