"""What every built-in environment keeps to: its gold accepted, nothing and wrong refused, replay, snapshots, errors as data."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator, Sequence

import pytest
from playing import play

from rollbook.environments import open_services
from rollbook.environments.builtin.browser import Browsing
from rollbook.environments.builtin.code import Programming
from rollbook.environments.builtin.games import Survival
from rollbook.environments.builtin.interpreter import Interpreter
from rollbook.environments.builtin.math import Mathematics
from rollbook.environments.builtin.search import SearchQuestions
from rollbook.environments.builtin.simulated import OVER, Customer, SimulatedWorld
from rollbook.environments.builtin.world import WorldQuestions
from rollbook.records import Action, EnvironmentDefinition, Message, Services, Snapshots, Task, ToolCall, decode, encode

DEFINITIONS: dict[str, EnvironmentDefinition] = {
    "world": WorldQuestions(), "search": SearchQuestions(), "browser": Browsing(), "math": Mathematics(),
    "games": Survival(decisions=60), "code": Programming(tests=3, run=True),
    "interpreter": Interpreter(), "simulated_world": SimulatedWorld(), "customer": Customer(),
                                                 "customer_model": Customer(player="model"),
}
EVERY = pytest.mark.parametrize("name", sorted(DEFINITIONS))
HOSTILE = ("", "\0", "\ud800", "'; DROP TABLE towns; --", "../../../etc/passwd", "a" * 20_000, "{}", "\x1b[2J", "%s%n",
           "{0.__class__}")


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with open_services(ask=player) as opened:
        yield opened


async def player(messages: Sequence[Message]) -> str:
    """A model that plays: it retells what a tool gives, and as a customer says all it wants at once."""
    if "customer" not in messages[0].content:
        return messages[-1].content.rpartition("What it gives:\n")[2]
    if "confirmed" in messages[-1].content:
        return OVER
    return messages[0].content.partition("You want to book: ")[2].partition(". ")[0]


def first(name: str) -> tuple[EnvironmentDefinition, Task]:
    return DEFINITIONS[name], DEFINITIONS[name].tasks(count=1, seed=5).tasks[0]


@EVERY
def test_the_gold_is_accepted_and_nothing_and_wrong_are_refused(name: str, services: Services) -> None:
    definition = DEFINITIONS[name]
    for task in definition.tasks(count=3, seed=5).tasks:
        solutions = definition.solutions(task)
        assert solutions.gold and solutions.wrong
        assert [play(definition, task, actions, services).accuracy for actions in solutions.gold] == [1.0] * len(solutions.gold)
        for actions in (*solutions.wrong, ()):
            assert play(definition, task, actions, services).accuracy < 1.0, actions


@EVERY
def test_the_same_actions_give_the_same_observations_and_state(name: str, services: Services) -> None:
    definition, task = first(name)
    for actions in (*definition.solutions(task).gold, *definition.solutions(task).wrong):
        once, again = (play(definition, task, actions, services) for _ in range(2))
        assert (once.observations, once.state, once.tools, once.grade) == (again.observations, again.state, again.tools,
                                                                           again.grade)


@EVERY
def test_tasks_depend_on_the_seed_alone_and_survive_the_codec(name: str) -> None:
    definition = DEFINITIONS[name]
    tasks = definition.tasks(count=6, seed=1)
    assert tasks == definition.tasks(count=6, seed=1)
    assert len({task.id for task in tasks.tasks}) == 6 == len(tasks.raw)
    assert all(decode(Task, encode(task)) == task for task in tasks.tasks)
    assert definition.tasks(count=6, seed=2).tasks != tasks.tasks


@EVERY
def test_a_definition_can_be_pickled_and_its_image_is_made_twice_the_same(name: str) -> None:
    definition = DEFINITIONS[name]
    again = pickle.loads(pickle.dumps(definition))
    assert again == definition and again.image() == definition.image()


@EVERY
def test_what_follows_a_restored_snapshot_is_what_followed_it(name: str, services: Services) -> None:
    definition, task = first(name)
    gold = definition.solutions(task).gold[0]
    half = len(gold) // 2

    async def run() -> None:
        one, other = (definition.build(services=services, seed=0) for _ in range(2))
        assert isinstance(one, Snapshots) and isinstance(other, Snapshots)
        await one.reset(task)
        for action in gold[:half]:
            await one.act(action)
        held = one.snapshot()
        await other.reset(task)
        other.restore(held)
        for action in gold[half:]:
            assert await one.act(action) == await other.act(action)
        assert one.state() == other.state()
        await one.close()
        await other.close()

    asyncio.run(run())


@EVERY
def test_hostile_arguments_are_answered_and_never_raise(name: str, services: Services) -> None:
    definition, task = first(name)
    tools = play(definition, task, (), services).tools
    calls = [ToolCall(id=f"call_{number}", name=tool.name, arguments=arguments(tool.parameters, text))
             for tool in tools for number, text in enumerate(HOSTILE)]
    calls.append(ToolCall(id="call_x", name="no_such_tool", arguments={}))
    for call in calls:
        played = play(definition, task, (Action(calls=(call,)),), services)
        assert [reply.call for reply in played.observations[1].replies] == [call.id]
        assert played.accuracy < 1.0
    assert play(definition, task, (Action(text="\ud800\0" * 50),), services).accuracy < 1.0


@EVERY
def test_whole_numbers_that_come_as_floats_are_numbers(name: str, services: Services) -> None:
    definition, task = first(name)
    for tool in play(definition, task, (), services).tools:
        given = {key: 1.0 if value == 2**40 else value for key, value in arguments(tool.parameters, "1").items()}
        call = ToolCall(id="f", name=tool.name, arguments=given)
        assert [reply.call for reply in play(definition, task, (Action(calls=(call,)),),
                                             services).observations[1].replies] == ["f"]


def arguments(parameters: dict, text: str) -> dict:                                # type: ignore[type-arg]
    """Arguments that fit a schema and are otherwise hostile; optional ones too."""
    found = {}
    for name, kind in parameters["properties"].items():
        if "enum" in kind:
            found[name] = kind["enum"][0]
        elif "string" in kind["type"]:
            found[name] = text
        else:
            found[name] = 2**40
    return found


@EVERY
def test_parallel_calls_are_each_answered_in_order(name: str, services: Services) -> None:
    definition, task = first(name)
    calls = [call for action in definition.solutions(task).gold[0] for call in action.calls][:1]
    if calls:
        pair = tuple(ToolCall(id=f"p{number}", name=calls[0].name, arguments=calls[0].arguments) for number in range(3))
        played = play(definition, task, (Action(calls=pair),), services)
        assert [reply.call for reply in played.observations[1].replies] == ["p0", "p1", "p2"]


@EVERY
def test_no_reference_reaches_the_prompt(name: str) -> None:
    if name != "games":                      # its reference is the number of decisions, which the player is told
        for task in DEFINITIONS[name].tasks(count=8, seed=9).tasks:
            shown = " ".join(message.content for message in task.prompt)
            assert f" {task.reference}." not in shown and f" {task.reference} " not in shown
