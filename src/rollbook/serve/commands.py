"""An outside agent as a command of its own: started for one attempt, told where the policy and its tools are, stopped in time."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollbook.records import RecordError
from rollbook.records.recipe import AgentSettings
from rollbook.serve.harness import Assignment, OutOfTime

KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE")        # of this process's variables: no keys, no tokens
SAID = 20_000           # characters of an agent's output that are its answer at most
NAMED = re.compile(r"\{(\w+)\}")
ROLLBOOK = str(Path(__file__).parents[2])       # the folder that holds this package
FLOOD = 64 * 2**20      # bytes of output after which nothing is read any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Runs `settings.command` once for each attempt, in an empty folder that is its home and goes when it ends.

    In the command and its variables stand `{task}`, `{model}`, `{base_url}`, `{api_key}`, `{tools}`, `{folder}` and `{rollbook}`
    (the folder that holds this package) for what they name. The program finds OPENAI_BASE_URL, OPENAI_API_KEY and ROLLBOOK_TOOLS.
    It runs with the rights of whoever runs the recipe: what the *policy* decides to run must go through the environment's tools.
    """

    settings: AgentSettings

    def __call__(self, assignment: Assignment) -> str | None:
        with tempfile.TemporaryDirectory(prefix="rollbook-agent-") as folder:
            names = self._names(assignment, folder)
            command = [_filled(word, names) for word in self.settings.command]
            variables = {name: os.environ[name] for name in KEPT if name in os.environ} | {
                "HOME": folder, "OPENAI_BASE_URL": assignment.base_url, "OPENAI_API_KEY": assignment.api_key,
                "ROLLBOOK_TOOLS": assignment.tools, **{key: _filled(value, names) for key, value in
                                                       self.settings.variables.items()}}
            said = self._run(command, variables, folder, assignment.seconds)
        return said if self.settings.answer == "stdout" else None

    def _names(self, assignment: Assignment, folder: str) -> dict[str, str]:
        asked = "\n\n".join(message.content for message in assignment.task.prompt)
        return {"task": asked, "model": assignment.model, "base_url": assignment.base_url, "api_key": assignment.api_key,
                "tools": assignment.tools, "folder": folder, "rollbook": ROLLBOOK}

    def _run(self, command: list[str], variables: Mapping[str, str], folder: str, seconds: float | None) -> str:
        output, errors = Path(folder) / ".stdout", Path(folder) / ".stderr"
        try:
            with output.open("wb") as out, errors.open("wb") as err:
                started = subprocess.Popen(command, cwd=folder, env=dict(variables), stdin=subprocess.DEVNULL, stdout=out,
                                           stderr=err, start_new_session=True)
        except OSError as error:
            raise RecordError("the agent's command cannot be started", got=f"{command[0]}: {error.strerror}",
                              why="every attempt would end the same way", fix="correct environment.agent.command") from error
        try:
            status = started.wait(seconds)
        except subprocess.TimeoutExpired:
            raise OutOfTime from None
        finally:
            _end(started)
        if status:
            raise RecordError(f"the agent ended with status {status}", got=_tail(errors) or _tail(output) or "no output",
                              why="what it left was not meant to be graded")
        return _tail(output)


def unstartable(settings: AgentSettings) -> RecordError | None:
    """Why the command could be started for no attempt; None where it can."""
    program = _filled(settings.command[0], {"rollbook": ROLLBOOK})
    path = settings.variables.get("PATH", os.environ.get("PATH", os.defpath))
    what, fix = "environment.agent.command cannot be started", "correct its first word: an absolute path, or a name on the PATH"
    if os.sep in program and not os.path.isabs(program):
        return RecordError(what, got=program, fix=fix,
                           why="an attempt begins in an empty folder of its own, where this path leads nowhere")
    found = shutil.which(program, path=path)
    if found is None:
        there = os.path.isabs(program) and os.path.exists(program)
        return RecordError(what, got=program, fix="make it executable, or name the interpreter first" if there else fix,
                           why="it is there, and may not be executed" if there else f"there is no such program on {path}"
                           if os.sep not in program else "there is no such file")
    if (interpreter := _interpreter(Path(found))) is not None and not os.path.exists(interpreter):
        return RecordError(what, got=found, why=f"its first line names {interpreter}, which is not there",
                           fix="install the program again, or name its interpreter as the command's first word")
    return None


def _interpreter(program: Path) -> str | None:
    """What a script's first line names to run it; None for every other file."""
    with program.open("rb") as file:
        first = file.readline(4096)
    words = first[2:].split() if first.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words else None


def _end(started: subprocess.Popen[bytes]) -> None:
    """Kills the agent and whatever it started in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()


def _filled(text: str, names: Mapping[str, str]) -> str:
    """The text with what its braces name, in one pass: braces within a value are text."""
    return NAMED.sub(lambda found: names.get(found[1], found[0]), text)


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4 * SAID))
        return file.read(FLOOD).decode("utf-8", "replace")[-SAID:].strip()
