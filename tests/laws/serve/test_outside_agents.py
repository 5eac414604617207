"""An outside agent in an environment: its calls are checked and recorded, its budgets hold, and what it breaks is no zero."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted import OPEN, SAMPLING, TOKENIZER, ScriptedSampler, Told, task

from rollbook.environments import open_services
from rollbook.environments.replaying import replay
from rollbook.records import EnvironmentSpec, EpisodeBudget, ModelError, RecordError, Services, Trace
from rollbook.records.recipe import AgentSettings
from rollbook.rollouts.rules import EpisodeRules
from rollbook.serve.commands import Command
from rollbook.serve.harness import AgentRollouts, Assignment

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture
def services() -> Iterator[Services]:
    with open_services() as found:
        yield found


def posted(assignment: Assignment, address: str, document: Any) -> Any:
    request = urllib.request.Request(address, data=json.dumps(document).encode(),
                                     headers={"Authorization": f"Bearer {assignment.api_key}"})
    with OPENER.open(request, timeout=20) as answer:
        return json.load(answer)


def said(assignment: Assignment, text: str) -> str:
    messages = [{"role": "user", "content": text}]
    found = posted(assignment, f"{assignment.base_url}/chat/completions", {"model": "m", "messages": messages})
    return str(found["choices"][0]["message"]["content"])


def worked(work: Callable[[Assignment], str | None], services: Services, *, definition: Told | None = None, count: int = 1,
           **budget: Any) -> list[Trace]:
    limits = {"max_tokens": 500, "max_turns": 9, **budget}
    spec = EnvironmentSpec(name="told", definition="scripted:Told", budget=EpisodeBudget(**limits))
    if isinstance(work, Command):
        ran = work

        def work(given: Assignment) -> str | None:
            said(given, "first")
            return ran(given)
    made = AgentRollouts(sampler=ScriptedSampler(lambda name, turn: f"word {turn}"), tokenizer=TOKENIZER, sampling=SAMPLING,
                         seed=1, max_tokens=500, name="mine/1", rules=EpisodeRules(dialect="hermes"), context=4000, spec=spec,
                         definition=definition or Told(), services=services, work=work)
    return made.solve([task()], count, scope="s", envelope=made.envelope("w"))


def test_what_an_agent_does_is_recorded_so_that_it_can_be_played_again(services: Services) -> None:
    def work(given: Assignment) -> str:
        first = said(given, f"{given.task.prompt[-1].content} now")
        told = posted(given, f"{given.tools}/do", {"what": "a"})
        assert told == {"content": "did a", "error": None, "ended": None} and first == "word 0"
        assert posted(given, f"{given.tools}/fly", {})["error"] == "unknown_tool"
        assert posted(given, f"{given.tools}/do", {"what": 1})["error"] == "bad_arguments"
        said(given, "another conversation")
        return "4"
    trace, = worked(work, services)
    assert trace.episode is not None and trace.episode.agent == "mine/1" and trace.episode.state is not None
    assert trace.episode.state.facts["answer"] == "4" and trace.episode.misfits == 2
    assert [len(one.sampled) for one in trace.contexts()] == [1, 1] and trace.learnt_count == sum(
        len(TOKENIZER.encode(text)) + 1 for text in ("word 0", "word 0"))
    assert asyncio.run(replay(Told(), task(), trace.episode, services=services)) is None
    assert not OPEN


def test_the_budgets_of_an_attempt_hold_over_all_its_conversations_and_the_state_is_graded(services: Services) -> None:
    def work(given: Assignment) -> str:
        for number in range(9):
            said(given, f"conversation {number}")
        raise AssertionError
    tokens, calls = (worked(work, services, **limit)[0] for limit in ({"max_tokens": 20}, {"max_turns": 2}))
    assert (tokens.stop_reason, calls.stop_reason) == ("length", "turn_limit")
    assert tokens.spent == 20 and len(calls.contexts()) == 2
    assert all(trace.episode is not None and trace.episode.state is not None for trace in (tokens, calls))


def test_no_call_is_answered_once_the_episode_is_over_or_its_calls_are_spent(services: Services) -> None:
    def work(given: Assignment) -> str:
        said(given, "x")
        assert posted(given, f"{given.tools}/do", {"what": "win"})["ended"] == "terminal"
        assert posted(given, f"{given.tools}/do", {"what": "a"})["error"] == "refused"
        return "5"
    trace, = worked(work, services)
    assert trace.stop_reason == "terminal" and trace.episode is not None and trace.episode.calls == 1

    def eager(given: Assignment) -> str:
        said(given, "x")
        assert [posted(given, f"{given.tools}/do", {"what": "a"})["error"] for _ in range(3)] == [None, None, "call_limit"]
        return "5"
    assert worked(eager, services, max_calls=2)[0].stop_reason == "call_limit"


@pytest.mark.parametrize("fault", ["build", "reset", "state"])
def test_an_environment_or_an_agent_that_fails_leaves_an_attempt_without_a_state(services: Services, fault: str) -> None:
    trace, = worked(lambda given: "4", services, definition=Told(fault=fault))
    assert trace.stop_reason == "environment_failed" and trace.episode is not None and trace.episode.state is None
    broken, = worked(lambda given: str(1 // 0), services)
    assert broken.episode is not None and "ZeroDivisionError" in str(broken.episode.fault) and not OPEN


def test_a_call_in_which_no_agent_works_is_refused(services: Services) -> None:
    with pytest.raises(ModelError, match="ZeroDivisionError"):
        worked(lambda given: str(1 // 0), services, count=2)


def test_tools_need_the_token_and_an_environment(services: Services) -> None:
    def work(given: Assignment) -> str:
        for address, key, status in ((f"{given.tools}/do", "wrong", 401), (f"{given.tools.replace('attempts/', 'attempts/x')}/do",
                                                                         given.api_key, 404)):
            request = urllib.request.Request(address, data=b"{}", headers={"Authorization": f"Bearer {key}"})
            with pytest.raises(urllib.error.HTTPError) as caught:
                OPENER.open(request, timeout=20)
            assert caught.value.code == status
        return said(given, "x")
    assert worked(work, services)[0].stop_reason == "end_of_turn"


def command(code: str, **more: Any) -> Command:
    return Command(settings=AgentSettings(name="c/1", command=(sys.executable, "-c", code, "{task}"),
                                          **{"answer": "stdout", **more}))


def test_a_command_is_told_its_task_and_nothing_of_this_process(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "x")
    code = "import os, sys; print(sys.argv[1], 'SECRET_KEY' in os.environ, os.getcwd() == os.environ['HOME'], os.environ['MINE'])"
    trace, = worked(command(code, variables={"MINE": "{model}"}), services)
    assert trace.episode is not None and trace.episode.state is not None
    assert trace.episode.state.facts["answer"] == f"{task().prompt[-1].content} False True policy"


def test_a_command_beyond_its_time_is_ended_with_what_it_started_and_the_state_is_graded(services: Services) -> None:
    began = time.monotonic()
    code = "import subprocess, sys, time; subprocess.Popen(['sleep', '300']); time.sleep(300)"
    trace, = worked(command(code), services, max_seconds=0.5)
    assert trace.stop_reason == "time_limit" and trace.episode is not None and trace.episode.state is not None
    assert time.monotonic() - began < 30


def test_a_command_that_fails_or_cannot_be_started_says_so(services: Services) -> None:
    trace, = worked(command("import sys; print('out of luck', file=sys.stderr); sys.exit(3)"), services)
    assert trace.episode is not None and "out of luck" in str(trace.episode.fault) and "status 3" in str(trace.episode.fault)
    nowhere = Command(settings=AgentSettings(name="n", command=("/nowhere/agent",), answer="none"))
    with pytest.raises(RecordError, match="cannot be started"):
        nowhere(Assignment(base_url="", api_key="", model="", task=task()))


def test_braces_in_a_task_are_text_and_reveal_nothing() -> None:
    filled = command("import sys; print(sys.argv[1])")(Assignment(base_url="", api_key="key", model="", task=task("{api_key}")))
    assert filled.endswith("{api_key}")
