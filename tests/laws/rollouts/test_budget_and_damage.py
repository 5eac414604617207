"""A budget that is too small makes requests wait, damaged numbers end one request; neither touches the others."""

import dataclasses

import pytest
import torch
from policies import engine_of, prompts, request, tiny_policy

from rollbook.experience.admission import AdmissionRule, admit, group, outcome
from rollbook.ledger import close_census
from rollbook.models.cache import Cache
from rollbook.records import Message, ModelError, Unscored
from rollbook.records.recipe import SamplingSettings
from rollbook.rollouts.engines import stream
from rollbook.rollouts.engines.memory import cache_bytes, needed, position_bytes
from rollbook.rollouts.solve import Rollouts

PLAIN = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0)


@pytest.fixture(scope="module")
def policy():
    return tiny_policy("llama")


def same(some, others):
    for one, other in zip(some, others, strict=True):
        assert one.token_ids == other.token_ids and one.stop_reason == other.stop_reason
        assert one.logps == pytest.approx(other.logps, abs=1e-4)


@pytest.fixture
def peaks(monkeypatch):
    """Bytes of the arena together with all that a prefill makes beside it, for every prefill."""
    found, arena, inside, real, prefill = [], [0], [], Cache.empty.__func__, stream.prefill

    def empty(cls, *given):
        cache = real(cls, *given)
        if inside:
            inside.append(cache_bytes(cache))
        else:
            arena[0] = cache_bytes(cache)
        return cache

    def counted(*given):
        inside.append(arena[0])
        made = prefill(*given)
        found.append(sum(inside))
        inside.clear()
        return made
    monkeypatch.setattr(Cache, "empty", classmethod(empty))
    monkeypatch.setattr(stream, "prefill", counted)
    return found


def test_requests_wait_when_the_budget_is_full_and_get_the_same_tokens(policy, peaks):
    asked = [request(f"{place}/{sample}", (*prompts(policy)[place % 3], place), max_tokens=5 + 2 * place)
             for place in range(8) for sample in range(2)]
    roomy = engine_of(policy).sample(asked)
    one = position_bytes(policy.decoder.architecture, torch.float32)
    for rows in (1, 2, 5):
        budget = one * rows * max(map(needed, asked))
        peaks.clear()
        same(engine_of(policy, kv_bytes=budget).sample(asked), roomy)
        assert budget * (rows - 1) / rows < max(peaks) <= budget


def test_one_request_that_can_never_fit_is_named_with_its_bytes_and_the_others_are_answered(policy):
    asked = [request(f"small {index}", prompts(policy)[0], max_tokens=8) for index in range(3)]
    large = request("the large one", prompts(policy)[0], max_tokens=64)
    one = position_bytes(policy.decoder.architecture, torch.float32)
    engine = engine_of(policy, kv_bytes=one * needed(asked[0]))
    *small, failed = engine.sample([*asked, large])
    same(small, engine_of(policy).sample(asked))
    assert failed.fault.code == "kv_budget" and "request the large one" in failed.fault.detail
    assert f"{one * needed(large)} bytes for {one * needed(asked[0])}" in failed.fault.detail


def test_lengths_that_fit_one_by_one_but_not_as_rows_of_one_arena_are_answered(policy):
    long, short = prompts(policy)[2] * 3, prompts(policy)[0][:2]
    asked = [request("long prompt", long, max_tokens=1), request("long answer", short, max_tokens=2 * len(long) - 3)]
    assert needed(asked[0]) == needed(asked[1])
    one = position_bytes(policy.decoder.architecture, torch.float32)
    same(engine_of(policy, kv_bytes=one * needed(asked[0])).sample(asked), engine_of(policy).sample(asked))


def damaged(engine, token):
    """The engine with a NaN in one token's embedding; the output matrix stays whole."""
    engine.weights.embedding = engine.weights.embedding.clone()
    engine.weights.embedding[token] = float("nan")
    return engine


@pytest.mark.parametrize("max_rows", [2, 128])
def test_logits_that_are_not_finite_end_their_request_by_name_and_leave_the_others_alone(policy, max_rows):
    asked = prompts(policy)
    bad = max(set(range(256)) - {token for prompt in asked for token in prompt})
    requests = [request(f"r{index}", asked[index % 3], max_tokens=8) for index in range(9)]
    requests[1] = dataclasses.replace(requests[1], prompt_ids=(*asked[1], bad))
    expected = engine_of(policy, max_rows=max_rows).sample(requests)
    found = damaged(engine_of(policy, max_rows=max_rows), bad).sample(requests)
    hit = [index for index, one in enumerate(expected) if index == 1 or bad in one.token_ids[:-1]]
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        if index in hit:
            assert one.fault.code == "logits" and f"request r{index} " in one.fault.detail
        else:
            same([one], [other])
    assert found[1].token_ids == () and found[1].sampled is None


