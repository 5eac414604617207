"""For mini-swe-agent, which loads it by its name: every command that the policy wrote runs in the environment's own shell.

Standard library only, nothing of Rollbook: the agent lives in a Python of its own, which finds this file through PYTHONPATH and
`environment.environment_class=rollbook.serve.mini_workplace.Workplace`.
"""

from __future__ import annotations

import json
import os
import platform
import urllib.request
from typing import Any

DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
ENDED = "[exit status "


class Workplace:
    """The working folder of an attempt, reached at ROLLBOOK_TOOLS. `tool` is the shell among the environment's tools."""

    def __init__(self, tool: str = "shell", timeout: float = 300.0, **more: Any) -> None:
        self.config: dict[str, Any] = {"tool": tool, "timeout": timeout, **more}

    def execute(self, action: Any, cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        """Runs one command and returns what it printed with its status, as the agent's own environments do."""
        command = action.get("command", "") if isinstance(action, dict) else action
        found = self._asked(command, timeout or self.config["timeout"])
        text, status = found["content"], -1 if found["error"] else 0
        head, mark, rest = text.rpartition(ENDED)
        if not found["error"] and mark and rest.endswith("]") and rest[:-1].isdigit():
            text, status = head.rstrip("\n"), int(rest[:-1])
        lines = text.lstrip().splitlines(keepends=True)
        if lines and lines[0].strip() == DONE and status == 0:
            from minisweagent.exceptions import Submitted
            said = "".join(lines[1:])
            raise Submitted({"role": "exit", "content": said, "extra": {"exit_status": "Submitted", "submission": said}})
        return {"output": text, "returncode": status, "exception_info": found["error"] or ""}

    def _asked(self, command: str, timeout: float) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{os.environ['ROLLBOOK_TOOLS']}/{self.config['tool']}", data=json.dumps({"command": command}).encode(),
            headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))       # it is on this machine
        with opener.open(request, timeout=timeout) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def get_template_vars(self, **more: Any) -> dict[str, Any]:
        """What the agent's prompts may name."""
        return {**self.config, **platform.uname()._asdict(), **more}

    def serialize(self) -> dict[str, Any]:
        """The settings, for the agent's own record."""
        return {"info": {"config": {"environment": self.config, "environment_type": f"{__name__}.Workplace"}}}
