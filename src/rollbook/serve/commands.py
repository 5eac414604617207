"""An outside agent as a command of its own: started for one attempt, told where the policy and its tools are, stopped in time."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollbook.records import RecordError
from rollbook.records.recipe import AgentSettings
from rollbook.serve.ending import FLOOD, Flooded, started, status_of
from rollbook.serve.harness import Assignment, OutOfTime

KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE")        # of this process's variables: no keys, no tokens
SAID = 20_000           # characters of an agent's output that are its answer at most
NAMED = re.compile(r"\{(\w+)\}")
ROLLBOOK = str(Path(__file__).parents[2])       # the folder that holds this package


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Runs `settings.command` once for each attempt, in an empty folder that is its home and goes when it ends.

    In the command and its variables stand `{task}`, `{task_file}` (which holds it), `{model}`, `{base_url}`, `{api_key}`,
    `{tools}`, `{folder}` and `{rollbook}` (the folder that holds this package) for what they name. The program finds
    OPENAI_BASE_URL, OPENAI_API_KEY and ROLLBOOK_TOOLS. It runs with the rights of whoever runs the recipe: what the *policy*
    decides to run must go through the environment's tools.
    """

    settings: AgentSettings

    def __call__(self, assignment: Assignment) -> str | None:
        with tempfile.TemporaryDirectory(prefix="rollbook-agent-", ignore_cleanup_errors=True) as folder:
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
        file = Path(folder) / ".task"
        file.write_text(asked, encoding="utf-8")
        return {"task": asked, "task_file": str(file), "model": assignment.model, "base_url": assignment.base_url,
                "api_key": assignment.api_key, "tools": assignment.tools, "folder": folder, "rollbook": ROLLBOOK}

    def _run(self, command: list[str], variables: Mapping[str, str], folder: str, seconds: float | None) -> str:
        outputs = Path(folder) / ".stdout", Path(folder) / ".stderr"
        try:
            with started(command, variables, folder, outputs) as program:
                status = status_of(program, outputs, seconds)
        except TimeoutError:
            raise OutOfTime from None
        except Flooded as error:
            raise RecordError("the agent's output was ended", got=f"more than {FLOOD} bytes", why="it would fill the disk",
                              fix="let it write less to its standard output and standard error") from error
        except (OSError, ValueError) as error:
            raise _unstarted(command, error) from error
        if status:
            raise RecordError(f"the agent ended with status {status}", got=_tail(outputs[1]) or _tail(outputs[0]) or "no output",
                              why="what it left was not meant to be graded")
        return _tail(outputs[0])


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


def _unstarted(command: Sequence[str], error: OSError | ValueError) -> RecordError:
    """Why a program was not started: what its words are, or what it is."""
    longest = max(map(len, command))
    if isinstance(error, ValueError) or error.errno == errno.E2BIG:
        return RecordError("the agent's command cannot be started", got=f"{error}; its longest word has {longest} characters",
                           why="a task stands in it that no command line could hold",
                           fix="let it read the task from the file {task_file}")
    return RecordError("the agent's command cannot be started", got=f"{command[0]}: {error.strerror}",
                       why="every attempt would end the same way", fix="correct environment.agent.command")


def _filled(text: str, names: Mapping[str, str]) -> str:
    """The text with what its braces name, in one pass: braces within a value are text."""
    return NAMED.sub(lambda found: names.get(found[1], found[0]), text)


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4 * SAID))
        return file.read(4 * SAID).decode("utf-8", "replace")[-SAID:].strip()
