"""What an environment and an outside agent need is looked at before anything is loaded; all that is missing is said at once."""

from __future__ import annotations

import dataclasses
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from scripted import Told, task

from rollbook.cli import main
from rollbook.orchestration import readiness, run
from rollbook.orchestration.readiness import check_begins, unready
from rollbook.recipes import load, resolve
from rollbook.records import EnvironmentFault, RollbookError
from rollbook.records.recipe import AgentSettings
from rollbook.serve.commands import unstartable

AGENT = "environment.agent={{name: a/1, command: [{}, '{{task}}'], answer: stdout}}"


def recipe(*overrides: str):
    return resolve(load("tool-calculator"), "tiny", overrides)


def refused(*overrides: str) -> list[RollbookError]:
    return list(unready(recipe(*overrides).settings))


def test_a_command_that_does_not_exist_is_refused_before_a_model_is_loaded(tmp_path: Path,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "load_policy", lambda *_: pytest.fail("a model was loaded"))
    settings = (AGENT.format("/nowhere/agent"), "stages.rl.max_policy_age=2",
                "environment.definition=nowhere.at_all:World")
    with pytest.raises(RollbookError) as caught:
        run.run_recipe(recipe(*settings), tmp_path / "run", None)       # type: ignore[arg-type]
    told = str(caught.value)
    assert "/nowhere/agent" in told and "nowhere.at_all" in told and "max_seconds" in told and "max_policy_age" in told
    assert "got" in told and "why:" in told and "fix:" in told and not (tmp_path / "run").exists()


def test_a_plan_says_what_a_run_here_would_be_refused_for() -> None:
    printed = CliRunner().invoke(main, ["plan", "tool-calculator", "--scale", "tiny", "--set", AGENT.format("nosuchagent")])
    assert printed.exit_code == 0 and "would be refused" in printed.output and "nosuchagent" in printed.output
    assert "refused" not in CliRunner().invoke(main, ["plan", "tool-calculator", "--scale", "tiny"]).output


def program(path: Path, text: str, mode: int) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_command_is_refused_for_what_is_wrong_with_it(tmp_path: Path) -> None:
    def told(word: str, **variables: str) -> str:
        return str(unstartable(AgentSettings(name="a", command=(word,), answer="none", variables=variables)) or "")
    assert "no such file" in told("/nowhere/agent") and "empty folder" in told("./agent.sh")
    assert "no such program" in told("nosuchagent") and "may not be executed" in told(program(tmp_path / "a", "", 0o644))
    assert "/gone/python" in told(program(tmp_path / "b", "#!/gone/python -S\n", 0o755))
    assert not told("b2", PATH=str(Path(program(tmp_path / "b2", "#!/bin/sh\n", 0o755)).parent))
    assert not told(sys.executable) and not told("sh") and "no such program" in told("sh", PATH="/nowhere")


def test_settings_of_the_turn_loop_are_refused_beside_an_agent_instead_of_ignored() -> None:
    more = ("environment.compaction=discard", "environment.compact_at=40", "environment.subagents=1", "environment.max_seconds=9")
    error, = refused(AGENT.format("sh"), *more)
    assert "environment.misfit_penalty=0" in str(error) and "environment.compaction=none" in str(error)
    assert "strip" not in str(error) and refused() == []


def test_a_server_that_does_not_answer_or_a_file_that_is_not_there_is_refused() -> None:
    def of(definition: str, **parameters: object) -> RollbookError:
        settings = recipe().settings
        assert settings.environment is not None
        around = dataclasses.replace(settings.environment, definition=definition, parameters=parameters)    # type: ignore[arg-type]
        error, = unready(dataclasses.replace(settings, environment=around))
        return error
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{held.getsockname()[1]}"
        error = of("rollbook.environments.openenv_server:OpenEnvServer", address=address, instruction="go", starting_s=1.0)
    assert "shows no schema" in str(error) and address in str(error)
    error = of("rollbook.environments.mcp_server:McpServer", questions="/nowhere.json", command=("true",))
    assert "/nowhere.json" in str(error) and "fix" in str(error)


@pytest.mark.parametrize("fault", ["build", "reset"])
def test_an_environment_that_cannot_begin_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "load_definition", lambda spec: Told(fault=fault))
    with pytest.raises(EnvironmentFault):
        check_begins(recipe().settings, task())
    monkeypatch.setattr(readiness, "load_definition", lambda spec: Told())
    lacking = dataclasses.replace(recipe().settings.environment, tools=("fly",))        # type: ignore[type-var]
    with pytest.raises(EnvironmentFault, match="fly"):
        check_begins(dataclasses.replace(recipe().settings, environment=lacking), task())
    check_begins(recipe().settings, task())
