"""Agents that break things: cut off in the middle of a call, asking on, naming other attempts, posting what no record holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from scripted import SAMPLING, TOKENIZER, ScriptedSampler, Told, task
from test_outside_agents import OPENER, command, posted, said, services, worked

from rollbook.records import Completion, EnvironmentSpec, EpisodeBudget, ModelError, RecordError, Services, Trace, encode
from rollbook.records.codec import canonical
from rollbook.records.recipe import AgentSettings
from rollbook.rollouts.meeting import PlainSampler, PlainTurns
from rollbook.rollouts.rules import EpisodeRules
from rollbook.serve.asking import Refused, chat, completion
from rollbook.serve.commands import Command
from rollbook.serve.gateway import Gateway
from rollbook.serve.harness import AgentRollouts, Assignment, OutOfTime

assert services


class Slow(PlainSampler):
    """An engine that takes its time, and that refuses to go on with what was closed under its hands."""

    def __init__(self, seconds: float):
        super().__init__(ScriptedSampler(lambda name, turn: f"word {turn}"))
        self.seconds, self.over, self.sampling = seconds, set(), threading.Event()

    def open(self, request: Any) -> PlainTurns:
        turns = super().open(request)
        turns.close = lambda: self.over.add(id(turns))      # type: ignore[method-assign]
        return turns

    def sample_turns(self, several: Any) -> list[Completion]:
        self.sampling.set()
        time.sleep(self.seconds)
        if any(id(turns) in self.over for turns in several):
            raise ModelError("the turns are over")
        return super().sample_turns(several)


def solved(sampler: Any, work: Callable[[Assignment], str | None], services: Services, count: int) -> list[Trace]:
    spec = EnvironmentSpec(name="told", definition="scripted:Told", budget=EpisodeBudget(max_tokens=500, max_turns=9))
    made = AgentRollouts(sampler=sampler, tokenizer=TOKENIZER, sampling=SAMPLING, seed=1, max_tokens=500, name="mine/1",
                         rules=EpisodeRules(dialect="hermes"), context=4000, spec=spec, definition=Told(), services=services,
                         work=work)
    return made.solve([task()], count, scope="s", envelope=made.envelope("w"))


def test_an_agent_that_is_cut_off_in_the_middle_of_a_call_harms_no_other_attempt_and_leaves_a_whole_trace(
        services: Services) -> None:
    engine, first = Slow(0.15), threading.Lock()

    def work(given: Assignment) -> str:
        if first.acquire(blocking=False):
            for number in range(3):
                threading.Thread(target=quietly, args=(given, f"call {number}"), daemon=True).start()
            engine.sampling.wait(5)
            raise OutOfTime
        engine.sampling.wait(5)
        return said(given, "hello")
    traces = solved(engine, work, services, 2)
    cut, other = sorted(traces, key=lambda trace: trace.stop_reason != "time_limit")
    assert cut.stop_reason == "time_limit" and other.episode is not None and other.episode.fault is None
    assert other.text == TOKENIZER.decode(other.segments[-1].token_ids) and len(other.sampled) == 1
    assert all(len(tuple(one.turns)) == len(one.sampled) for one in cut.contexts()) and cut.sampled_count


def quietly(given: Assignment, text: str) -> None:
    try:
        said(given, text)
    except (OSError, urllib.error.HTTPError):
        pass


def refused(given: Assignment, address: str, body: bytes) -> tuple[int, str]:
    request = urllib.request.Request(address, data=body, headers={"Authorization": f"Bearer {given.api_key}"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        OPENER.open(request, timeout=20)
    return caught.value.code, caught.value.read().decode()


def hello(text: str = "again") -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


def test_an_agent_that_asks_on_after_its_budget_is_spent_costs_nothing(services: Services,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    real = Gateway.taken
    monkeypatch.setattr(Gateway, "taken", lambda self, name: held.append(len(self.attempts[name].threads)) or real(self, name))

    def work(given: Assignment) -> str:
        said(given, "one")
        assert {refused(given, f"{given.base_url}/chat/completions", hello(str(n)))[0] for n in range(5)} == {400}
        return "4"
    trace, = worked(work, services, max_turns=1)
    assert trace.stop_reason == "turn_limit" and held == [1]


def test_no_attempt_but_those_of_the_call_is_answered(services: Services) -> None:
    def work(given: Assignment) -> str:
        own = given.base_url.split("/")[-2]
        for address in (given.base_url.replace(own, "mine-too"), given.base_url.replace(f"/attempts/{own}", "")):
            status, text = refused(given, f"{address}/chat/completions", hello())
            assert status == 404 and "no such attempt" in text
        return said(given, "x")
    assert worked(work, services)[0].sampled_count == 7


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", '"\\ud800"', "[" * 5000 + "]" * 5000])
def test_what_no_record_could_hold_is_refused_before_it_reaches_one(services: Services, value: str) -> None:
    def work(given: Assignment) -> str:
        said(given, "x")
        asked = f'{{"messages": [{{"role": "user", "content": {value}}}]}}'
        for address, body in ((f"{given.tools}/do", f'{{"what": {value}}}'), (f"{given.base_url}/chat/completions", asked)):
            assert refused(given, address, body.encode())[0] == 400
        return "4"
    trace, = worked(work, services)
    assert trace.episode is not None and trace.episode.fault is None and canonical(encode(trace))


def test_the_context_that_an_attempt_ends_in_is_the_one_it_spoke_in_last(services: Services) -> None:
    def work(given: Assignment) -> str:
        messages = [{"role": "user", "content": "main"}]
        for number in range(2):
            found = posted(given, f"{given.base_url}/chat/completions", {"messages": messages})
            messages += [found["choices"][0]["message"], {"role": "user", "content": f"go on {number}"}]
            said(given, "beside") if not number else None
        return "4"
    trace, = worked(work, services)
    assert len(tuple(trace.turns)) == 2 and len(trace.parts) == 1 and trace.text == "word 1" + TOKENIZER.decode(
        trace.segments[-1].token_ids[-1:])


def test_an_attempt_whose_agent_went_on_in_a_smaller_conversation_did_not_end_with_its_context(services: Services) -> None:
    def work(given: Assignment) -> str:
        assert refused(given, f"{given.base_url}/chat/completions", hello("x" * 5000))[0] == 400
        return said(given, "short")
    assert worked(work, services)[0].stop_reason == "end_of_turn"


def test_an_attempt_in_which_the_policy_was_never_asked_has_no_verdict(services: Services) -> None:
    trace, = worked(lambda given: "4", services)
    assert trace.episode is not None and "without asking" in str(trace.episode.fault)
    assert trace.stop_reason == "environment_failed"
    with pytest.raises(ModelError, match="without asking"):
        worked(lambda given: "4", services, count=2)


def test_a_conversation_does_not_go_on_from_a_plain_completion(services: Services) -> None:
    def work(given: Assignment) -> str:
        posted(given, f"{given.base_url}/completions", {"prompt": "once upon"})
        return said(given, "hello")
    trace, = worked(work, services)
    assert len(trace.parts) == 1 and len(tuple(trace.turns)) == 1


def test_an_agent_that_floods_its_output_is_ended_and_says_so(services: Services) -> None:
    began = time.monotonic()
    code = "import sys\nwhile True: sys.stdout.write('x' * 2**20)"
    trace, = worked(command(code), services, max_seconds=60.0)
    assert trace.episode is not None and "output" in str(trace.episode.fault) and time.monotonic() - began < 30


def test_what_an_agent_started_ends_with_the_process_that_ran_it_even_when_that_is_killed(tmp_path: Path) -> None:
    code = ("import os, sys; from pathlib import Path; from rollbook.serve.ending import started\n"
            f"folder = Path({str(tmp_path)!r})\n"
            "with started(['sh', '-c', 'sleep 300 & sleep 300'], os.environ, str(folder), (folder / 'o', folder / 'e')) as one:\n"
            "    print(one.pid, flush=True); sys.stdin.read()")
    runs = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert runs.stdout is not None
    agent = int(runs.stdout.readline())
    os.killpg(agent, 0)
    runs.kill()
    runs.communicate()
    for _ in range(100):
        if not any(one.info["pid"] and os.getpgid(one.info["pid"]) == agent and one.status() != "zombie"
                   for one in psutil.process_iter(["pid"]) if alive(one)):
            return
        time.sleep(0.05)
    pytest.fail("it runs on")


def alive(process: psutil.Process) -> bool:
    try:
        os.getpgid(process.pid)
    except ProcessLookupError:
        return False
    return True


def test_a_task_too_long_for_a_command_line_can_be_read_from_a_file() -> None:
    given = Assignment(base_url="", api_key="", model="", task=task("x" * 300_000))
    with pytest.raises(RecordError, match="task_file"):
        command("pass")(given)
    read = Command(settings=AgentSettings(name="c", command=("sh", "-c", "wc -c < {task_file}"), answer="stdout"))
    assert int(read(given) or 0) >= 300_000


WRONG = ({"tools": 5}, {"tools": {"a": 1}}, {"stop": 5}, {"stop": {"a": "b"}}, {"response_format": "text"},
         {"response_format": 7},
         {"messages": [{"role": "assistant", "tool_calls": 5}]}, {"messages": [{"role": "assistant", "tool_calls": {"a": 1}}]},
         {"messages": [{"role": "tool", "tool_call_id": 5, "content": "x"}]}, {"messages": [{"role": ["user"], "content": "x"}]},
         {"messages": ["x"]}, {"tool_choice": {"a": [1]}}, {"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0},
         {"top_p": 3.0}, {"seed": 2**80}, {"seed": -1}, {"stream": "no"}, {"n": [1]}, {"model": {"a": 1}},
         {"tools": [{"type": "function", "function": {"name": "a", "parameters": [1]}}]},
         {"tools": [{"type": "function", "function": {"name": "a", "description": 5}}]},
         {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "object", "properties": 5}}}]},
         {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 5, "arguments": "{}"}}]}]},
         {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": 5}}]}]},
         {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]})


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_malformed_request_is_refused_and_never_an_error_of_the_server(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused) as caught:
        chat({"messages": [{"role": "user", "content": "x"}], **wrong})
    assert caught.value.status == 400
    if not {"messages", "tools", "tool_choice"} & set(wrong):
        with pytest.raises(Refused):
            completion({"prompt": "x", **wrong})
