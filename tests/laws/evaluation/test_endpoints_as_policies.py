"""An endpoint as policy: what it says is recorded, what it does not show stays hidden and is never made up."""

import dataclasses
import json

import pytest
from chat_endpoint import answer, serving
from eval_samples import bundle, task

from rollbook.evaluation.protocols import ProtocolRefused
from rollbook.ledger import Ledger
from rollbook.orchestration.answering import Remote
from rollbook.orchestration.subjects import endpoint_subject
from rollbook.records import (
    Aggregation,
    ModelError,
    NotExposed,
    Outcome,
    RecordError,
    Segment,
    Unscored,
    VerifierStamp,
    content_id,
)
from rollbook.records.recipe import SamplingSettings
from rollbook.rollouts import endpoint as module
from rollbook.rollouts.endpoint import Endpoint, EndpointRollouts

SAMPLING = SamplingSettings(temperature=0.7, top_p=1.0, top_k=0, min_p=0.0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(module, "AGAIN_S", (0.0, 0.0))


def rollouts(url, **changes):
    settings = {"model": "m", "key_variable": None, "workers": 4, "seconds": 5.0} | changes
    return EndpointRollouts(Endpoint(url=url, **settings), SAMPLING, seed=11, max_tokens=64)


def solved(url, count=2, per_task=2, **changes):
    asks = rollouts(url, **changes)
    return asks, asks.solve([task(n) for n in range(count)], per_task, scope="eval/p/000000", envelope=asks.envelope(None))


def test_an_answer_is_recorded_as_text_with_its_counts_and_nothing_that_was_not_shown():
    with serving(lambda body, n: answer(f"\\boxed{{{body['messages'][-1]['content']}}}")) as (url, calls):
        asks, traces = solved(url)
    assert [one.text for one in traces] == ["\\boxed{0 + 3 =}"] * 2 + ["\\boxed{1 + 4 =}"] * 2
    prompt, own = traces[0].segments
    assert (prompt.token_ids, prompt.hidden, own.token_ids, own.hidden, own.version) == ((), 9, (), 4, None)
    assert isinstance(own.logps, NotExposed) and traces[0].stop_reason == "end_of_turn"
    assert (traces[0].action_count, traces[0].prompt_count, traces[0].sampled) == (4, 9, ())
    assert asks.heard == {("m-2026", "fp1")}
    bodies = [body for body, _ in calls]
    assert {(b["model"], b["temperature"], b["top_p"], b["max_tokens"]) for b in bodies} == {("m", 0.7, 1.0, 64)}
    assert len({b["seed"] for b in bodies}) == 4 and [m["role"] for m in bodies[0]["messages"]] == ["system", "user"]
    assert {key for _, key in calls} == {None}


def test_equal_attempts_are_asked_with_equal_seeds_whatever_the_order():
    seeds = []
    for workers in (1, 4):
        with serving(lambda body, n: answer()) as (url, calls):
            solved(url, workers=workers)
        seeds.append({(b["messages"][-1]["content"], b["seed"]) for b, _ in calls})
    assert seeds[0] == seeds[1]


def test_hidden_tokens_come_back_from_the_table_with_the_same_ids(tmp_path):
    with serving(lambda body, n: answer() if n != 2 else (400, {"error": "no"})) as (url, _):
        _, traces = solved(url, workers=1)
    stamp = VerifierStamp(name="v", version="1", digest="d")
    verdicts = [Unscored(trace=one.id, verifier=stamp, code="not_finished", detail="") for one in traces]
    ends = [Outcome(attempt=one.attempt, family="sums", code="accepted") for one in traces]
    with Ledger.create(tmp_path / "run", {}) as ledger:
        ledger.write_traces("eval/p/000000", traces, verdicts, ends)
    held = Ledger.open(tmp_path / "run", write=False)
    assert [trace for trace, _, _ in held.read_traces()] == traces and held.verify().fault is None
    assert [content_id(trace) for trace, _, _ in held.read_traces()] == [identity for event in held.events("TraceTable")
                                                                         for identity, _ in held.rows(event)]


@pytest.mark.parametrize("wrong", [{"owner": "policy", "token_ids": (1,), "logps": NotExposed(), "hidden": 3},
                                   {"owner": "policy", "token_ids": (), "logps": (), "hidden": 3},
                                   {"owner": "policy", "token_ids": (), "logps": NotExposed(), "version": 0, "hidden": 3},
                                   {"owner": "user", "token_ids": (), "logps": NotExposed(), "hidden": 3},
                                   {"owner": "user", "token_ids": (), "hidden": -1},
                                   {"owner": "policy", "token_ids": (), "logps": NotExposed()}])
def test_hidden_tokens_have_a_number_and_nothing_else(wrong):
    with pytest.raises(RecordError):
        Segment(**wrong)


def test_reasoning_that_came_apart_is_put_before_the_answer_and_said_to_be():
    with serving(lambda body, n: answer("\\boxed{7}", reasoning_content="3 + 4")) as (url, _):
        _, (trace,) = solved(url, 1, 1)
    assert trace.text == "<think>\n3 + 4\n</think>\n\\boxed{7}" and trace.observed["put_together"] == 1.0


def test_what_passes_is_asked_again_and_what_does_not_is_a_failed_attempt():
    with serving(lambda body, n: (503, {}) if n < 3 else answer()) as (url, calls):
        _, (trace,) = solved(url, 1, 1)
        assert len(calls) == 3 and trace.observed["tries"] == 3.0 and trace.stop_reason == "end_of_turn"
    with serving(lambda body, n: (401, {}) if n == 1 else answer()) as (url, calls):
        _, (failed, held) = solved(url, 2, 1, workers=1)
        assert len(calls) == 2 and held.stop_reason == "end_of_turn"
    assert failed.stop_reason == "failed" and failed.observed["fault/refused"] == 1.0 and failed.action_count == 0


def cut(body, number):
    status, document = answer()
    del document["usage"]
    return status, document


@pytest.mark.parametrize(("reply", "words"), [
    (lambda body, n: (200, b"<html>"), "no JSON"), (lambda body, n: (200, []), "cannot be read"), (cut, "usage"),
    (lambda body, n: (200, {"choices": []}), "cannot be read"),
    (lambda body, n: answer(finish="content_filter"), "content_filter"),
    (lambda body, n: answer(sampled=-1), "counts"), (lambda body, n: answer(sampled=True), "counts"),
    (lambda body, n: answer(3), "cannot be read"), (lambda body, n: (429, {}), "429")])
def test_an_endpoint_that_answers_nothing_readable_ends_the_evaluation_with_its_first_fault(reply, words):
    with serving(reply) as (url, _), pytest.raises(ModelError, match="not one of 4 attempts was answered") as caught:
        solved(url)
    assert words in str(caught.value.got)


def test_text_that_no_file_can_hold_is_made_readable_and_long_and_empty_answers_are_kept():
    texts = ["\ud800x", "", "a" * 10**6]
    with serving(lambda body, n: (200, json.dumps(answer(texts[n - 1])[1]).encode())) as (url, _):
        _, traces = solved(url, 3, 1, workers=1)
    assert [one.text for one in traces] == ["\ufffdx".replace("\ufffd", traces[0].text[:-1]), "", "a" * 10**6]
    assert traces[0].text.encode() and "\ufffd" in traces[0].text


def test_a_key_is_sent_only_where_a_variable_is_named_and_refused_where_it_is_absent(monkeypatch):
    monkeypatch.setenv("MINE", "secret")
    monkeypatch.setenv("VLLM_API_KEY", "other")
    with serving(lambda body, n: answer()) as (url, calls):
        solved(url, 1, 1)
        solved(url, 1, 1, key_variable="MINE")
    assert [key for _, key in calls] == [None, "Bearer secret"]
    with pytest.raises(ModelError, match="key of the endpoint is not set"):
        rollouts(url, key_variable="ABSENT_HERE")
    for address in ("http://me:pw@h/v1", "http://h/v1?key=1", "http://h/v1#x"):
        with pytest.raises(ModelError, match="host and a path"):
            rollouts(address)


def test_the_only_model_is_taken_and_no_endpoint_is_refused():
    with serving(lambda body, n: answer()) as (url, _):
        asked = endpoint_subject(url, model="", key_variable=None, workers=1, seconds=5.0)
    assert asked.policy.model == "m" and asked.weights is None and asked.name.startswith("m at 127.0.0.1:")
    with pytest.raises(ModelError, match="does not say which models"):
        endpoint_subject(url, model="", key_variable=None, workers=1, seconds=1.0)
    with pytest.raises(ModelError, match="nothing answers"):            # a named one as well, not after minutes of attempts
        endpoint_subject(url, model="m", key_variable=None, workers=1, seconds=1.0)


def test_what_an_endpoint_cannot_be_asked_is_refused_before_anything_is_written():
    where = Endpoint(url="http://127.0.0.1:9/v1", model="m", key_variable=None, workers=1, seconds=1.0)
    with pytest.raises(ModelError, match="cannot be asked to sample"):
        Remote(where, bundle(sampling=dataclasses.replace(SAMPLING, top_k=20)))
    with pytest.raises(ProtocolRefused, match="log-probs"):
        Remote(where, bundle(aggregation=Aggregation(rule="best", k=2, selector="logp")))
    assert set(Remote(where, bundle()).facts().values()) >= {"m", "not shown"}
