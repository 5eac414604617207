"""Episodes of an endpoint: it calls tools in chat completions' own form, the environment is played here, nothing is made up."""

import asyncio
import dataclasses

import pytest
from asked_episodes import GRADED, MANIFEST, WORLD, Quiet, called, episodes, served, solver
from chat_endpoint import answer, serving
from eval_samples import bundle
from scripted import SAMPLING as SCRIPTED
from scripted import TOKENIZER, ScriptedSampler

from rollbook.environments import load_definition, open_services
from rollbook.environments.replaying import replay
from rollbook.evaluation.protocols import ProtocolRefused
from rollbook.ledger import Ledger
from rollbook.orchestration import evaluating
from rollbook.orchestration.answering import Remote
from rollbook.orchestration.evaluating import evaluate_into
from rollbook.orchestration.surroundings import spec_of, surroundings
from rollbook.records import ModelError, NotExposed, Scored
from rollbook.records.recipe import SamplingSettings
from rollbook.rollouts import endpoint as module
from rollbook.rollouts.dialects import dialect
from rollbook.rollouts.endpoint import Endpoint, EndpointRollouts
from rollbook.rollouts.endpoint_episodes import EndpointEpisodes, Place
from rollbook.rollouts.meeting import turn_sampler
from rollbook.rollouts.rendering import Renderer
from rollbook.serve.gateway import Allowed, Gateway
from rollbook.serve.running import serving as running

