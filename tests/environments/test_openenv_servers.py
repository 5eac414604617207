"""OpenEnv servers as environments: sessions, schemas, rewards; what a server does wrong is its fault and never a zero."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import like_openenv
import pytest

from rollbook.environments import open_services
from rollbook.environments.openenv_server import OpenEnvServer
from rollbook.environments.replaying import play
from rollbook.environments.websocket import Broken, WebSocket
from rollbook.records import Action, EnvironmentFault, Grade, ToolCall


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


@pytest.mark.parametrize("trick", ["hang", "gone", "nan"])
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
