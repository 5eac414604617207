"""Sandbox sessions for environments: opened in a thread, their outcomes as replies, what varies by itself removed."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar, cast

from rollbook.environments.builtin.common import Refused
from rollbook.environments.sandbox import BubblewrapSandbox
from rollbook.environments.sandbox.packages import COMMON
from rollbook.environments.sandbox.packages import shown as packages_shown
from rollbook.environments.sandbox.session import Ran, Session, SessionEnded
from rollbook.environments.waiting import as_text, in_thread
from rollbook.records import EnvironmentFault, ReplyError, Services
from rollbook.records.sandbox import Sandbox

T = TypeVar("T")
# What a program prints of the clock and of addresses differs from run to run and says nothing about the task.
TIMES = re.compile(r"\b(in|Ran \d+ tests? in) \d+(?:\.\d+)?(s| seconds?)\b")
ADDRESSES = re.compile(r"\b0x[0-9a-f]{6,16}\b")
ENDINGS: dict[str, tuple[str, ReplyError]] = {
    "interrupted": ("stopped after {seconds:g} s; variables are kept", "timeout"),
    "killed": ("stopped after {seconds:g} s; all variables are lost", "timeout"),
                                              "time": ("stopped after {seconds:g} s", "timeout"),
    "flood": ("stopped: too much output", "flood"), "died": ("the interpreter ended; all variables are lost", "crash"),
}


class Opens(Protocol):
    """A sandbox that has sessions."""

    def open(self, files: Mapping[str, bytes], *, environment: Mapping[str, str] | None = None) -> Session: ...


@functools.lru_cache(maxsize=4)
def sandbox_with(packages: tuple[str, ...]) -> Sandbox:
    """A sandbox that also shows these installed packages; it lives as long as the process. EnvironmentFault where one is
    missing."""
    try:
        for name in packages:
            importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise EnvironmentFault("a package is not installed", code="missing_tool", got=str(error.args[0]),
                               why="the project's tests are to have it", fix="install it beside rollbook, or take it out of "
                                                                             "`packages`") from error
    return BubblewrapSandbox(readonly=packages_shown((*COMMON, *packages)))


def sandbox_of(services: Services, packages: tuple[str, ...]) -> Sandbox:
    """The shared sandbox, or one with further packages where any are named."""
    return sandbox_with(packages) if packages else services.sandbox()


async def opened(services: Services, files: Mapping[str, bytes], environment: Mapping[str, str] | None = None, *,
                 packages: tuple[str, ...] = ()) -> Session:
    """A session with these files. EnvironmentFault where the sandbox has none; MissingTool where it is not installed."""
    sandbox = await in_thread(sandbox_of, services, packages)
    if not hasattr(sandbox, "open"):
        raise EnvironmentFault("the sandbox has no sessions", code="missing_tool", got=sandbox.stamp.name,
                               why="this environment keeps a disk and an interpreter between turns",
                               fix="use the isolated sandbox (apt-get install bubblewrap)")
    return await in_thread(cast(Opens, sandbox).open, files, environment=environment)


async def within(session: Session, work: Callable[[], T]) -> T:
    """What a command of a session gives; Refused when the session is over: the policy ended it, or went beyond its limits."""
    try:
        return await in_thread(work)
    except SessionEnded as ended:
        raise Refused(f"the sandbox was ended by what ran in it{f' (limit: {ended.limit})' if ended.limit else ''}",
                      "crash") from ended


def shown(ran: Ran, seconds: float, limit: int) -> str:
    """What a command printed, at most `limit` characters; Refused with it where the command did not end by itself."""
    text, wrong = as_text(ran.output, limit)
    text = steady(text)
    if ran.ended in ENDINGS:
        said, error = ENDINGS[ran.ended]
        raise Refused(f"{text}\n[{said.format(seconds=seconds)}]".lstrip("\n"), error)
    if ran.status:
        how = f"exit status {ran.status}" if ran.status > 0 else f"signal {-ran.status}"
        text = f"{text.rstrip()}\n[{how}]".lstrip("\n")
    if wrong is not None:
        raise Refused(text, wrong)
    return text or "(no output)"


def steady(text: str) -> str:
    """A text without durations and addresses: `passed in 0.03s` and `0x7f..` become the same in every run."""
    return ADDRESSES.sub("0x...", TIMES.sub(r"\1 ...\2", text))