SAMPLING = SamplingSettings(temperature=0.7, top_p=1.0, top_k=0, min_p=0.0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(module, "AGAIN_S", (0.0, 0.0))
    monkeypatch.setattr(evaluating, "environment_manifest", MANIFEST)


def played(reply, *, count=2, per_task=1, context=4096, max_tokens=64, workers=2, url=None, key=None, **world):
    settings = dataclasses.replace(WORLD, **world)
    with serving(reply) as (here, calls), surroundings(settings, max_tokens) as around:
        tasks = around.definition.tasks(count=count, seed=1).tasks
        where = Endpoint(url=url or here, model="m", key_variable=key, workers=workers, seconds=20.0)
        asks = EndpointEpisodes(EndpointRollouts(where, SAMPLING, seed=11, max_tokens=max_tokens),
                                Place(spec=around.spec, definition=around.definition, services=around.services,
                                      rules=around.rules, context=context))
        return asks.solve(tasks, per_task, scope="eval/p/000000", envelope=asks.envelope(None)), calls, tasks


def test_a_call_is_played_here_and_its_reply_goes_back_under_the_calls_own_name():
    traces, calls, tasks = played(solver, count=1)
    (trace,), (first, second) = traces, [body for body, _ in calls]
    assert first["tools"][0]["function"]["name"] == "calc" and first["max_tokens"] == 64 and second["max_tokens"] == 56
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool"]
    assert second["messages"][1]["tool_calls"][0]["id"] == second["messages"][2]["tool_call_id"] == "abc0"
    assert second["messages"][2]["content"] == tasks[0].reference and first["seed"] != second["seed"]
    assert trace.stop_reason == "end_of_turn" and trace.text == f"It is {tasks[0].reference}."
    assert trace.episode.state.facts == {"answer": tasks[0].reference, "calls": 1}
    assert [turn.part for turn in trace.episode.turns] == [1, 0]


def test_every_turn_is_a_context_of_its_own_with_the_counts_of_the_endpoint_and_nothing_that_was_not_shown():
    (trace,), _, _ = played(solver, count=1)
    contexts = [trace.parts[0].segments, trace.segments]
    assert [[(one.owner, one.token_ids, one.hidden) for one in segments] for segments in contexts] == [
        [("user", (), 20), ("policy", (), 8)], [("user", (), 30), ("policy", (), 5)]]
    assert all(isinstance(segments[1].logps, NotExposed) and segments[1].version is None for segments in contexts)


def test_attempts_at_a_task_meet_the_same_environment_and_other_random_numbers():
    traces, calls, _ = played(solver, count=2, per_task=2)
    assert len({trace.episode.seed for trace in traces}) == 2 and len({body["seed"] for body, _ in calls}) == 8


WRONG = {"not json": "malformed_call", "{}": "bad_arguments", "[1]": "malformed_call",
         '{"expression": "1+1"} x': "malformed_call"}


@pytest.mark.parametrize(("given", "error"), WRONG.items())
def test_a_call_that_cannot_be_made_is_answered_and_counted_and_the_episode_goes_on(given, error):
    (trace,), calls, _ = played(lambda body, n: called(given) if n == 1 else answer("7"), count=1)
    first, last = trace.episode.turns[0], calls[1][0]["messages"]
    assert [one.error for one in first.misfits] == [error] == [one.error for one in first.observation.replies]
    assert not first.acted and trace.episode.state.facts["answer"] == "7"
    if error == "malformed_call":       # a server could not read its arguments again: it goes back as text
        assert given in last[-2]["content"] and "tool_calls" not in last[-2] and last[-1]["role"] == "user"
    else:
        assert last[-1]["role"] == "tool" and last[-1]["tool_call_id"] == "abc0"


def test_a_tool_that_is_not_there_is_answered_and_calls_without_names_get_names_of_their_own():
    (trace,), calls, _ = played(lambda body, n: called("{}", "{}", name="rm") if n == 1 else answer("7"), count=1)
    assert trace.episode.errors == {"unknown_tool": 2}

    def nameless(body, n):
        status, document = called('{"expression": "1+1"}', '{"expression": "2+2"}')
        for one in document["choices"][0]["message"]["tool_calls"]:
            del one["id"]
        return (status, document) if n == 1 else answer("7")
    _, calls, _ = played(nameless, count=1)
    assert [one.get("tool_call_id") for one in calls[1][0]["messages"][-2:]] == ["call_0_0", "call_0_1"]


def test_what_a_budget_ends_is_said_to_be_ended_by_it():
    stops = {name: played(solver if reply is None else reply, count=1, **more)[0][0].stop_reason for name, (reply, more) in {
        "turns": (None, {"max_turns": 1}), "calls": (None, {"max_calls": 0.5}), "tokens": (None, {"max_tokens": 8}),
        "context": (None, {"context": 28}), "beyond": (None, {"context": 27}),
        "cut": (lambda body, n: answer("7", finish="length", sampled=64), {})}.items()}
    assert stops == {"turns": "turn_limit", "calls": "call_limit", "tokens": "length", "context": "context_full",
                     "beyond": "context_full", "cut": "length"}


def test_a_turn_that_stays_unanswered_fails_the_attempt_and_keeps_what_happened_before():
    def reply(body, number):
        return solver(body, number) if number != 2 else (400, {"error": "no"})
    traces, _, _ = played(reply, count=2, workers=1)
    failed, whole = traces
    assert (failed.stop_reason, len(failed.episode.turns), failed.observed["fault/refused"]) == ("failed", 1, 1.0)
    assert whole.stop_reason == "end_of_turn"


@pytest.mark.parametrize("wrong", [lambda body, n: (400, {}), lambda body, n: called("{}", sampled=9999),
                                   lambda body, n: answer(None, tool_calls=[{"id": "a"}]),
                                   lambda body, n: answer(None, tool_calls="x"),
                                   lambda body, n: answer(None, finish=["stop"]),
                                   lambda body, n: answer(None, tool_calls=[{"function": {"name": "calc", "arguments": {}}}])])
def test_an_endpoint_that_answers_nothing_readable_ends_the_evaluation(wrong):
    with pytest.raises(ModelError, match="not one of 2 attempts was answered"):
        played(wrong)


def test_reasoning_of_earlier_turns_goes_back_only_where_it_is_kept():
    def reply(body, number):
        status, document = called('{"expression": "1+1"}')
        document["choices"][0]["message"]["content"] = "<think>hm</think>Let me see."
        return (status, document) if number == 1 else answer("7")
    shown = {rule: played(reply, count=1, reasoning=rule)[1][1][0]["messages"][1]["content"] for rule in ("keep", "strip")}
    assert shown == {"keep": "<think>hm</think>Let me see.", "strip": "Let me see."}


def test_an_evaluation_of_episodes_is_on_record_counted_whole_and_can_be_played_again(tmp_path):
    made = episodes(3)

    def reply(body, number):
        return answer("no idea", read=9, sampled=2) if made.tasks[0].prompt[0].content in str(body) else solver(body, number)
    with serving(reply) as (url, calls):
        result = evaluate_into(tmp_path / "e", made, served(url), Quiet(), dtype="float32")
        asked = len(calls)
        again = evaluate_into(tmp_path / "e", made, served(url), Quiet(), dtype="float32")
        assert len(calls) == asked == 2 + 4 * 2 and again == result
    assert abs(result.value.estimate - 2 / 3) < 1e-9 and result.unscored_attempts == 0
    assert (result.spend.tokens, result.spend.prompt_tokens) == (2 * 2 + 4 * 13, 2 * 9 + 4 * 50)
    held = Ledger.open(tmp_path / "e", write=False)
    assert held.manifest["tool_calls"] == "not shown" and held.verify().fault is None
    by_id = {task.id: task for task in made.tasks}
    with open_services() as services:
        definition = load_definition(spec_of(WORLD, 64))
        for trace, verdict, _ in held.read_traces():
            assert isinstance(verdict, Scored)
            assert asyncio.run(replay(definition, by_id[trace.task], trace.episode, services=services)) is None


@pytest.mark.parametrize(("changes", "words"), [({"compaction": "discard", "compact_at": 100}, "world.compaction=discard"),
                                                ({"subagents": 2}, "world.subagents=2"), ({"announce": False}, "announce=false")])
def test_a_harness_that_an_endpoint_cannot_be_held_to_is_refused_with_what_would_do(changes, words):
    world = dataclasses.replace(WORLD, **changes)
    where = Endpoint(url="http://127.0.0.1:9/v1", model="m", key_variable=None, workers=1, seconds=1.0)
    with pytest.raises(ProtocolRefused, match="cannot be asked for the episodes") as caught:
        Remote(where, bundle(world=world, context=4096, reward=GRADED))
    assert words in str(caught.value) and "rollbook protocol vary" in str(caught.value)


def test_our_own_server_goes_on_from_the_very_tokens_of_every_turn_of_an_episode(monkeypatch):
    call = '<tool_call>\n{"name": "calc", "arguments": {"expression": "40+2"}}\n</tool_call>'
    sampler = ScriptedSampler(lambda name, turn: "Let me see. " + call if turn == 0 else "=")
    gateway = Gateway(turn_sampler(sampler), Renderer(TOKENIZER, dialect("hermes"), announces=True), SCRIPTED,
                      Allowed(context=5000, max_tokens=200, keep=64))
    with running(gateway) as one:
        monkeypatch.setenv("SERVED_KEY", one.token)
        traces, _, _ = played(None, count=2, per_task=2, url=f"{one.address}/v1", key="SERVED_KEY", max_tokens=400,
                              parameters={"terms": 2, "tool": "calc", "shortcut": True})
        threads = gateway.attempts["default"].threads
        assert len(threads) == 4 and all(len(thread.sampled) == 2 for thread in threads)
    assert {(trace.stop_reason, trace.episode.state.facts["answer"], trace.episode.calls) for trace in traces} == {
        ("end_of_turn", "42", 1)}
    assert all(trace.episode.turns[0].action.text == "Let me see." for trace in traces)