def test_a_short_request_that_takes_a_damaged_ones_place_beside_a_long_one_is_whole(policy):
    long = prompts(policy)[2] * 2
    bad = max(set(range(256)) - set(long))
    requests = [request("long", long, max_tokens=16), request("damaged", (*long[:-1], bad), max_tokens=16),
                request("short", long[:3], max_tokens=8)]
    expected = engine_of(policy, max_rows=2).sample(requests)
    assert bad not in expected[0].token_ids + expected[2].token_ids
    one, failed, other = damaged(engine_of(policy, max_rows=2), bad).sample(requests)
    assert failed.fault.code == "logits"
    same([one, other], [expected[0], expected[2]])
    _, padded = damaged(engine_of(policy), bad).sample(requests[1:])            # the short one is padded to the damaged one
    same([padded], [expected[2]])


def test_a_request_damaged_on_its_way_keeps_the_tokens_it_had_sampled(policy):
    asked = [request(f"r{index}", prompts(policy)[0]) for index in range(6)]
    whole = engine_of(policy).sample(asked)
    bad = next(token for token in whole[2].token_ids[3:-1] if token not in prompts(policy)[0])
    found = damaged(engine_of(policy), bad).sample(asked)
    for one, other in zip(found, whole, strict=True):
        count = other.token_ids.index(bad) + 1 if bad in other.token_ids[:-1] else None
        assert one.token_ids == other.token_ids[:count]
        assert (one.fault is None) == (count is None)
        assert count is None or f"after {count} new tokens" in one.fault.detail


class Task:
    """As much of a task as a rollout reads."""

    def __init__(self, name, words):
        self.id, self.family, self.prompt = name, "family", (Message(role="user", content=words),)


def rollouts(policy, engine, **changes):
    plain = {"sampler": engine, "tokenizer": policy.tokenizer, "sampling": PLAIN, "seed": 1, "max_tokens": 16}
    return Rollouts(**plain | changes)


def test_a_failed_attempt_is_a_trace_that_the_census_counts_as_failed(policy):
    words = ("1 + 1 =", "z")
    bad = policy.tokenizer.encode("z")[0]
    made = rollouts(policy, damaged(engine_of(policy), bad))
    envelope = made.envelope("weights")
    traces = made.solve([Task("good", words[0]), Task("bad", words[1])], 2, scope="s", envelope=envelope)
    failed = [trace for trace in traces if trace.task == "bad"]
    assert [trace.stop_reason for trace in failed] == ["failed"] * 2
    assert all(trace.action_count == 0 and trace.sampled == () and trace.text == "" for trace in failed)
    assert all(trace.observed["fault/logits"] == 1.0 for trace in failed)
    verdicts = [Unscored(trace=trace.id, verifier=None, code="not_finished", detail="it ended as failed") for trace in traces]
    admission = admit(group(traces, verdicts, {"good": Task("good", ""), "bad": Task("bad", "")}),
                      AdmissionRule(least=2, drop_uniform=True))
    codes = {one.attempt: one for one in admission.outcomes}
    assert all(codes[trace.attempt].code == "failed" and codes[trace.attempt].detail == "logits" for trace in failed)
    assert outcome(failed[0], verdicts[-1], "family").code == "failed"
    census = close_census("s", {trace.attempt: "family" for trace in traces}, admission.outcomes)
    assert census.count("failed") == 2 + sum(trace.stop_reason == "failed" for trace in traces if trace.task == "good")


def test_a_call_that_answers_none_of_several_prompts_stops_the_run_with_the_first_fault(policy):
    made = rollouts(policy, engine_of(policy), max_tokens=4096)
    with pytest.raises(ModelError, match="not one of 2 attempts could be sampled"):
        made.solve([Task("a", "1"), Task("b", "2")], 1, scope="s", envelope=made.envelope("weights"))
    (alone,) = made.solve([Task("a", "1")], 1, scope="s", envelope=made.envelope("weights"))
    assert alone.stop_reason == "failed" and "fault/context" in alone.observed


def test_text_that_is_no_attempt_is_refused_where_one_answer_fails(policy):
    made = rollouts(policy, engine_of(policy), max_tokens=100)
    short, long = prompts(policy)[0][:3], prompts(policy)[2] * 2
    assert len(made.complete([short], scope="general")) == 1
    with pytest.raises(ModelError, match="general could not be written"):
        made.complete([short, long], scope="general")


def test_stop_strings_of_the_rollouts_stand_in_the_envelope_and_end_the_answers(policy):
    (trace,) = rollouts(policy, engine_of(policy)).solve([Task("a", "1 + 1 =")], 1, scope="s", envelope=rollouts(
        policy, None).envelope("w"))
    wanted = next(c for c in trace.text if c != "\ufffd")
    made = rollouts(policy, engine_of(policy), stop=(wanted,))
    assert made.envelope("w").stop == (wanted,)
    (stopped,) = made.solve([Task("a", "1 + 1 =")], 1, scope="s", envelope=made.envelope("w"))
    assert stopped.stop_reason == "stop_string" and wanted in stopped.text
    assert trace.token_ids[:len(stopped.token_ids)] == stopped.token_ids


