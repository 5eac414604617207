"""The container backend against an engine of our own that runs the command on this machine: the protocol, not the isolation."""

from __future__ import annotations

import itertools
import os
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from patience import PATIENT

from rollbook.environments.sandbox import ContainerSandbox
from rollbook.environments.sandbox.container import command
from rollbook.records.sandbox import Exceeded, Exited, MissingTool, Program, SandboxError, Signalled

ENGINE = """
    #!/usr/bin/env python3
    import json, os, re, signal, subprocess, sys
    home, words = os.path.dirname(__file__), sys.argv[1:]
    with open(home + "/log", "a") as log:
        log.write(json.dumps(words) + chr(10))
    state = home + "/" + (words[words.index("--name") + 1] if "--name" in words else words[-1])
    if words[:2] == ["image", "inspect"]:
        print("sha256:feed") if words[-1] == "python:3.11" else sys.exit("no such image")
    elif words[0] == "version":
        print("1.2.3")
    elif words[0] == "run":
        if os.path.exists(home + "/broken"):
            sys.exit(125)
        at = words.index("python:3.11")
        code = words[-1].replace("/tmp/box", state + ".box")
        child = subprocess.Popen([sys.executable, *words[at + 1:-1], code], start_new_session=True)
        open(state, "w").write(str(child.pid))
        status = child.wait()
        sys.exit(status if status >= 0 else 128 - status)
    elif words[0] == "kill":
        os.killpg(int(open(state).read()), 9)
    elif words[0] == "inspect":
        print("true" if os.path.exists(home + "/oom") else "false")
    """


@pytest.fixture
def engine(tmp_path: Path, monkeypatch) -> Path:
    path = tmp_path / "docker"
    path.write_text(textwrap.dedent(ENGINE).lstrip())
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def log(engine: Path) -> str:
    return (engine / "log").read_text()


def test_a_program_runs_with_its_files_and_input(engine) -> None:
    sandbox = ContainerSandbox(image="python:3.11")
    done = sandbox.run(Program(source=b"import os\nprint(input(), open('a/b').read(), os.environ['GIVEN'])", files={"a/b": b"in"},
                               stdin=b"line\n", environment={"GIVEN": "1"}, limits=PATIENT))
    assert (done.stdout.data, done.ending) == (b"line in 1\n", Exited(status=0)), done
    assert done.cpu_s is None and done.peak_bytes is None and done.sandbox.strength == "isolated"
    assert log(engine).splitlines()[-1].startswith('["rm", "--force", "rollbook-')


@pytest.mark.parametrize(("source", "limits", "ending"), [
    ("raise SystemExit(3)", {}, Exited(status=3)),
    ("import os; os.abort()", {}, Signalled(signal=6)),
    ("import time; time.sleep(60)", {"wall_s": 1.0}, Exceeded(limit="wall")),
    ("while True: print('x' * 999)", {"output_bytes": 1000}, Exceeded(limit="output")),
])
def test_an_end_has_one_type_in_a_container(engine, source: str, limits, ending) -> None:
    done = ContainerSandbox(image="python:3.11").run(Program(source=source.encode(), limits=replace(PATIENT, **limits)))
    assert done.ending == ending
    assert ('["kill", "rollbook-' in log(engine)) == bool(limits)


def test_what_the_engine_calls_out_of_memory_is_the_limit_of_memory(engine) -> None:
    (engine / "oom").touch()
    assert ContainerSandbox(image="python:3.11").run(Program(source=b"", limits=PATIENT)).ending == Exceeded(limit="memory")


def test_an_engine_that_fails_is_an_error_of_the_sandbox_and_not_of_the_program(engine) -> None:
    sandbox = ContainerSandbox(image="python:3.11")
    (engine / "broken").touch()
    with pytest.raises(SandboxError, match="the container did not start"):
        sandbox.run(Program(source=b"print(1)", limits=PATIENT))
    with pytest.raises(SandboxError, match="image failed"):
        ContainerSandbox(image="python:2.7")


def test_without_an_engine_the_error_says_what_to_install(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool, match="podman") as missing:
        ContainerSandbox(image="python:3.11", engine="podman")
    assert missing.value.tool == "podman"


def test_a_container_has_no_network_no_rights_and_every_limit() -> None:
    words = command("docker", "image", "name", PATIENT)
    pairs = set(itertools.pairwise(words))
    assert {("--network", "none"), ("--cap-drop", "ALL"), ("--security-opt", "no-new-privileges"), ("--memory", "300000000"),
            ("--memory-swap", "300000000"), ("--user", "65534:65534"), ("--ulimit", "core=0"),
            ("--pids-limit", str(PATIENT.processes + 2))} <= pairs
    assert "--read-only" in words and not {"--privileged", "--volume", "-v", "--mount"} & set(words)
    assert any(word.startswith("/tmp:") and f"size={PATIENT.disk_bytes}" in word for word in words)
