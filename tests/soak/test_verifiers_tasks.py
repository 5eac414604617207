"""Tasks, tools and rewards of the real verifiers library as an environment, checked, played and refused.

VERIFIERS names its Python: `python -m venv v && v/bin/pip install verifiers uv time-machine && VERIFIERS=v/bin/python make soak`.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from rollbook.environments import load_definition, open_services
from rollbook.environments.naming import spec_named
from rollbook.environments.replaying import play
from rollbook.orchestration.environment_check import check
from rollbook.records import Action, EnvironmentFault, Grade, ToolCall, Ungraded

pytestmark = [pytest.mark.soak, pytest.mark.skipif("VERIFIERS" not in os.environ, reason="VERIFIERS names no Python to run")]
FAKES = str(Path(__file__).parents[1] / "fakes")


def sums(**more: Any) -> Any:
    own = {"python": os.environ["VERIFIERS"], "taskset": "sums_of_verifiers", "paths": [FAKES]}
    return spec_named("verifiers_tasks", {**own, **more})


def played(*actions: Action, **more: Any) -> Any:
    definition = load_definition(sums(**more))
    task = definition.tasks(count=1, seed=0).tasks[0]
    with open_services() as services:
        found = asyncio.run(play(definition, task, actions, services=services, seed=0))
        return found, definition.verify(task, found.state, services=services)


def add(a: int, b: int) -> Action:
    return Action(calls=(ToolCall(id="call_0_0", name="add", arguments={"a": a, "b": b}),))


def test_a_taskset_of_the_verifiers_library_passes_the_check_of_environments() -> None:
    found = list(check(sums()))
    assert [one for one in found if one.result == "fail"] == []
    assert sum(one.name == "conditions" and one.result == "pass" for one in found) == 3


def test_its_tools_are_called_its_state_is_kept_and_its_rewards_are_the_grade() -> None:
    found, grade = played(add(1, 9), add(13, 0), Action(text="1+9 = 10"), config={"most": 9})
    assert [seen.replies[0].error for seen in found.observations[:2]] == [None, "refused"]
    assert found.observations[0].replies[0].content == "10" and [tool.name for tool in found.tools] == ["add"]
    assert load_definition(sums()).tasks(count=1, seed=0).tasks[0].tools == ("add",)
    assert grade.accuracy == 1.0 and grade.parts == {"right": 1.0, "called": 2.0, "reward": 1.0}
    assert played(Action(text="11"))[1].accuracy == 0.0


def test_a_reward_that_raises_or_leaves_its_range_is_no_grade() -> None:
    raised, wild = played(Action(text="raise"))[1], played(Action(text="wild"))[1]
    assert isinstance(raised, Ungraded) and raised.code == "crash" and "unlucky" in raised.detail
    assert isinstance(wild, Ungraded) and wild.code == "malformed"
    graded = played(Action(text="wild"), full=14.0)[1]
    assert isinstance(graded, Grade) and graded.accuracy == 0.5


@pytest.mark.parametrize(("more", "words"), [
    ({"config": {"prepared": True}}, "setup of Prepared needs a runtime"), ({"config": {"least": 3}}, "least"),
    ({"taskset": "no_such_taskset"}, "no_such_taskset"), ({"gold": "{solution}"}, "no such field"),
    ({"python": "/no/such/python"}, "no such interpreter")])
def test_a_taskset_that_cannot_be_had_is_refused_by_its_reason(more: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvironmentFault, match=words):
        definition = load_definition(sums(**more))
        definition.solutions(definition.tasks(count=1, seed=0).tasks[0])
