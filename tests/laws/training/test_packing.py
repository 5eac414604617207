"""Best-fit packing: nothing is lost, nothing is cut, little room is left."""

from hypothesis import given
from hypothesis import strategies as st

from rollbook.training.packing import best_fit

LENGTHS = st.lists(st.integers(1, 40), max_size=60)


@given(lengths=LENGTHS, room=st.integers(1, 50))
def test_every_sequence_is_in_one_part_and_no_part_is_over_full_but_by_one_that_is_alone(lengths, room):
    parts = best_fit(lengths, room)
    assert sorted(place for part in parts for place in part) == list(range(len(lengths)))
    assert all(sum(lengths[place] for place in part) <= room or len(part) == 1 for part in parts)


@given(lengths=LENGTHS, room=st.integers(40, 80))
def test_no_sequence_could_have_gone_into_a_part_that_was_there_before_its_own(lengths, room):
    parts = best_fit(lengths, room)
    for later, part in enumerate(parts):
        first = lengths[part[0]]
        for earlier in parts[:later]:
            kept = [place for place in earlier if (-lengths[place], place) < (-first, part[0])]
            assert sum(lengths[place] for place in kept) + first > room


@given(lengths=LENGTHS, room=st.integers(1, 80))
def test_all_parts_but_one_are_more_than_half_full(lengths, room):
    assert sum(2 * sum(lengths[place] for place in part) <= room for part in best_fit(lengths, room)) <= 1


def test_a_short_sequence_fills_the_fullest_part_that_holds_it():
    assert best_fit([3, 6, 4, 2], 9) == [[1, 0], [2, 3]] and best_fit([], 5) == [] and best_fit([7, 2], 5) == [[0], [1]]
    assert best_fit([5, 5, 2, 1], 6) == [[0, 3], [1], [2]]
