"""What others already have: data sets and rewards of TRL and verl, reasoning-gym, Gymnasium, MCP servers."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollbook.environments import load_definition, open_services
from rollbook.environments.naming import known_definitions, spec_named
from rollbook.environments.reasoning import datasets
from rollbook.environments.replaying import play
from rollbook.orchestration.environment_check import check
from rollbook.records import Action, EnvironmentFault, Grade, ToolCall, Ungraded

SERVER = str(Path(__file__).parents[1] / "fakes" / "mcp_calculator.py")


def grade(name: str, said: str | None, place: int = 0, **parameters: Any) -> Grade | Ungraded:
    definition = load_definition(spec_named(name, parameters))
    task = definition.tasks(count=place + 1, seed=0).tasks[place]
    with open_services() as services:
        actions = () if said is None else (Action(text=said),)
        played = asyncio.run(play(definition, task, actions, services=services, seed=0))
        return definition.verify(task, played.state, services=services)


def accuracy(*args: Any, **parameters: Any) -> float:
    found = grade(*args, **parameters)
    assert isinstance(found, Grade), found
    return found.accuracy


def failures(environment: str, /, **parameters: Any) -> list[str]:
    found = check(spec_named(environment, parameters), deep=False, count=2)
    return [f"{one.name}: {one.detail}" for one in found if one.result == "fail"]


@pytest.fixture
def trl(tmp_path: Path) -> str:
    rows = [{"prompt": "2+2", "answer": "4"}, {"prompt": [{"role": "user", "content": "3+3"}], "answer": "6"},
            {"prompt": "2+2", "answer": "4"}, {"prompt": "no answer", "answer": "?"}]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


@pytest.fixture
def verl(tmp_path: Path) -> str:
    rows = [{"data_source": "sums", "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": f"{n}+1"}],
             "ability": "math", "reward_model": {"style": "rule", "ground_truth": str(n + 1)},
             "extra_info": {"index": n, "crash": n == 2}} for n in range(3)]
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    return str(file)


def test_rows_of_trl_are_tasks_and_equal_prompts_are_one(trl: str) -> None:
    tasks = load_definition(spec_named("datasets", {"path": trl, "shape": "trl"})).tasks(count=9, seed=0).tasks
    assert [task.prompt[-1].content for task in tasks] == ["2+2", "3+3", "no answer"] and tasks[1].reference == "6"
    assert accuracy("datasets", "It is so.\n<answer>4</answer>", path=trl, shape="trl") == 1.0
    assert accuracy("datasets", "5", path=trl, shape="trl") == accuracy("datasets", None, path=trl, shape="trl") == 0.0
    assert failures("datasets", path=trl, shape="trl") == []


def test_reward_functions_of_trl_are_called_as_trl_calls_them(trl: str) -> None:
    own = {"path": trl, "shape": "trl", "reward": "rewards_of_others:trl_length"}
    assert [accuracy("datasets", "so 4", **own), accuracy("datasets", "so 6", 1, **own)] == [1.0, 1.0]
    assert accuracy("datasets", "5", **own) == 0.0
    none = grade("datasets", "x", 2, **own)
    wild = grade("datasets", "x", **{**own, "reward": "rewards_of_others:trl_wild"})
    assert isinstance(none, Ungraded) and none.code == "unavailable" and isinstance(wild, Ungraded) and wild.code == "malformed"
    assert accuracy("datasets", "x", **{**own, "reward": "rewards_of_others:trl_wild", "full": 15.0}) == 0.5


def test_rows_and_scores_of_verl_are_read_as_verl_reads_them(verl: str) -> None:
    own = {"path": verl, "shape": "verl", "reward": "rewards_of_others:compute_score"}
    assert [accuracy("datasets", "1", **own), accuracy("datasets", "2", **own)] == [1.0, 0.0]
    crashed = grade("datasets", "3", 2, **own)
    assert isinstance(crashed, Ungraded) and crashed.code == "crash"


@pytest.mark.parametrize(("text", "words"), [("[]", "no list"), ("{", "cannot be read"), ('[{"prompt": 3}]', "row 0"),
                                             ('[{"prompt": [{"role": "robot", "content": ""}]}]', "row 0")])
def test_a_file_that_holds_no_rows_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "rows.json"
    file.write_text(text)
    with pytest.raises(EnvironmentFault, match=words):
        load_definition(spec_named("datasets", {"path": str(file), "shape": "trl"})).tasks(count=1, seed=0)


@pytest.mark.parametrize("dataset", ["chain_sum", "spell_backward", "countdown", "sudoku", "knights_knaves", "word_ladder"])
def test_reasoning_gym_scores_its_own_answers(dataset: str) -> None:
    assert failures("reasoning", dataset=dataset) == []


def test_all_of_reasoning_gym_can_be_named_and_nothing_else() -> None:
    assert len(datasets()) > 90
    with pytest.raises(EnvironmentFault, match="chain_sum"):
        load_definition(spec_named("reasoning", {"dataset": "chain_sums"})).tasks(count=1, seed=0)


def test_gymnasium_is_played_through_text() -> None:
    lake = {"name": "FrozenLake-v1", "settings": {"is_slippery": False}, "actions": ["left", "down", "right", "up"],
            "gold": [1, 1, 2, 1, 2, 2]}
    assert failures("gymnasium_text", **lake) == []
    definition = load_definition(spec_named("gymnasium_text", lake))
    with open_services() as services:
        task = definition.tasks(count=1, seed=0).tasks[0]
        actions = [Action(text=text) for text in ("I go DOWN", "fly", "1", "right then", "down", "2", "right")]
        played = asyncio.run(play(definition, task, actions, services=services, seed=0))
    assert played.state.facts["return"] == 1.0 and played.observations[1].replies[0].error == "bad_arguments"
    assert "observation: 4" in played.observations[0].replies[0].content and played.observations[-1].ended == "terminal"
    with pytest.raises(EnvironmentFault, match="discrete"):
        load_definition(spec_named("gymnasium_text", {"name": "Pendulum-v1"})).make()      # type: ignore[attr-defined]


@pytest.fixture
def questions(tmp_path: Path) -> str:
    file = tmp_path / "questions.json"
    file.write_text(json.dumps([{"question": "2+3?", "answer": "5", "calls": [{"name": "add", "arguments": {"a": 2, "b": 3}}]}]))
    return str(file)


def calls(name: str, **arguments: Any) -> Action:
    return Action(calls=(ToolCall(id="c", name=name, arguments=arguments),))


def test_an_mcp_server_over_stdio_is_an_environment(questions: str) -> None:
    own = {"questions": questions, "command": [sys.executable, SERVER], "call_s": 60.0, "starting_s": 60.0}
    definition = load_definition(spec_named("mcp_server", own))
    task = definition.tasks(count=1, seed=0).tasks[0]
    actions = [calls("add", a=2, b=3), calls("fail"), Action(text="Answer: 5")]
    with open_services() as services:
        played = asyncio.run(play(definition, task, actions, services=services, seed=0))
        found = definition.verify(task, played.state, services=services)
    replies = [seen.replies[0] for seen in played.observations[:2]]
    assert [reply.error for reply in replies] == [None, "refused"] and replies[0].content == "5"
    assert {tool.name for tool in played.tools} == {"add", "fail", "slow"} == set(task.tools)
    assert isinstance(found, Grade) and found.accuracy == 1.0


def test_a_tool_of_a_server_that_does_not_answer_is_a_typed_observation(questions: str) -> None:
    own = {"questions": questions, "command": [sys.executable, SERVER], "call_s": 0.2, "starting_s": 60.0}
    definition = load_definition(spec_named("mcp_server", own))
    with open_services() as services:
        task = definition.tasks(count=1, seed=0).tasks[0]
        played = asyncio.run(play(definition, task, [calls("slow")], services=services, seed=0))
    assert played.observations[0].replies[0].error == "timeout"


def test_an_mcp_server_over_http_is_an_environment(questions: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = subprocess.Popen([sys.executable, SERVER, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as one:
                if not one.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.1)
        own = {"questions": questions, "url": f"http://127.0.0.1:{port}/mcp", "starting_s": 60.0}
        definition = load_definition(spec_named("mcp_server", own))
        with open_services() as services:
            task = definition.tasks(count=1, seed=0).tasks[0]
            played = asyncio.run(play(definition, task, [calls("add", a=2, b=3)], services=services, seed=0))
        assert played.observations[0].replies[0].content == "5"
    finally:
        running.kill()
        running.wait()


def test_an_mcp_server_that_cannot_start_is_the_environments_fault(questions: str) -> None:
    for command in ([sys.executable, "-c", "raise SystemExit(1)"], ["/no/such/program"]):
        definition = load_definition(spec_named("mcp_server", {"questions": questions, "command": command, "starting_s": 60.0}))
        with open_services() as services, pytest.raises(EnvironmentFault, match="did not start"):
            asyncio.run(play(definition, definition.tasks(count=1, seed=0).tasks[0], (), services=services, seed=0))


def test_every_environment_of_the_package_has_a_name() -> None:
    known = known_definitions()
    assert {"calculator", "datasets", "reasoning", "gymnasium_text", "mcp_server", "math", "code"} <= set(known)
    with pytest.raises(EnvironmentFault, match="calculator"):
        spec_named("calculatr", {})
