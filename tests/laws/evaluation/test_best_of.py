"""What a reward model's pick among n answers is worth: worked by hand, and bounded by what n answers hold."""

import pytest

from rollbook.evaluation.attempts import Attempt
from rollbook.evaluation.best_of import picked, sizes
from rollbook.records import RecordError


def answers(*pairs):
    return [Attempt(accuracy=accuracy, selector=score) for accuracy, score in pairs]


def test_a_perfect_model_reaches_the_best_possible_and_an_inverted_one_the_worst():
    held = {"a": answers((1.0, 2.0), (0.0, 1.0)), "b": answers((0.0, 0.1), (0.0, 0.2))}
    right = picked(held, 2)
    assert right.picked == {"1": 0.25, "2": 0.5} == dict(right.possible) and right.gain.estimate == 0.25
    wrong = picked({task: [Attempt(accuracy=a.accuracy, selector=-a.selector) for a in own] for task, own in held.items()}, 2)
    assert wrong.picked == {"1": 0.25, "2": 0.0} and wrong.possible == right.possible and wrong.gain.estimate == -0.25


def test_equal_ratings_are_worth_one_answer():
    assert picked({"a": answers((1.0, 0.0), (0.0, 0.0), (0.0, 0.0))}, 3).picked["3"] == pytest.approx(1 / 3)


def test_a_task_with_too_few_rated_answers_is_left_out_and_none_at_all_is_an_error():
    held = {"a": answers((1.0, 1.0), (0.0, 0.0)), "b": answers((1.0, 1.0))}
    assert picked(held, 2).gain.count == 1
    with pytest.raises(RecordError, match="as many scored and rated answers"):
        picked({"b": answers((1.0, 1.0))}, 2)


def test_sizes_double_up_to_the_number_of_trials():
    assert [sizes(n) for n in (1, 2, 3, 8, 12)] == [(1,), (1, 2), (1, 2, 3), (1, 2, 4, 8), (1, 2, 4, 8, 12)]
