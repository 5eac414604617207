"""Composed rewards: what is refused before anything is judged, what a verdict keeps, what the audit sees of it."""

from __future__ import annotations

import dataclasses
import os
import sys

import pytest
from answered import Told, task, trace
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.records import Rated, RecordError, Scored, decode, encode
from rollbook.records.composition import ComposedReward, Decoupled, GroupLength, Part, Sigmoid, SoftLength, misfits
from rollbook.records.ready_made import READY_MADE, NamedReward, named_misfits
from rollbook.rewards import RewardError
from rollbook.rewards.composed import ComposedJudge
from rollbook.rewards.composed.judge import step_of
from rollbook.rewards.composed.measures import Sources, code_format
from rollbook.rewards.composed.shapes import decoupled
from rollbook.rewards.composed.values import misfit

SEVEN = task()
PLAIN = ComposedReward(name="plain", parts={"form": Part(measure="formats", reference='text:{"boxed": true}', weight=0.0),
                                            "answer": Part(measure="exact", passed=2.0, failed=-1.0)},
                       shaping={"length": SoftLength(length_max=10, length_cache=5, scale=1.0)}, gates=("form",),
                       accuracy="answer", verify_seconds=5.0, verify_workers=1)


@pytest.fixture(scope="module")
def judge():
    with ComposedJudge(PLAIN) as made:
        yield made


def judged(judge, *texts, **more):
    return judge.judge([trace(text, SEVEN, sample=place, **more) for place, text in enumerate(texts)], {SEVEN.id: SEVEN})


@pytest.mark.parametrize(("change", "path"), [
    ({"parts": {}}, "parts"),
    ({"gates": ("nothing",)}, "gates[0]"),
    ({"accuracy": "nothing"}, "accuracy"),
    ({"parts": {"answer": Part(measure="mathematics")}, "gates": ()}, "parts.answer.measure"),
    ({"parts": {"answer": Part(measure="model:")}, "gates": ()}, "parts.answer.measure"),
    ({"parts": {"answer": Part(measure="exact", reference="elsewhere")}, "gates": ()}, "parts.answer.reference"),
    ({"parts": {"form": Part(measure="formats", passed=0.0), "answer": Part(measure="exact")}}, "parts.form.passed"),
    ({"shaping": {"answer": SoftLength(length_max=10, length_cache=5, scale=1.0)}}, "shaping.answer"),
    ({"shaping": {"s": Sigmoid(of="nothing", slope=1.0)}}, "shaping.s.of"),
    ({"shaping": {"s": Sigmoid(of="answer", slope=0.0)}}, "shaping.s.slope"),
    ({"shaping": {"s": SoftLength(length_max=5, length_cache=10, scale=1.0)}}, "shaping.s"),
    ({"shaping": {"s": GroupLength(weight=1.0, start_step=0)}, "accuracy": None}, "shaping.s"),
    ({"shaping": {"a": Decoupled(eps=0, ddof=0), "b": Decoupled(eps=0, ddof=0)}}, "shaping"),
])
def test_a_composition_that_cannot_be_computed_is_refused_at_the_field_that_is_wrong(change, path):
    broken = dataclasses.replace(PLAIN, **change)
    assert path in {found.path for found in misfits(broken)}
    with pytest.raises(RewardError, match=r"reward\."):
        ComposedJudge(broken)


@pytest.mark.parametrize(("change", "path"), [
    ({"composition": "dapoo"}, "composition"),
    ({"measures": {}}, "measures.correctness"),
    ({"measures": {"correctness": "math", "style": "math"}}, "measures.style"),
    ({"numbers": {"lenght_max": 3}}, "numbers.lenght_max"),
    ({"numbers": {"length_max": "long"}}, "numbers.length_max"),
    ({"numbers": {"length_max": True}}, "numbers.length_max"),
    ({"composition": "kimi_k15"}, "numbers.weight"),
])
def test_a_ready_made_reward_says_which_number_is_missing_unknown_or_of_another_type(change, path):
    whole = NamedReward(composition="dapo", measures={"correctness": "math"}, verify_seconds=1.0, verify_workers=1)
    assert not list(named_misfits(whole))
    assert path in {found.path for found in named_misfits(dataclasses.replace(whole, **change))}


def test_every_paper_of_the_list_is_there_under_its_name():
    assert set(READY_MADE) == {"magistral", "dapo", "qwen25_math", "llama2", "instructgpt", "kimi_k15", "rstar2", "muse"}


def test_a_reward_survives_its_document():
    assert decode(ComposedReward, encode(PLAIN)) == PLAIN


def test_the_scalar_is_the_weighted_sum_of_the_parts_that_ran(judge):
    right, wrong, gated = judged(judge, r"\boxed{7}", r"\boxed{8}", "7", tokens=8)
    assert [one.vector.total for one in (right, wrong, gated)] == pytest.approx([2.0 - 0.6, -1.0 - 0.6, 0.0])
    assert [one.vector.accuracy for one in (right, wrong, gated)] == [1.0, 0.0, 0.0]
    assert not any(misfit(one.vector, PLAIN) for one in (right, wrong, gated))


def test_an_unfinished_attempt_and_a_task_without_reference_have_no_verdict(judge):
    other = task(reference=" ")
    traces = [trace(r"\boxed{7}", SEVEN, stop="failed"), trace(r"\boxed{7}", other, sample=1), trace("x", task("9"), sample=2)]
    found = judge.judge(traces, {SEVEN.id: SEVEN, other.id: other})
    assert [one.code for one in found] == ["not_finished", "no_reference", "no_reference"]


def test_a_verdict_does_not_depend_on_its_place(judge):
    texts = [r"\boxed{7}", "7", r"\boxed{8}"]
    traces = [trace(text, SEVEN, sample=place) for place, text in enumerate(texts)]
    assert judge.judge(traces, {SEVEN.id: SEVEN}) == judge.judge(traces[::-1], {SEVEN.id: SEVEN})[::-1]


