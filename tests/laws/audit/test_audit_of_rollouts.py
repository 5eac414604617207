"""The pure parts of the detectors of requests, events and rewards."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.audit.detectors.events import misordered, packed_otherwise
from rollbook.audit.detectors.request import differing, misnamed, overspent, stage_of, stopped
from rollbook.audit.detectors.reward import miscomposed, mistrained, misvalued, scalar
from rollbook.records import (
    AbsentComponent,
    Component,
    Composition,
    Dispatch,
    RewardVector,
    SamplingEnvelope,
    Scored,
    Segment,
    Trace,
    Unscored,
    VerifierStamp,
)
from rollbook.records.recipe import RewardSettings

STOPS = frozenset({2})
STAMP = VerifierStamp(name="math", version="1", digest="77")
ENVELOPE = SamplingEnvelope(policy="3f", temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=1, max_tokens=4, max_turns=1,
                            max_seconds=None, stop=(), template="b2", scaffold="single_turn/1")
COMPOSITION = Composition(name="magistral/1", digest="c0", gate="format",
                          parts={"format": 1.0, "correctness": 1.0, "length": 2.0})
SETTINGS = RewardSettings(composition="magistral", format_reward=0.1, correct_reward=0.9, length_penalty=0.1, length_max=8,
                          length_cache=4, language_reward=None, verify_seconds=1.0, verify_workers=1)


def said(*ids, version=1):
    return Segment(owner="policy", token_ids=ids, logps=(-0.5,) * len(ids), version=version)


def trace(*segments, stop="end_of_turn", attempt="rl/000001/0/Task:1/2", text="7"):
    segments = segments or (said(7, 2),)
    return Trace(attempt=attempt, task="Task:1", group=attempt.rpartition("/")[0], envelope="SamplingEnvelope:9", text=text,
                 segments=(Segment(owner="user", token_ids=(5, 6)), *segments), stop_reason=stop)


def test_an_attempt_within_its_envelope_is_in_order():
    assert not overspent(trace(), 2, ENVELOPE, None)
    assert not stopped(trace(), 2, ENVELOPE, STOPS)
    assert not stopped(trace(said(7, 7, 7, 7), stop="length"), 4, ENVELOPE, STOPS)


@pytest.mark.parametrize(("made", "words"), [
    (trace(said(7, 7), stop="end_of_turn"), "ends none"),
    (trace(said(7, 7), stop="length"), "after 2 of 4 tokens"),
    (trace(said(7, 7, 7, 2), stop="length"), "its last token ends the turn"),
    (trace(said(7, 2, 7, 2)), "after the one that ends a turn"),
    (trace(stop="stop_string"), "none of its envelope's"),
])
def test_a_stop_reason_that_the_tokens_contradict_is_found(made, words):
    assert words in stopped(made, made.action_count, ENVELOPE, STOPS)


def test_turns_and_seconds_beyond_the_envelope_are_found():
    twice = trace(said(7, 2), Segment(owner="tool", token_ids=(9,)), said(7, 2))
    assert "2 turns" in overspent(twice, 4, ENVELOPE, None)
    late = dataclasses.replace(trace(), observed={"latency_s": 9.0})
    assert "9.0 s" in overspent(late, 2, dataclasses.replace(ENVELOPE, max_seconds=5.0), None)


@pytest.mark.parametrize(("parts", "words"), [
    (("1", "Task:1", "2"), "no task was issued in this place"), (("0", "Task:2", "2"), "no task was issued in this place"),
    (("0", "Task:1", "3"), "only 3 attempts"), (("x", "Task:1", "2"), "no task"), (("0", "Task:1", ""), "only 3 attempts")])
def test_an_attempt_that_was_not_issued_is_found(parts, words):
    dispatch = Dispatch(scope="rl/000001/0", tasks=("Task:1",), samples=3, envelope="SamplingEnvelope:9")
    assert not misnamed(trace(), dispatch, ("0", "Task:1", "2"))
    assert words in misnamed(trace(), dispatch, parts)


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(SamplingEnvelope) if f.name != "policy"])
def test_every_field_of_an_envelope_but_the_policy_is_compared(name):
    other = dataclasses.replace(ENVELOPE, policy="4a", **{name: "other"})
    assert [text.partition(" ")[0] for text in differing(ENVELOPE, other)] == [name]


def test_a_table_is_of_the_stage_that_wrote_it():
    stages = {"rl": None, "after": None}
    assert [stage_of(name, stages) for name in ("eval/after", "eval/rl/probe/000002", "rl/000001", "select")] == [
        "after", "rl", "rl", "select"]


def given_for(*traces):
    """The packed tensors of these trajectories."""
    segments = [segment for one in traces for segment in one.policy_segments]
    length = np.array([one.action_count for one in traces])
    return {"length": length, "seq": np.repeat(np.arange(len(traces)), length),
            "token_ids": np.array([token for s in segments for token in s.token_ids]),
            "behavior": np.array([value for s in segments for value in s.logps], dtype=np.float32),
            "version": np.array([s.version for s in segments for _ in s.token_ids])}


@given(st.data())
def test_any_single_change_in_a_packed_batch_is_found(data):
    traces = [trace(said(7, 2)), trace(said(8, version=1), said(9, 2, version=2))]
    given_ = given_for(*traces)
    assert list(packed_otherwise(traces, ("a", "b"), given_)) == []
    name = data.draw(st.sampled_from(sorted(given_)))
    at = data.draw(st.integers(0, len(given_[name]) - 1))
    given_[name] = given_[name].copy()
    given_[name][at] += 1
    assert list(packed_otherwise(traces, ("a", "b"), given_))


def test_a_trajectory_that_is_gone_is_passed_over_and_its_neighbours_are_not():
    traces = [trace(said(7, 2)), trace(said(8, 2))]
    given_ = given_for(*traces)
    given_["token_ids"][2] = 5
    assert list(packed_otherwise([None, None], ("a", "b"), given_)) == []
    assert "ids of b" in next(packed_otherwise([None, traces[1]], ("a", "b"), given_))


def test_versions_within_a_turn_only_grow():
    assert not misordered(trace(said(8, version=1), said(9, 2, version=2)))
    assert "version 1 follows version 1" in misordered(trace(said(8, version=1), said(9, 2, version=1)))
    assert not misordered(trace(said(8, version=2), Segment(owner="tool", token_ids=(9,)), said(9, 2, version=2)))
    assert "begin" in misordered(dataclasses.replace(trace(), segments=(said(7, 2),)))


def vector(total, absent=(), accuracy=None, **values):
    parts = tuple(Component(name=name, value=value, verifier=STAMP) for name, value in values.items())
    return RewardVector(components=parts, absent=tuple(AbsentComponent(name=name, reason="gate") for name in absent),
                        composition="magistral/1", composition_digest="c0", total=total, accuracy=accuracy)


def test_a_failed_gate_gives_zero_whatever_else_was_computed():
    assert scalar({"format": 0.0, "correctness": 0.9}, "format", COMPOSITION.parts) == 0.0
    assert scalar({"correctness": 0.9}, "format", COMPOSITION.parts) == 0.0
    assert scalar({"format": 0.1, "length": -0.05}, "format", COMPOSITION.parts) == 0.1 - 0.1
    assert not miscomposed(vector(0.0, ("correctness", "length"), format=0.0), COMPOSITION)


@pytest.mark.parametrize(("made", "words"), [
    (vector(1.0 + 1e-9, format=0.1, correctness=0.9, length=0.0), "compose to"),
    (vector(0.9, ("length",), format=0.0, correctness=0.9), "compose to"),
    (vector(1.0, format=0.1, correctness=0.9), "length is neither"),
    (vector(1.0, ("length",), format=0.1, correctness=0.9, length=0.0), "twice"),
    (vector(1.0, ("length",), format=0.1, correctness=0.9, style=0.3), "style is no part"),
    (dataclasses.replace(vector(1.0, format=0.1, correctness=0.9),
                         absent=(AbsentComponent(name="length", reason=" "),)), "for no reason")])
def test_a_vector_that_breaks_its_composition_is_found(made, words):
    assert words in miscomposed(made, COMPOSITION)


def test_parts_that_the_recipe_cannot_pay_are_found():
    assert not misvalued(vector(1.0, format=0.1, correctness=0.9, length=-0.05, accuracy=1.0), SETTINGS)
    assert "format is 0.2" in misvalued(vector(0.2, format=0.2), SETTINGS)
    assert "length is -0.2" in misvalued(vector(0.2, format=0.1, length=-0.2), SETTINGS)
    assert "accuracy is 1.0, correctness 0" in misvalued(vector(0.1, format=0.1, correctness=0.0, accuracy=1.0), SETTINGS)
    assert "did not run" in misvalued(vector(0.0, format=0.0, accuracy=1.0), SETTINGS)


def test_what_trains_has_a_verdict_and_its_own_reward():
    scored = Scored(trace="Trace:1", vector=vector(1.0, format=0.1, correctness=0.9, accuracy=1.0))
    assert not mistrained(scored, 1.0, 1)
    assert "reward of 0" in mistrained(scored, 0.0, 1)
    assert "for wrong" in mistrained(scored, 1.0, 0)
    unscored = Unscored(trace="Trace:1", verifier=STAMP, code="timeout", detail="")
    assert "without a verdict (timeout)" in mistrained(unscored, 0.0, 0)
    assert "without a verdict" in mistrained(None, 0.0, 0)
