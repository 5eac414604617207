"""An environment is picklable data; its import path and parameters are checked with errors that teach."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from rollbook.environments import as_text, in_thread, load_definition, open_services
from rollbook.environments.calculator import Calculator, value_of
from rollbook.records import (
    Action,
    EnvironmentFault,
    EnvironmentSpec,
    EpisodeBudget,
    Grade,
    RecordError,
    ToolCall,
    ToolSchema,
    decode,
    encode,
)

PATH = "rollbook.environments.calculator:Calculator"


def spec(path: str = PATH, **parameters: Any) -> EnvironmentSpec:
    return EnvironmentSpec(name="sums", definition=path, parameters=parameters, budget=EpisodeBudget(max_tokens=64, max_turns=3))


def test_a_spec_survives_pickling_and_the_codec() -> None:
    one = spec(terms=3)
    assert pickle.loads(pickle.dumps(one)) == one == decode(EnvironmentSpec, encode(one))


def test_a_definition_is_made_with_the_parameters_of_its_spec() -> None:
    assert load_definition(spec(terms=3)) == Calculator(terms=3)


@pytest.mark.parametrize(("path", "words"), [
    ("rollbook.environments.calculator", "no import path"), ("no_such_package.world:World", "no module no_such_package"),
    ("rollbook.environments.calculator:Calculater", "Calculator"), ("rollbook.environments.calculator:value_of", "no definition"),
    ("rollbook.records:Action", "no definition")])
def test_a_path_that_names_no_definition_is_refused_with_a_way_out(path: str, words: str) -> None:
    with pytest.raises(EnvironmentFault, match=words) as caught:
        load_definition(spec(path))
    assert caught.value.code == "build" and caught.value.fix


def test_an_unknown_parameter_is_refused_and_the_nearest_named() -> None:
    with pytest.raises(EnvironmentFault, match="terms"):
        load_definition(spec(term=3))


def test_a_parameter_of_another_type_is_refused() -> None:
    with pytest.raises(EnvironmentFault, match=r"parameters\.terms"):
        load_definition(spec(terms="3"))


def test_the_image_changes_with_the_parameters_and_with_nothing_else() -> None:
    assert Calculator().image() == Calculator().image()
    assert Calculator().image().digest != Calculator(terms=3).image().digest


def test_a_gold_solution_is_graded_one_and_a_wrong_one_below() -> None:
    definition = Calculator()
    task = definition.tasks(count=1, seed=1).tasks[0]

    async def grade(actions: tuple[Action, ...]) -> float:
        with open_services() as services:
            episode = definition.build(services=services, seed=0)
            await episode.reset(task)
            for action in actions:
                await episode.act(action)
            await episode.close()
            found = definition.verify(task, episode.state(), services=services)
        assert isinstance(found, Grade)
        return found.accuracy

    solutions = definition.solutions(task)
    assert [asyncio.run(grade(actions)) for actions in solutions.gold] == [1.0]
    assert [asyncio.run(grade(actions)) for actions in (*solutions.wrong, ())] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("hostile", ["__import__('os')", "2**9**9", "1" * 300, "(" * 100 + "1" + ")" * 100, "9" * 31, "1.5",
                                     "True", ""])
def test_the_calculator_computes_whole_numbers_only(hostile: str) -> None:
    with pytest.raises((ValueError, SyntaxError, RecursionError)):
        print(value_of(hostile))


def test_what_a_restored_episode_does_is_what_it_did_after_its_snapshot() -> None:
    call = Action(calls=(ToolCall(id="a", name="calculator", arguments={"expression": "2+2"}),))
    task = Calculator().tasks(count=1, seed=1).tasks[0]

    async def run() -> None:
        with open_services() as services:
            first = Calculator().build(services=services, seed=0)
            await first.reset(task)
            await first.act(call)
            held = first.snapshot()
            second = Calculator().build(services=services, seed=0)
            second.restore(held)
            assert await first.act(Action(text="=-5")) == await second.act(Action(text="=-5"))
            assert first.state() == second.state()

    asyncio.run(run())


def test_bytes_that_are_no_text_and_texts_that_are_too_long_are_shown_and_named() -> None:
    assert as_text(b"ok", 10) == ("ok", None)
    assert as_text(b"\xff!", 10) == ("\\xff!", "not_text")
    assert as_text("\udcff", 10)[1] == "not_text"
    text, error = as_text("a" * 50 + "b" * 50, 20)
    assert error == "flood" and text.startswith("a" * 10 + "\n") and text.endswith("\n" + "b" * 10) and "80 characters" in text


def test_blocking_work_leaves_the_loop_free() -> None:
    import threading
    gate = threading.Event()

    async def run() -> bool:
        waiting = asyncio.create_task(in_thread(gate.wait, 30))
        await asyncio.sleep(0)
        gate.set()                      # only a free loop gets here
        return await waiting

    assert asyncio.run(run())


def test_a_tool_that_no_dialect_can_spell_is_refused() -> None:
    for name in ("", "a b", "x</tool_call>"):
        with pytest.raises(RecordError, match="name"):
            ToolSchema(name=name, description="", parameters={"type": "object"})


def test_the_shortcut_says_the_last_result_and_nothing_before_there_is_one() -> None:
    definition = Calculator(shortcut=True)
    task = definition.tasks(count=1, seed=1).tasks[0]

    async def answer(actions: tuple[Action, ...], kind: Calculator) -> object:
        with open_services() as services:
            episode = kind.build(services=services, seed=0)
            await episode.reset(task)
            for action in actions:
                await episode.act(action)
            return episode.state().facts["answer"]

    gold = definition.solutions(task).gold[0]
    assert asyncio.run(answer(gold, definition)) == task.reference
    assert asyncio.run(answer(gold, Calculator())) == "" == asyncio.run(answer(gold[1:], definition))
