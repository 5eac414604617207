"""A stage whose attempts an outside agent makes: its audit is clean, episodes play again, what was sampled is trained."""

import sys
from pathlib import Path

import pytest
from test_a_run_in_an_environment import failed, ran

from rollbook.audit.passage import audit_run
from rollbook.audit.replay import replay_run
from rollbook.ledger import Ledger
from rollbook.records import RecipeError

AGENT = Path(__file__).parents[1] / "fakes" / "outside_agent.py"


def agent(mode="plain", answer="stdout"):
    command = f"[{sys.executable}, {AGENT}, '{{task}}', calc, {mode}]"
    return (f"environment.agent={{name: outside/1, command: {command}, answer: {answer}, parallel: 2}}", "stages.rl.filter=none",
            "stages.rl.prompts=2", "tasks.max_tokens=48", "environment.turn_tokens=24", "environment.max_seconds=60",
            "environment.misfit_penalty=0", "tasks.heldout=4",
            "stages.rl.probe_every=0")


def attempts(run):
    with Ledger.open(run, write=False) as ledger:
        return [row for event in ledger.events("TraceTable") if event.body["name"].startswith("rl/")
                for _, row in ledger.rows(event)]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return ran(tmp_path_factory.mktemp("agent") / "run", *agent("anew"))


def test_its_audit_is_clean_its_episodes_play_again_and_its_updates_come_out_again(clean):
    assert failed(clean) == {}
    rows = {row.stage: row for row in audit_run(clean, sample=4).rows}
    assert "episodes played again" in rows[4].evidence and rows[4].result == "pass"
    assert "outside agent, whose prompts are its own" in rows[2].evidence
    assert replay_run(clean).same_bits


def test_both_of_its_conversations_are_trained_and_its_calls_are_on_record(clean):
    traces = [trace for trace, _, _ in attempts(clean)]
    assert traces and all(len(trace.parts) == 1 and len(trace.episode.turns) == 2 for trace in traces)
    assert {turn.action.calls[0].name for trace in traces for turn in trace.episode.turns if turn.action.calls} <= {"calc"}


def test_what_an_outside_agent_cannot_be_asked_for_is_refused_by_name(tmp_path):
    with pytest.raises(RecipeError, match="outside agent"):
        ran(tmp_path / "run", *agent(), "environment.subagents=1", "stages.rl.subagents_learn=true")
