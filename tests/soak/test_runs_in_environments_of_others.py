"""Whole runs by the command line in environments of others: MCP servers over stdio and HTTP, Gymnasium.

Tools are called in training, the audit is clean, episodes play again, updates come out again.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import rollbook.recipes
from rollbook.cli import main
from rollbook.ledger import Ledger
from rollbook.records import Episode, Trace

SERVER = str(Path(__file__).parents[1] / "fakes" / "mcp_calculator.py")
RECIPE = Path(rollbook.recipes.__file__).parent / "builtin" / "tool-calculator.yaml"
SMALL = {"stages.cold_start.batch": 16, "stages.cold_start.traces.gold": 1.0, "stages.cold_start.traces.direct": 0.0,
         "stages.rl.steps": 2, "stages.rl.prompts": 4, "stages.rl.per_task": 4, "stages.rl.groups": 2, "stages.rl.filter": "none",
         "stages.rl.max_waves": 1, "stages.rl.optimizer.warmup_steps": 0, "stages.rl.probe": 4, "run.threads": 1,
         "model.context": 512, "model.hidden": 64, "model.layers": 2, "model.intermediate": 192}

pytestmark = pytest.mark.soak


def recipe(file: Path, environment: dict[str, Any], tasks: dict[str, Any]) -> Path:
    """The built-in recipe of a tiny model that learns to use a tool, in another environment."""
    document = yaml.safe_load(RECIPE.read_text())
    values = document["settings"]["environment"]["values"]
    document["settings"]["environment"]["values"] = {**values, **environment}
    document["settings"]["tasks"]["values"] |= tasks
    document["name"] = file.stem
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


def said(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, (arguments, result.output[-2000:], result.exception)
    return result.output


def run(file: Path, *more: str) -> list[Trace]:
    """The attempts of a run that ends, whose audit is clean, deep too, and whose updates come out again."""
    out = str(file.with_suffix(""))
    given = [f"{name}={value}" for name, value in SMALL.items()]
    said("run", str(file), "--scale", "tiny", "--out", out, *(word for one in (*given, *more) for word in ("--set", one)))
    rows = said("audit", out, "--deep")
    assert "0 FAIL" in rows, rows
    said("replay", out)
    with Ledger.open(Path(out), write=False) as ledger:
        return [trace for event in ledger.events("TraceTable") if event.body["name"].startswith("rl/")
                for _, (trace, _, _) in ledger.rows(event)]


def questions(folder: Path) -> str:
    rows = [{"question": f"{a}+{b}", "answer": str(a + b), "calls": [{"name": "add", "arguments": {"a": a, "b": b}}]}
            for a in range(2, 7) for b in range(2, 8)]
    (folder / "questions.json").write_text(json.dumps(rows))
    return str(folder / "questions.json")


@contextlib.contextmanager
def served() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = subprocess.Popen([sys.executable, SERVER, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with socket.socket() as one:
                if not one.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        running.kill()
        running.wait()


def calls(traces: Sequence[Trace]) -> list[str]:
    episodes = [trace.episode for trace in traces]
    assert traces and all(isinstance(episode, Episode) and episode.state is not None for episode in episodes)
    return [call.name for episode in episodes if episode is not None for turn in episode.turns for call in turn.action.calls]


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_a_policy_learns_with_the_tools_of_an_mcp_server_and_its_run_is_clean(tmp_path: Path, way: str) -> None:
    with served() if way == "http" else contextlib.nullcontext("") as url:
        own = {"url": url} if url else {"command": [sys.executable, SERVER]}
        file = recipe(tmp_path / f"mcp-{way}.yaml", {
            "name": "mcp", "definition": "rollbook.environments.mcp_server:McpServer", "dialect": "hermes", "tools": ["add"],
            "parameters": {"questions": questions(tmp_path), "starting_s": 120.0, "call_s": 60.0, **own},
            "turn_tokens": 96, "announce": False}, {"train": 24, "heldout": 6, "max_tokens": 160})
        traces = run(file, "stages.cold_start.steps=150")
    assert "add" in calls(traces)


def test_a_policy_learns_in_a_gymnasium_environment_and_its_run_is_clean(tmp_path: Path) -> None:
    file = recipe(tmp_path / "lake.yaml", {
        "name": "lake", "definition": "rollbook.environments.gymnasium_text:GymnasiumText", "dialect": "hermes", "tools": [],
        "parameters": {"name": "FrozenLake-v1", "settings": {"is_slippery": False}, "actions": ["left", "down", "right", "up"],
                       "gold": [1, 1, 2, 1, 2, 2], "steps": 12}, "max_turns": 12, "turn_tokens": 8}, {
        "train": 24, "heldout": 6, "max_tokens": 96})
    traces = run(file, "stages.cold_start.steps=40")
    assert not calls(traces) and any(len(trace.episode.turns) > 1 for trace in traces if trace.episode is not None)
