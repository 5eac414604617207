"""The agent loop of the verifiers library, in an environment of its own, as the program that makes an attempt.

VERIFIERS names its Python: `python -m venv v && v/bin/pip install verifiers uv && VERIFIERS=v/bin/python make soak`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from scripted import SAMPLING, TOKENIZER, ScriptedSampler, Told, task

from rollbook.environments import open_services
from rollbook.records import EnvironmentSpec, EpisodeBudget
from rollbook.records.recipe import AgentSettings
from rollbook.rollouts.rules import EpisodeRules
from rollbook.serve.commands import Command
from rollbook.serve.harness import AgentRollouts


@pytest.mark.soak
@pytest.mark.skipif("VERIFIERS" not in os.environ, reason="VERIFIERS names no Python to run")
def test_an_attempt_by_the_verifiers_library_is_one_trace_and_its_answer_is_graded(tmp_path: Path) -> None:
    settings = AgentSettings(
        name="verifiers", answer="stdout", variables={"UV_CACHE_DIR": str(tmp_path)},
        command=(os.environ["VERIFIERS"], "{rollbook}/rollbook/serve/verifiers_agent.py", "{task_file}"))
    spec = EnvironmentSpec(name="told", definition="scripted:Told", budget=EpisodeBudget(
        max_tokens=400, max_turns=4, max_seconds=200.0))
    with open_services() as services:
        made = AgentRollouts(sampler=ScriptedSampler(lambda name, turn: "4"), tokenizer=TOKENIZER, sampling=SAMPLING, seed=1,
                             max_tokens=400, name="verifiers", rules=EpisodeRules(dialect="hermes"), context=4000, spec=spec,
                             definition=Told(), services=services, work=Command(settings=settings))
        trace, = made.solve([task()], 1, scope="s", envelope=made.envelope("w"))
    assert trace.episode is not None and trace.episode.state is not None, trace.episode
    assert trace.episode.state.facts["answer"] == "4" and len(trace.sampled) == 1 and not trace.parts