def test_another_number_is_another_judge_and_more_workers_are_not(judge):
    parts = {**PLAIN.parts, "answer": dataclasses.replace(PLAIN.parts["answer"], passed=3.0)}
    with ComposedJudge(dataclasses.replace(PLAIN, parts=parts)) as other, \
            ComposedJudge(dataclasses.replace(PLAIN, verify_workers=5)) as same:
        assert other.digest != judge.digest == same.digest


def test_a_changed_value_is_seen_in_the_vector_alone(judge):
    [right] = judged(judge, r"\boxed{7}")
    assert isinstance(right, Scored)
    for name, value in (("answer", 1.0), ("length", 0.5)):
        parts = tuple(dataclasses.replace(part, value=value) if part.name == name else part for part in right.vector.components)
        assert name in misfit(dataclasses.replace(right.vector, components=parts), PLAIN)
    assert "accuracy" in misfit(dataclasses.replace(right.vector, accuracy=0.0), PLAIN)


def test_a_measure_that_was_not_handed_over_is_refused_when_the_judge_is_made():
    for measure, word in (("model:rm", "scorer"), ("judge:helper", "scorer"), ("code", "sandbox")):
        with pytest.raises(RewardError, match=word):
            ComposedJudge(ComposedReward(name="x", parts={"p": Part(measure=measure)}, verify_seconds=1.0, verify_workers=1))


def test_a_scorer_that_loses_a_response_is_refused():
    class Short(Told):
        def score(self, traces, tasks):
            return super().score(traces, tasks)[1:]
    reward = ComposedReward(name="x", parts={"p": Part(measure="model:rm")}, verify_seconds=1.0, verify_workers=1)
    with ComposedJudge(reward, Sources(scorers={"model:rm": Short()})) as judge, pytest.raises(RewardError, match="0 of 1"):
        judge.judge([trace("x 1", SEVEN)], {SEVEN.id: SEVEN})


def test_a_rating_that_is_no_number_cannot_be_made():
    with pytest.raises(RecordError):
        Rated(value=float("nan"))


@pytest.mark.parametrize(("text", "reason"), [
    ("<think>a</think>\n```python\nx\n```\n", ""), ("<think>a</think>\n```\nx\n```\n", "untyped_code_block"),
    ("<think>a</think> x", "no_code_block"), ("```python\nx\n```\n", "no_opening_tag"), ("<think>a", "no_closing_tag"),
    ("<think>```python\nx\n```\n</think>", "no_code_block"),
    ("<think>a</think></think>\n```python\nx\n```\n", "several_closing_tags")])
def test_the_format_of_code_is_thinking_first_and_one_typed_block_behind_it(text, reason):
    assert code_format(text) == reason


@pytest.mark.parametrize(("attempt", "step"), [
    ("rl/000003/0/2/Task:1f/1", 2), ("eval/heldout/7/0/Task:1f/0", None), ("select/0/x/0", None)])
def test_the_training_step_is_read_from_the_attempts_name(attempt, step):
    assert step_of(attempt) == step


def test_rounding_is_no_spread():
    values = {"x": (0.1 + 0.2, 0.3)}
    assert decoupled(Decoupled(eps=0.0, ddof=0), values, {"x": 1.0}, ["g", "g"]) == (0.0, 0.0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9), st.sampled_from("ab")), min_size=2, max_size=12),
       st.floats(0.1, 10))
def test_decoupled_normalisation_ignores_the_scale_of_a_part_and_sums_to_zero_in_every_group(rows, scale):
    groups = [group for *_, group in rows]
    one = {"x": tuple(x for x, _, _ in rows), "y": tuple(y for _, y, _ in rows)}
    other = {"x": tuple(x * scale for x in one["x"]), "y": one["y"]}
    shape, weights = Decoupled(eps=0.0, ddof=0), {"x": 1.0, "y": 0.5}
    first, second = (decoupled(shape, values, weights, groups) for values in (one, other))
    spreads = [[x for x, _, group in rows if group == name] for name in "ab"]
    if all(not held or max(held) - min(held) == 0.0 or max(held) - min(held) > 1e-6 for held in spreads):
        assert second == pytest.approx(first, abs=1e-6)
    for name in "ab":
        assert sum(value for value, group in zip(first, groups, strict=True) if group == name) == pytest.approx(0.0, abs=1e-9)


def own(**more):
    return ComposedReward(name="own", parts={"mine": Part(measure="own:pool_work:own_verifier", **more)}, accuracy="mine",
                          verify_seconds=20.0, verify_workers=1)


def test_a_function_of_the_users_own_measures_a_part_and_what_it_raises_costs_one_response(monkeypatch):
    import pathlib
    folder = str(pathlib.Path(__file__).parent)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, *sys.path]))
    with ComposedJudge(own(settings={"score": 0.25}, fraction=True)) as judge:
        found = judged(judge, "is 7", "raise", "is 8")
    assert [getattr(one, "code", None) for one in found] == [None, "crash", None]
    assert [one.vector.total for one in (found[0], found[2])] == [0.25, 0.25] and found[0].vector.accuracy == 1.0
    assert "own_own_verifier" == found[0].vector.components[0].verifier.name
    with pytest.raises(RewardError, match="no module"):
        ComposedJudge(ComposedReward(name="x", parts={"p": Part(measure="own:no_such_module:f")}, verify_seconds=1.0,
                                     verify_workers=1))
    assert "parts.p.measure" in {one.path for one in misfits(ComposedReward(
        name="x", parts={"p": Part(measure="own:only")}, verify_seconds=1.0, verify_workers=1))}
