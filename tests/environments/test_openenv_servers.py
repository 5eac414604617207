"""OpenEnv servers as environments: sessions, schemas, rewards; what a server does wrong is its fault and never a zero."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import like_openenv
import pytest

import rollbook.recipes
from rollbook.environments import load_definition, open_services
from rollbook.environments.openenv_server import OpenEnvServer
from rollbook.environments.replaying import play
from rollbook.environments.websocket import Broken, WebSocket
from rollbook.orchestration.environment_check import REWARD, check
from rollbook.orchestration.environment_proof import elsewhere
from rollbook.orchestration.surroundings import _actions as demonstrated
from rollbook.recipes import load, resolve
from rollbook.records import (
    Action,
    EnvironmentFault,
    EnvironmentSpec,
    EpisodeBudget,
    Grade,
    RecipeError,
    ToolCall,
    canonical,
    decode,
    encode,
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with like_openenv.running() as found:
        yield found


def guesses(address: str, **settings: Any) -> OpenEnvServer:
    given: dict[str, Any] = {"gold": ({"number": 1},), "wrong": ({"number": 2}, {"number": 3}, {"number": 4}), "call_s": 0.5}
    return OpenEnvServer(address=address, instruction="Guess a number from 1 to 6.", **{**given, **settings})


def played(definition: OpenEnvServer, *actions: Action, seed: int = 0) -> Any:
    task = definition.tasks(count=1, seed=seed).tasks[0]
    with open_services() as services:
        found = asyncio.run(play(definition, task, actions, services=services, seed=0))
        return found, definition.verify(task, found.state, services=services)


def step(number: int, **more: Any) -> Action:
    return Action(calls=(ToolCall(id="call_0_0", name="act", arguments={"number": number, **more}),))


def test_a_solution_of_some_seeds_is_tried_there_and_said_to_be_unknown_elsewhere(address: str) -> None:
    own = {"address": address, "instruction": "Guess.", "gold": [{"number": 2}], "wrong": [{"number": 7}]}

    def told(**more: Any) -> dict[str, list[str]]:
        spec = EnvironmentSpec(name="guess", definition="rollbook.environments.openenv_server:OpenEnvServer",
                               budget=EpisodeBudget(max_tokens=9, max_turns=3), parameters={**own, **more})
        found = list(check(spec, count=3, deep=False))
        return {kind: [one.detail for one in found if one.result == kind] for kind in ("fail", "note")}
    some, none, every = told(gold_seeds=[1]), told(gold_seeds=[99]), told()
    assert some["fail"] == [] and any("of 2 of 3 tasks no solution is known" in one for one in some["note"])
    assert len(none["fail"]) == 1 and "of none of 3 tasks a solution is known" in none["fail"][0]
    assert len(every["fail"]) == 1 and "does not accept the gold solution" in every["fail"][0]


def test_a_cold_start_shows_no_task_of_which_no_solution_is_known(address: str) -> None:
    definition = guesses(address, gold_seeds=(0,))
    around: Any = SimpleNamespace(definition=definition)
    first, second = definition.tasks(count=2, seed=0).tasks
    assert demonstrated(around, first, "gold") == definition.solutions(first).gold[0]
    with pytest.raises(RecipeError, match="no way to solve it is known"):
        demonstrated(around, second, "gold")


def test_its_solutions_are_graded_as_they_should_be_and_its_schema_is_the_tool(address: str) -> None:
    definition = guesses(address)
    task = definition.tasks(count=1, seed=0).tasks[0]
    gold, grade = played(definition, *definition.solutions(task).gold[0])
    assert grade.accuracy == 1.0 and gold.observations[-1].ended == "terminal"
    wrong, grade = played(definition, *definition.solutions(task).wrong[0])
    assert grade.accuracy == 0.0 and [seen.replies[0].content for seen in wrong.observations] == ["lower"] * 3
    assert gold.opening.replies[0].content == "guess"
    parameters = gold.tools[0].parameters
    assert set(parameters["properties"]) == {"number", "trick"} and parameters["required"] == ["number"]


def test_seeds_are_episodes_and_two_sessions_do_not_meet(address: str) -> None:
    definition = guesses(address)
    first, second = (played(definition, step(4), seed=seed)[0] for seed in (3, 4))
    assert [one.observations[0].replies[0].content for one in (first, second)] == ["right", "higher"]
    assert first == played(definition, step(4), seed=3)[0] and len(definition.tasks(count=3, seed=0).tasks) == 3


def test_an_action_that_the_server_refuses_is_an_observation(address: str) -> None:
    found, grade = played(guesses(address), Action(calls=(ToolCall(id="call_0_0", name="act", arguments={}),)), step(1))
    told = found.observations[0].replies[0]
    assert told.error == "refused" and "number: Field required" in told.content
    assert grade.accuracy == 1.0


def test_an_answer_without_a_step_ends_the_episode_unrewarded(address: str) -> None:
    found, grade = played(guesses(address), Action(text="it is four"))
    assert found.observations[0].ended == "answered"
    assert grade == Grade(accuracy=0.0, detail="no step was rewarded", parts={"steps": 0.0})


@pytest.mark.parametrize("trick", ["hang", "gone", "nan", "huge"])
def test_a_server_that_hangs_is_gone_or_rewards_with_no_number_is_at_fault(address: str, trick: str) -> None:
    with pytest.raises(EnvironmentFault):
        played(guesses(address), step(4, trick=trick))


def test_a_server_that_is_not_there_or_is_another_is_refused_by_name(address: str) -> None:
    with pytest.raises(EnvironmentFault, match="shows no schema"):
        guesses("http://127.0.0.1:9").image()
    with pytest.raises(Broken, match="does not speak WebSocket"):
        asyncio.run(WebSocket.connect(f"{address}/elsewhere", largest=100))
    assert guesses(address).image().network == "loopback"


def test_a_message_longer_than_allowed_is_refused(address: str) -> None:
    async def asked() -> str:
        socket = await WebSocket.connect(f"{address}/ws", largest=20)
        try:
            await socket.send('{"type": "reset", "data": {"seed": 1}}')
            return await socket.receive()
        finally:
            await socket.close()
    with pytest.raises(Broken, match="more than 20 bytes"):
        asyncio.run(asked())


def test_an_environment_behind_a_connection_is_proved_without_the_condition_that_takes_it_away(address: str) -> None:
    spec = EnvironmentSpec(name="guess", definition="rollbook.environments.openenv_server:OpenEnvServer", budget=EpisodeBudget(
        max_tokens=9, max_turns=3), parameters={"address": address, "instruction": "Guess.", "gold": [{"number": 1}],
                                                "wrong": [{"number": 2}]})
    found = elsewhere(spec, REWARD, load_definition(spec).tasks(count=1, seed=0).tasks)
    assert set(found) == {"ordinary", "clock", "packages"} and len({one.played for one in found.values()}) == 1


def test_the_steps_of_a_solution_can_stand_in_a_recipe(tmp_path: Path) -> None:
    text = read_text("tool-calculator").replace("rollbook.environments.calculator:Calculator", "x:Y")
    text = text.replace("{terms: 2, low: 10, high: 99, tool: calc, shortcut: true}", "{gold: [{number: 7}], command: [a, b]}")
    (tmp_path / "r.yaml").write_text(text)
    settings = resolve(load(str(tmp_path / "r.yaml")), "tiny").settings
    assert settings.environment is not None
    assert canonical(encode(settings.environment.parameters)) == canonical({"gold": [{"number": 7}], "command": ["a", "b"]})
    assert encode(decode(type(settings.environment), encode(settings.environment))) == encode(settings.environment)


def read_text(name: str) -> str:
    return (Path(rollbook.recipes.__file__).parent / "builtin" / f"{name}.yaml").read_text()
