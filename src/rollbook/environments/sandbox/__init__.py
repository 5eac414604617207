"""Where untrusted programs run: bubblewrap around a warm interpreter, a container, or, when asked for, a plain child process."""

from rollbook.environments.sandbox.bubblewrap import BubblewrapSandbox
from rollbook.environments.sandbox.container import ContainerSandbox
from rollbook.environments.sandbox.solutions import COMPILATION, TEST, CodeRunner, isolated_runner
from rollbook.environments.sandbox.tools import Missing, missing_tools
from rollbook.environments.sandbox.weak import SubprocessSandbox

__all__ = [
    "COMPILATION",
    "TEST",
    "BubblewrapSandbox",
    "CodeRunner",
    "ContainerSandbox",
    "Missing",
    "SubprocessSandbox",
    "isolated_runner",
    "missing_tools",
]
