"""Code on hidden tests: what passes, what the solution loses, what is the reference's or the sandbox's fault."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.records.sandbox import Answer, Attempted, NoAnswer, SandboxError
from rollbook.rewards import Failure, RewardError
from rollbook.rewards.verifiers.code import CodeVerifier, HiddenTest, chosen_tests, code_in, same_data

TESTS = {"tests": [{"input": f"{n}\n", "output": f"{2 * n}\n"} for n in range(40)]}


class Runner:
    """Runs a 'solution' that is the text of a Python expression over `x`; counts how many inputs it was given."""

    parallel = 2

    def __init__(self, broken=False):
        self.broken, self.ran, self.seen = broken, 0, []

    def attempt(self, solution, inputs):
        if self.broken:
            raise SandboxError("no namespaces")
        self.ran += len(inputs)
        self.seen += list(inputs)
        return tuple(Attempted(answer=self._answer(solution, given), execution=None) for given in inputs)

    def _answer(self, solution, given):
        if "loop" in solution.source:
            return NoAnswer(code="limit", detail="wall")
        if solution.function:
            return Answer(value=eval(solution.source, {"x": given[0]}))
        return Answer(value=f"{eval(solution.source, {'x': int(given)})}\n")


def block(source, language="python"):
    return f"<think>so</think>\nHere:\n```{language}\n{source}\n```\n"


def judged(response, reference=TESTS, runner=None, group="g", **more):
    [found] = CodeVerifier(runner or Runner(), **more).judge_groups([(response, reference, group)])
    return found


def test_all_tests_must_pass_and_twenty_are_chosen():
    runner = Runner()
    found = judged(block("2 * x"), runner=runner)
    assert (found.passed, found.score, runner.ran) == (True, 1.0, 20)
    assert not judged(block("2 * x if x != 39 else 0"), tests=40).passed


def test_the_first_failed_test_ends_it_and_a_fraction_counts_them_all():
    runner = Runner()
    assert not judged(block("x"), runner=runner).passed and runner.ran < 20
    half = judged(block("2 * x if x < 20 else 0"), fraction=True, tests=40)
    assert (half.passed, half.score) == (False, 0.5)


def test_all_tests_and_their_fraction_are_two_verifiers_by_name():
    one, other = CodeVerifier(Runner()), CodeVerifier(Runner(), fraction=True)
    assert (one.stamp.name, other.stamp.name) == ("code", "code_fraction")
    assert one.stamp.digest != other.stamp.digest != CodeVerifier(Runner(), fraction=True, tests=5).stamp.digest


def test_a_group_shares_its_tests_and_another_group_has_others():
    seen = []
    for group in ("a", "a", "b"):
        runner = Runner()
        judged(block("2 * x"), runner=runner, group=group)
        seen.append(runner.seen)
    assert seen[0] == seen[1] != seen[2]


def test_a_solution_beyond_its_limit_loses_the_test_and_a_broken_sandbox_judges_nobody():
    found = judged(block("loop"))
    assert not found.passed and "limit" in found.detail
    failed = judged(block("2 * x"), runner=Runner(broken=True))
    assert isinstance(failed, Failure) and failed.code == "unavailable"


@pytest.mark.parametrize("response",
                         ["", "no code at all", "```python\n2 * x", block("2 * x", "rust"),
                          "<think>```python\n2*x\n```\n</think>"])
def test_a_response_without_a_block_of_the_language_is_wrong_and_not_a_failure(response):
    found = judged(response)
    assert not found.passed and found.score == 0.0


@pytest.mark.parametrize(("reference", "code"), [
    ({"tests": []}, "no_reference"), ({}, "no_reference"), ([1], "unparsable_reference"), ({"test": 1}, "unparsable_reference"),
    ({"tests": [{"input": 1, "output": "1"}]}, "unparsable_reference"), ({"tests": [{"input": "1"}]}, "unparsable_reference"),
    ({"tests": [{"input": "1", "output": "1"}], "language": "cobol"}, "unparsable_reference"),
    ({"tests": [{"input": [1], "output": 1}], "function": "not a name"}, "unparsable_reference"), (None, "no_reference")])
def test_a_reference_that_decides_nothing_is_a_failure_with_its_reason(reference, code):
    found = judged(block("2 * x"), reference)
    assert isinstance(found, Failure) and found.code == code


def test_the_first_block_answers_and_the_last_one_on_request():
    two = block("2 * x") + block("x").removeprefix("<think>so</think>\n")
    assert judged(two).passed and not judged(two, block="last").passed
    assert code_in(two, "python", "last") == "x\n"


def test_a_function_returns_plain_data_that_is_compared_by_type():
    reference = {"tests": [{"input": [n], "output": [n, True]} for n in range(3)], "function": "solve"}
    assert judged(block("[x, True]"), reference).passed
    assert not judged(block("[x, 1]"), reference).passed


@pytest.mark.parametrize(("compare", "tolerance", "found", "wanted", "same"), [
    ("lines", 0.0, "1 2 \n3\n\n", "1 2\n3", True), ("lines", 0.0, "1  2\n3", "1 2\n3", False), ("exact", 0.0, "1\n", "1", False),
    ("tokens", 0.0, "1  2\n3", "1 2 3", True), ("tokens", 1e-6, "0.3333333", "0.33333333", True),
    ("tokens", 0.0, "0.30", "0.3", False),
    ("tokens", 1e-6, "nan", "nan", True), ("tokens", 1e-6, "1e999", "7", False)])
def test_printed_text_is_compared_as_the_setting_says(compare, tolerance, found, wanted, same):
    assert CodeVerifier(Runner(), compare=compare, tolerance=tolerance)._same_text(found, wanted) == same


@pytest.mark.parametrize("wrong", [{"tests": 0}, {"compare": "loosely"}, {"tolerance": 0.1}, {"block": "middle"}])
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(RewardError):
        CodeVerifier(Runner(), **wrong)


PLAIN = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
                     lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
                     max_leaves=8)


@settings(max_examples=100, deadline=None)
@given(PLAIN, PLAIN)
def test_equality_of_plain_data_is_reflexive_and_symmetric(one, other):
    assert same_data(one, one, 0.0)
    assert same_data(one, other, 0.0) == same_data(other, one, 0.0)


def test_the_chosen_tests_keep_their_numbers_and_their_order():
    tests = [HiddenTest(given=str(n), wanted="") for n in range(30)]
    chosen = chosen_tests(tests, 20, "g")
    assert [number for number, _ in chosen] == sorted({number for number, _ in chosen}) and len(chosen) == 20
    assert all(test.given == str(number - 1) for number, test in chosen)
    assert chosen_tests(tests[:5], 20, "g") == list(enumerate(tests[:5], 1))
