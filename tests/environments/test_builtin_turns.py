"""The built-in environments through the turn loop: a policy that writes their gold solutions in a dialect, token by token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from scripted import SAMPLING, TOKENIZER, ScriptedSampler

from rollbook.environments import load_definition, open_services
from rollbook.environments.replaying import replay
from rollbook.records import Action, EnvironmentSpec, EpisodeBudget, Grade
from rollbook.rollouts.environment import EnvironmentRollouts
from rollbook.rollouts.rules import EpisodeRules

BUILTIN = "rollbook.environments.builtin"
BUDGET = EpisodeBudget(max_tokens=40_000, max_turns=70)
WORLD = {"definition": f"{BUILTIN}.world:WorldQuestions"}
SPECS = [EnvironmentSpec(name=name, definition=path, parameters=parameters, budget=BUDGET) for name, path, parameters in (
    ("world", f"{BUILTIN}.world:WorldQuestions", {}), ("browser", f"{BUILTIN}.browser:Browsing", {}),
    ("games", f"{BUILTIN}.games:Survival", {"decisions": 40}), ("customer", f"{BUILTIN}.simulated:Customer", {}),
    ("interpreter", f"{BUILTIN}.interpreter:Interpreter", {}), ("code", f"{BUILTIN}.code:Programming", {"tests": 2, "run": True}),
    ("faulty", "rollbook.environments.faults:Faulty", {"inner": WORLD, "rates": {"*": {"error": 0.5, "page": 0.5}}}),
    ("guarded", "rollbook.environments.guard.guarded:Guarded", {"inner": WORLD}))]


def written(action: Action) -> str:
    """An action as a policy writes it in the Hermes dialect."""
    calls = (json.dumps({"name": call.name, "arguments": dict(call.arguments)}) for call in action.calls)
    return action.text + "".join(f"<tool_call>{call}</tool_call>" for call in calls)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_gold_solution_written_by_a_policy_is_played_graded_and_can_be_replayed(spec: EnvironmentSpec) -> None:
    definition = load_definition(spec)
    task = definition.tasks(count=1, seed=3).tasks[0]
    gold: Sequence[Action] = definition.solutions(task).gold[0]
    sampler = ScriptedSampler(lambda name, turn: written(gold[min(turn, len(gold) - 1)]))
    with open_services() as services:
        rollouts = EnvironmentRollouts(sampler=sampler, tokenizer=TOKENIZER, sampling=SAMPLING, seed=1,
                                       max_tokens=BUDGET.max_tokens,
                                       spec=spec, definition=definition, services=services, context=200_000,
                                       rules=EpisodeRules(dialect="hermes", announces=True))
        trace = rollouts.solve([task], 1, scope="s", envelope=rollouts.envelope("w"))[0]
        assert trace.episode is not None and trace.episode.state is not None and trace.episode.misfits == 0
        grade = definition.verify(task, trace.episode.state, services=services)
        assert isinstance(grade, Grade) and grade.accuracy == 1.0, grade
        assert len(trace.episode.turns) == len(gold)
        assert asyncio.run(replay(definition, task, trace.episode, services=services)) is None
