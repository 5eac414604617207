"""The policy behind OpenAI's interface: exact ids of every call, calls stitched into contexts, refusals in their shape."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from scripted import SAMPLING, STOP, TOKENIZER, ScriptedSampler, do

from rollbook.records import FinalState, ModelError, Task
from rollbook.rollouts.conversations import read_rows
from rollbook.rollouts.dialects import dialect
from rollbook.rollouts.meeting import turn_sampler
from rollbook.rollouts.rendering import Renderer
from rollbook.rollouts.rules import EpisodeRules
from rollbook.serve.asking import Refused, chat
from rollbook.serve.gateway import Allowed, Gateway
from rollbook.serve.harness import Assignment, HarnessRollouts
from rollbook.serve.running import CallLog, Serving, listen, serving

TOOL = {"type": "function", "function": {"name": "do", "description": "Does it.", "parameters": {
    "type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}}}


def gateway(script: Callable[[str, int], str], fixed: bool = False, keep: int | None = None,
            told: CallLog | None = None) -> tuple[Gateway, ScriptedSampler]:
    sampler = ScriptedSampler(script)
    renderer = Renderer(TOKENIZER, dialect("hermes"), announces=False)
    allowed = Allowed(context=5000, max_tokens=200, fixed=fixed, keep=keep)
    return Gateway(turn_sampler(sampler), renderer, SAMPLING, allowed, told=told), sampler


@contextmanager
def served(script: Callable[[str, int], str] | tuple[str, ...], **settings: Any) -> Iterator[tuple[Serving, ScriptedSampler]]:
    said = script if callable(script) else lambda name, turn: script[min(turn, len(script) - 1)]
    gate, sampler = gateway(said, **settings)
    with serving(gate) as one:
        yield one, sampler


def client(one: Serving, attempt: str = "a") -> openai.OpenAI:
    return openai.OpenAI(base_url=one.base_url(attempt), api_key=one.token, max_retries=0)


def ask(agent: openai.OpenAI, messages: list[Any], **more: Any) -> Any:
    return agent.chat.completions.create(model="policy", messages=messages, **more)


USER = {"role": "user", "content": "task"}


def test_the_openai_sdk_gets_text_tools_usage_and_log_probs() -> None:
    with served((do("a"), "4")) as (one, _):
        agent = client(one)
        first = ask(agent, [USER], tools=[TOOL])
        call = first.choices[0].message.tool_calls[0]
        assert (first.choices[0].finish_reason, call.function.name, json.loads(call.function.arguments)) == (
            "tool_calls", "do", {"what": "a"})
        messages = [USER, first.choices[0].message.model_dump(exclude_none=True),
                    {"role": "tool", "tool_call_id": call.id, "content": "did a"}]
        last = ask(agent, messages, tools=[TOOL], logprobs=True)
        assert last.choices[0].message.content == "4" and last.choices[0].finish_reason == "stop"
        assert [entry.logprob for entry in last.choices[0].logprobs.content] == [-0.5, -0.5]
        assert last.usage.completion_tokens == 2
        assert [model.id for model in agent.models.list()] == ["policy"]


def test_calls_of_one_conversation_are_one_context_with_exactly_the_sampled_ids() -> None:
    with served((do("a"), "4")) as (one, sampler):
        agent = client(one)
        first = ask(agent, [USER], tools=[TOOL]).choices[0].message
        ask(agent, [USER, first.model_dump(exclude_none=True),
                    {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "did a"}], tools=[TOOL])
        parts = one.gateway.finish("a")
    assert len(parts) == 1 and [segment.owner for segment in parts[0].segments] == [
        "user", "policy", "template", "tool", "template", "policy"]
    ids = [token for segment in parts[0].segments for token in segment.token_ids]
    assert tuple(ids[:len(sampler.asked[1].prompt_ids)]) == sampler.asked[1].prompt_ids
    assert parts[0].segments[1].token_ids == (*TOKENIZER.encode(do("a")), STOP) and len(parts[0].sampled) == 2


def test_a_conversation_that_the_agent_rewrote_begins_a_context_in_which_nothing_counts_as_sampled() -> None:
    with served(("three", "4")) as (one, _):
        agent = client(one)
        ask(agent, [USER])
        ask(agent, [USER, {"role": "assistant", "content": "five"}, {"role": "user", "content": "go on"}])
        parts = one.gateway.finish("a")
    assert len(parts) == 2 and [segment.owner for segment in parts[1].segments] == ["user", "policy"]
    assert "five" in TOKENIZER.decode(parts[1].segments[0].token_ids)


def test_streams_hold_what_the_answer_holds() -> None:
    long = "a long answer that takes several pieces"
    with served(lambda name, turn: long if name.endswith("/0") else do("a")) as (one, _):
        agent = client(one)
        chunks = list(ask(agent, [USER], stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == long
        assert chunks[-1].choices[0].finish_reason == "stop" and len(chunks) > 3
        calls = [call for chunk in ask(agent, [{"role": "user", "content": "x"}], tools=[TOOL], stream=True)
                 for call in chunk.choices[0].delta.tool_calls or ()]
        assert [(call.index, call.function.name) for call in calls] == [(0, "do")]
        logs = [chunk.choices[0].logprobs for chunk in ask(agent, [{"role": "user", "content": "y"}], stream=True, logprobs=True)]
        assert {entry.logprob for entry in logs[-1].content} == {-0.5} and not any(logs[:-1])


def test_a_plain_completion_has_its_own_settings_and_refuses_those_of_a_chat() -> None:
    with served(("ab",)) as (one, sampler):
        plain = client(one).completions.create(model="policy", prompt="once", logprobs=0, extra_body={"tools": None})
        found = plain.choices[0].logprobs
        assert plain.choices[0].text == "ab" and found.token_logprobs == [-0.5] * len(found.tokens)
        assert found.text_offset[:2] == [0, len(found.tokens[0])]
        headers, asked = {"Authorization": f"Bearer {one.token}"}, len(sampler.asked)
        for more, words in (({"tools": [TOOL]}, "belongs to a chat"), ({"tool_choice": "none"}, "belongs to a chat"),
                            ({"response_format": {"type": "text"}}, "belongs to a chat"), ({"logprobs": 1}, "must be 0"),
                            ({"logprobs": True}, "must be 0"), ({"echo": True}, "unknown key")):
            answer = httpx2.post(f"{one.base_url('a')}/completions", json={"prompt": "x", **more}, headers=headers)
            assert answer.status_code == 400 and words in answer.json()["error"]["message"], more
        assert len(sampler.asked) == asked


@pytest.mark.parametrize("tools", [
    3, ["do"], [TOOL, TOOL], [{**TOOL, "type": "custom"}], [{**TOOL, "cache": 1}],
    [{"type": "function", "function": {**TOOL["function"], "returns": {}}}],
    [{"type": "function", "function": {"name": "do", "description": 3}}],
    [{"type": "function", "function": {"name": "do", "parameters": []}}],
    [{"type": "function", "function": {"name": "do", "parameters": {"type": "object", "required": "what"}}}]])
def test_tools_of_a_request_are_read_as_those_of_a_conversation_file(tools: Any) -> None:
    row = {"messages": [USER, {"role": "assistant", "content": "4"}], "tools": tools}
    assert read_rows(json.dumps([row]).encode(), ".json", pairs=False)[1], "a file may not have them"
    with pytest.raises(Refused, match="tools cannot be read"):
        chat({"messages": [USER], "tools": tools})


def test_attempts_are_apart_and_one_that_is_over_answers_no_more() -> None:
    with served(("4",)) as (one, _):
        for name in ("a", "b"):
            ask(client(one, name), [USER])
        attempt = one.gateway.attempt("a")
        assert len(one.gateway.finish("a")) == 1 and len(one.gateway.finish("b")) == 1
        assert attempt.closed and one.gateway.finish("a") == ()


def test_many_agents_at_once_are_sampled_together() -> None:
    with served(lambda name, turn: "4") as (one, sampler), ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda n: ask(client(one, str(n)), [USER]).choices[0].message.content, range(16)))
    assert found == ["4"] * 16 and sum(sampler.batches) == 16 and max(sampler.batches) > 1


def plain(one: Serving) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{one.address}/v1", api_key=one.token, max_retries=0)


def test_calls_that_name_no_attempt_are_sampled_together_and_those_of_one_attempt_in_their_order() -> None:
    def together(agent: Callable[[Serving], openai.OpenAI]) -> int:
        with served(lambda name, turn: time.sleep(0.05) or "4") as (one, sampler), ThreadPoolExecutor(8) as pool:
            asked = [[{"role": "user", "content": f"task {n}"}] for n in range(8)]
            found = list(pool.map(lambda messages: ask(agent(one), messages).choices[0].message.content, asked))
        assert found == ["4"] * 8 and sum(sampler.batches) == 8 and len({one.key for one in sampler.asked}) == 8
        return max(sampler.batches)
    assert together(plain) > 1 and together(client) == 1


def test_the_conversation_that_was_quiet_longest_is_closed_first_and_that_is_on_file(tmp_path: Path) -> None:
    log = CallLog(tmp_path / "calls.jsonl")
    answer = {"role": "assistant", "content": "4"}

    def about(n: int) -> list[Any]:
        return [{"role": "user", "content": f"task {n}"}]

    def continued(one: Serving, n: int) -> bool:
        before = sum(thread.number == n for thread in one.gateway.attempt("default").threads)
        ask(plain(one), [*about(n), answer, {"role": "user", "content": "on"}])
        held = one.gateway.attempt("default").threads
        return before == 1 and any(thread.number == n and len(thread.sampled) == 2 for thread in held)

    with served(lambda name, turn: "4", keep=2, told=log) as (one, sampler):
        for n in range(2):
            ask(plain(one), about(n))
        assert continued(one, 0)                # 1 is now the quiet one
        ask(plain(one), about(2))
        assert [thread.number for thread in one.gateway.attempts["default"].threads] == [0, 2] and one.gateway.closed_early == 1
        assert not continued(one, 1)            # answered as a new conversation, and 2 stays because it spoke last
        assert [thread.number for thread in one.gateway.attempts["default"].threads] == [2, 3]
        for n in range(3):                      # an attempt of which nothing is held is none
            ask(client(one, f"named{n}"), about(n))
        assert sorted(one.gateway.attempts) == ["named1", "named2"]
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    closed = [(line["attempt"], line["thread"]) for line in lines if "closed" in line]
    assert closed == [("default", 1), ("default", 0), ("default", 2), ("default", 3), ("named0", 0)]
    assert len({one.key for one in sampler.asked}) == len(sampler.asked)       # no key of uniforms is taken twice


@pytest.mark.parametrize(("body", "words"), [
    ({"messages": []}, "at least one"), ({"messages": [{"role": "robot", "content": ""}]}, "role"), ({}, "messages"),
    ([], "object"),
    ({"messages": [USER], "temprature": 1}, "temperature"), ({"messages": [USER], "n": 2}, "n must be 1"),
    ({"messages": [USER], "tools": [{"type": "function", "function": {"name": "a b"}}]}, "name"),
    ({"messages": [USER], "tool_choice": "required"}, "tool_choice"), ({"messages": [USER], "max_tokens": 0}, "max_tokens"),
    ({"messages": [USER], "frequency_penalty": 1}, "frequency_penalty"), ({"messages": [USER], "temperature": "hot"}, "number"),
    ({"messages": [USER], "response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "do", "arguments": "{"}}]}]}, "no call"),
    ({"messages": [{"role": "assistant", "function_call": {"name": "do", "arguments": "{}"}}]}, "unknown key function_call"),
    ({"messages": [{**USER, "tool_call_id": "c"}]}, "tool_call_id"), ({"messages": [{**USER, "tool_calls": [{}]}]}, "tool_calls"),
    ({"messages": [{"role": "user", "content": "x" * 20_000}]}, "context")])
def test_a_request_that_cannot_be_meant_is_refused_in_openais_shape(body: Any, words: str) -> None:
    with served(("4",)) as (one, sampler):
        answer = httpx2.post(f"{one.base_url('a')}/chat/completions", json=body, headers={"Authorization": f"Bearer {one.token}"})
    assert answer.status_code == 400 and words in answer.json()["error"]["message"] and not sampler.asked


def test_nothing_is_answered_without_the_token_or_to_what_is_no_json() -> None:
    with served(("4",)) as (one, sampler):
        address = f"{one.base_url('a')}/chat/completions"
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer x"}):
            assert httpx2.post(address, json={"messages": [USER]}, headers=headers).status_code == 401
        for data in (b"\xff", b"{", b"[" * 100_000):
            answer = httpx2.post(address, content=data, headers={"Authorization": f"Bearer {one.token}"})
            assert answer.status_code == 400
        assert not sampler.asked


def test_the_server_listens_on_this_machine_only() -> None:
    with served(("4",)) as (one, _):
        assert one.address.startswith("http://127.0.0.1:")
        with pytest.raises(ModelError, match="port"):
            listen(int(one.address.rpartition(":")[2]))


def test_fixed_sampling_holds_whatever_a_request_says() -> None:
    for fixed, wanted in ((True, 1.0), (False, 0.25)):
        with served(("4",), fixed=fixed) as (one, sampler):
            ask(client(one), [USER], temperature=0.25)
        assert sampler.asked[0].temperature == wanted


def test_every_call_is_on_file_before_it_is_answered(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    file.write_text('{"torn": ')
    log = CallLog(file)
    with served(("4",), told=log) as (one, sampler):
        ask(client(one), [USER])
        line = json.loads(file.read_text())
    log.close()
    assert line["token_ids"] == [*TOKENIZER.encode("4"), STOP] and line["prompt_ids"] == list(sampler.asked[0].prompt_ids)
    assert line["logps"] == [-0.5, -0.5] and line["versions"] == [0, 0]


def agent(assignment: Assignment) -> FinalState:
    """An agent that knows nothing of Rollbook: the OpenAI SDK, one tool call, one answer."""
    sdk = openai.OpenAI(base_url=assignment.base_url, api_key=assignment.api_key, max_retries=0)
    messages: list[Any] = [{"role": "user", "content": assignment.task.prompt[0].content}]
    message = ask(sdk, messages, tools=[TOOL]).choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "did"} for call in message.tool_calls or ()]
    if message.tool_calls:
        message = ask(sdk, messages, tools=[TOOL]).choices[0].message
    if message.content == "crash":
        raise RuntimeError("the agent fell over")
    return FinalState(facts={"answer": message.content})


def test_the_attempts_of_an_outside_agent_are_traces_like_any_other() -> None:
    from scripted import task

    def script(name: str, turn: int) -> str:
        return do("a") if not turn else "4"

    def harness(script: Callable[[str, int], str]) -> HarnessRollouts:
        return HarnessRollouts(sampler=ScriptedSampler(script), tokenizer=TOKENIZER, sampling=SAMPLING, seed=1, max_tokens=200,
                               agent=agent, name="sdk/1", context=5000, rules=EpisodeRules(dialect="hermes", announces=False))

    made = harness(script)
    tasks: list[Task] = [task("0"), task("1")]
    traces = made.solve(tasks, 2, scope="s", envelope=made.envelope("w"))
    assert [trace.attempt.rpartition("/")[2] for trace in traces] == ["0", "1", "0", "1"]
    for trace in traces:
        assert [segment.owner for segment in trace.segments] == ["user", "policy", "template", "tool", "template", "policy"]
        assert trace.episode is not None and trace.episode.state is not None and trace.episode.state.facts["answer"] == "4"
    crashing = harness(lambda name, turn: "crash")
    trace = crashing.solve([task("0")], 1, scope="s", envelope=crashing.envelope("w"))[0]
    assert trace.stop_reason == "environment_failed" and trace.episode is not None and "fell over" in str(trace.episode.fault)
