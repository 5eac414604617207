"""A game longer than a thousand decisions, and observations that a model or a script plays."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from playing import play

from rollbook.environments import open_services
from rollbook.environments.builtin.common import call
from rollbook.environments.builtin.games import ACTIONS, Camp, Survival, step
from rollbook.environments.builtin.simulated import Customer, SimulatedWorld
from rollbook.records import Action, EnvironmentFault, Message


def test_a_game_of_more_than_a_thousand_decisions_is_played_to_its_end() -> None:
    definition = Survival(decisions=1200)
    task = definition.tasks(count=1, seed=2).tasks[0]
    with open_services() as services:
        played = play(definition, task, definition.solutions(task).gold[0], services)
        assert played.accuracy == 1.0 and len(played.observations) == 1201 and played.observations[-1].ended == "terminal"
        lost = play(definition, task, definition.solutions(task).wrong[0], services)
    assert lost.accuracy < 0.1 and lost.state.facts["ended_by"] == "died" and "you died" in lost.texts()[-1]


@pytest.mark.parametrize("action", ACTIONS)
def test_doing_one_thing_for_ever_is_no_way_to_live(action: str) -> None:
    camp = Camp()
    for _ in range(400):
        step(camp, 1, action, 1.0)
        if camp.health == 0:
            return
    raise AssertionError(f"{action} alone is enough")


def test_winters_and_years_make_the_weather_worse() -> None:
    from rollbook.environments.builtin.games import SEASON, weather
    def bad(turns: range) -> int:
        return sum(weather(7, turn, 1.0) in ("cold", "storm") for turn in turns)
    summer, winter = range(SEASON), range(3 * SEASON, 4 * SEASON)
    assert sum(bad(range(turn, turn + SEASON)) for turn in range(0, 40 * SEASON, 4 * SEASON)) < sum(
        bad(range(turn + 3 * SEASON, turn + 4 * SEASON)) for turn in range(0, 40 * SEASON, 4 * SEASON))
    assert bad(range(8 * SEASON)) < bad(range(160 * SEASON, 168 * SEASON)) and len(summer) == len(winter)


def test_without_a_model_to_ask_nobody_plays_and_that_is_said() -> None:
    world, customer = SimulatedWorld(), Customer(player="model")
    with open_services() as services:
        for definition in (world, customer):
            with pytest.raises(EnvironmentFault, match="nobody plays"):
                play(definition, definition.tasks(count=1, seed=0).tasks[0], (), services)


def test_a_world_model_sees_the_result_only_where_it_is_grounded_and_the_grade_is_the_databases() -> None:
    asked: list[str] = []

    async def liar(messages: Sequence[Message]) -> str:
        asked.append(messages[-1].content)
        return "name\nNobody"

    question = call("query", sql="SELECT 1234567 AS x")
    with open_services(ask=liar) as services:
        for grounded in (True, False):
            definition = SimulatedWorld(grounded=grounded)
            task = definition.tasks(count=1, seed=0).tasks[0]
            played = play(definition, task, (question, Action(text=f"Answer: {task.reference}")), services)
            assert played.texts() == ["name\nNobody"] and played.accuracy == 1.0
            assert played.observations[1].replies[0].owner == "environment"
            assert play(definition, task, (question, Action(text="Answer: Nobody")), services).accuracy == 0.0
            assert ("What it gives:\nx\n1234567" in asked[-1]) is grounded


def test_a_customer_answers_what_is_asked_and_is_the_owner_of_it() -> None:
    definition = Customer()
    task = definition.tasks(count=1, seed=0).tasks[0]
    with open_services() as services:
        played = play(definition, task, (Action(text="Hello!"), Action(text="Which day?"),
                                         Action(text="Is there anything else?")), services)
    assert [reply.owner for observation in played.observations for reply in observation.replies] == ["user_simulator"] * 3
    assert "On day" in played.texts()[1] and played.texts()[0] == "What do you need to know?" and played.accuracy == 0.0
