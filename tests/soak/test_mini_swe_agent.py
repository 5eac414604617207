"""mini-swe-agent, unmodified and in an environment of its own, as the harness of an attempt at a repository with a fault.

MINI names its program: `python -m venv v && v/bin/pip install mini-swe-agent && MINI=v/bin/mini python -m pytest -m soak ...`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from scripted import SAMPLING, TOKENIZER, ScriptedSampler, task

from rollbook.environments import open_services
from rollbook.environments.builtin.swe import Repository
from rollbook.environments.replaying import replay
from rollbook.records import EnvironmentSpec, EpisodeBudget, FinalState, Grade, RecordError
from rollbook.records.recipe import AgentSettings
from rollbook.rollouts.rules import EpisodeRules
from rollbook.serve.commands import Command
from rollbook.serve.harness import AgentRollouts, Assignment, HarnessRollouts

HIDDEN = "from add import add\nassert add(2, 3) == 5 and add(-1, 1) == 0\n"
SAID = ("cat add.py", "sed -i 's/a - b/a + b/' add.py && cat add.py", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")


def mini(assignment: Assignment) -> FinalState:
    """The agent's own command line on a fresh repository; the hidden test runs when it is done."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "repository"
        repository.mkdir()
        (repository / "add.py").write_text("def add(a, b):\n    return a - b\n")
        variables = {**os.environ, "OPENAI_API_KEY": assignment.api_key, "OPENAI_BASE_URL": assignment.base_url, "HOME": folder,
                     "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1"}
        done = subprocess.run([os.environ["MINI"], "--model", "openai/policy", "--task", "add(2, 3) must be 5", "--yolo",
                               "--exit-immediately", "--output", f"{folder}/trajectory.json"], cwd=repository, env=variables,
                              capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL)
        if not Path(f"{folder}/trajectory.json").is_file():
            raise RecordError("mini-swe-agent left no trajectory", got=(done.stdout + done.stderr)[-600:])
        passed = subprocess.run([sys.executable, "-c", HIDDEN], cwd=repository, capture_output=True).returncode == 0
        return FinalState(facts={"passed": passed}, artifacts={"add.py": (repository / "add.py").read_text()})


def script(name: str, turn: int) -> str:
    call = json.dumps({"name": "bash", "arguments": {"command": SAID[min(turn, 2)]}})
    return f"I will do it.\n<tool_call>\n{call}\n</tool_call>"


@pytest.mark.soak
@pytest.mark.skipif("MINI" not in os.environ, reason="MINI names no mini-swe-agent to run")
def test_mini_swe_agent_mends_a_repository_and_its_calls_are_one_trace() -> None:
    made = HarnessRollouts(sampler=ScriptedSampler(script), tokenizer=TOKENIZER, sampling=SAMPLING, seed=1, max_tokens=2000,
                           agent=mini, name="mini-swe-agent", context=100_000, rules=EpisodeRules(dialect="hermes"))
    trace = made.solve([task()], 1, scope="s", envelope=made.envelope("w"))[0]
    assert trace.episode is not None and trace.episode.fault is None, trace.episode
    assert trace.episode.state is not None and trace.episode.state.facts["passed"]
    assert not trace.parts and len(tuple(trace.turns)) == 3 and len(trace.sampled) == 3
    shown = [TOKENIZER.decode(segment.token_ids) for segment in trace.segments if segment.owner == "tool"]
    assert "return a - b" in shown[0] and "return a + b" in shown[1]


SOLVED = ("cat */*.py", "{repair}", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")


@pytest.mark.soak
@pytest.mark.skipif("MINI" not in os.environ, reason="MINI names no mini-swe-agent to run")
def test_mini_swe_agent_works_as_a_stages_source_in_the_shell_of_the_swe_environment() -> None:
    definition = Repository()
    wanted = definition.tasks(count=1, seed=0).tasks[0]
    gold = json.loads(wanted.reference)["gold"]
    repair = "\n".join(f"cat > '{path}' <<'ENDOFFILE'\n{text}\nENDOFFILE" for path, text in gold.items())

    def says(name: str, turn: int) -> str:
        call = json.dumps({"name": "bash", "arguments": {"command": SOLVED[min(turn, 2)].replace("{repair}", repair)}})
        return f"I will do it.\n<tool_call>\n{call}\n</tool_call>"
    settings = AgentSettings(
        name="mini-swe-agent", answer="none",
        command=(os.environ["MINI"], "--model", "openai/policy", "--task", "{task}", "--yolo", "--exit-immediately",
                 "--environment-class", "rollbook.serve.mini_workplace.Workplace", "--output", "{folder}/trajectory.json"),
        variables={"PYTHONPATH": "{rollbook}", "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors",
                   "MSWEA_SILENT_STARTUP": "1"})
    spec = EnvironmentSpec(name="swe", definition="rollbook.environments.builtin.swe:Repository", tools=("shell",),
                           budget=EpisodeBudget(max_tokens=20_000, max_turns=9, max_seconds=200.0))
    with open_services() as services:
        made = AgentRollouts(sampler=ScriptedSampler(says), tokenizer=TOKENIZER, sampling=SAMPLING, seed=1, max_tokens=20_000,
                             name="mini", rules=EpisodeRules(dialect="hermes"), context=100_000, spec=spec, definition=definition,
                             services=services, work=Command(settings=settings))
        trace = made.solve([wanted], 1, scope="s", envelope=made.envelope("w"))[0]
        assert trace.episode is not None and trace.episode.state is not None, trace.episode
        grade = definition.verify(wanted, trace.episode.state, services=services)
        assert isinstance(grade, Grade) and grade.accuracy == 1.0, (grade, trace.episode.turns)
        assert asyncio.run(replay(definition, wanted, trace.episode, services=services)) is None
    assert [turn.action.calls[0].name for turn in trace.episode.turns] == ["shell"] * 3 and len(trace.sampled) == 3
