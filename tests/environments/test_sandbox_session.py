"""A session: a disk and a Python that last, commands that do not, and nothing that runs between them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from rollbook.environments.sandbox import BubblewrapSandbox
from rollbook.environments.sandbox.packages import shown
from rollbook.environments.sandbox.session import Ran, Session, SessionEnded
from rollbook.environments.sandbox.usage import tree


@pytest.fixture
def session(isolated: BubblewrapSandbox) -> Iterator[Session]:
    made = isolated.open({"a/data.txt": b"seven\n"})
    yield made
    made.close()


def python(session: Session, code: str, seconds: float = 60.0) -> Ran:
    return session.python(code, seconds=seconds, output_bytes=10_000)


def shell(session: Session, command: str, seconds: float = 60.0) -> Ran:
    return session.shell(command, seconds=seconds, output_bytes=10_000)


def test_variables_last_and_the_value_of_a_last_expression_is_printed(session: Session) -> None:
    assert python(session, "import math\nx = math.factorial(5)\nx + 1").output == b"121\n"
    assert python(session, "print(x); x = 'y'").output == b"120\n"
    assert python(session, "x") == Ran(output=b"'y'\n", ended="done")


def test_an_exception_is_told_with_its_own_lines_and_costs_no_variable(session: Session) -> None:
    found = python(session, "x = 1\ndef f():\n    return 1 / 0\nf()")
    assert found.ended == "error" and b"return 1 / 0" in found.output and b"session.py" not in found.output
    assert python(session, "x").output == b"1\n"
    assert b"SyntaxError" in python(session, "x = (").output
    assert b"SystemExit" in python(session, "raise SystemExit(3)").output


def test_code_beyond_its_time_is_interrupted_and_keeps_its_variables(session: Session) -> None:
    assert python(session, "x = 5\nimport time\ntime.sleep(900)", seconds=0.3).ended == "interrupted"
    assert python(session, "x").output == b"5\n"


def test_code_that_holds_on_is_killed_and_the_next_starts_without_variables(session: Session) -> None:
    stubborn = "import signal\nx = 1\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    assert python(session, stubborn, seconds=0.3).ended == "killed"
    assert b"NameError" in python(session, "x").output


def test_the_disk_lasts_and_is_shared_by_python_and_shell(session: Session) -> None:
    assert shell(session, "cat a/data.txt; echo 3 > b").output == b"seven\n"
    assert python(session, "open('b').read()").output == b"'3\\n'\n"
    assert session.read("b", limit=10) == b"3\n"
    assert session.write({"c/d.txt": b"x"}) is None
    assert session.export(limit=100) == {"a/data.txt": b"seven\n", "b": b"3\n", "c/d.txt": b"x"}


def test_exit_statuses_signals_and_time_limits_of_commands_are_three_things(session: Session) -> None:
    assert shell(session, "exit 3").status == 3
    assert shell(session, "kill -SEGV $$").status == -11
    found = shell(session, "sleep 900", seconds=0.3)
    assert (found.ended, found.status) == ("time", -9)
    assert session.shell("yes", seconds=60, output_bytes=1000).ended == "flood"


def test_what_a_command_leaves_running_ends_with_it(session: Session) -> None:
    assert shell(session, "(setsid sleep 900 &) ; sleep 901 & echo ok").output == b"ok\n"
    python(session, "import subprocess\nsubprocess.Popen(['sleep', '902'])")
    assert shell(session, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").output.count(b"sleep") == 0


def test_between_commands_the_python_is_stopped_with_all_its_threads(session: Session) -> None:
    python(session, "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin, daemon=True).start()")
    deadline = time.monotonic() + 5.0           # whoever stopped them may itself still be on its way to sleep
    while (found := states_of(session)).count("T") != 2 or "R" in found:
        assert time.monotonic() < deadline, found


def states_of(session: Session) -> list[str]:
    """What every thread of the session's processes does, as the kernel says it: R runs, S sleeps, T is stopped."""
    states = []
    for process in tree(session._cell.process()):
        for task in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{task}/stat", encoding="utf-8") as file:
                states.append(file.read().rpartition(")")[2].split()[0])
    return states


def test_a_program_that_kills_everything_ends_its_session_for_good(session: Session) -> None:
    with pytest.raises(SessionEnded, match="driver is gone"):
        shell(session, "kill -9 -1")
    with pytest.raises(SessionEnded):
        python(session, "1")


@pytest.mark.parametrize("code", [
    "import os\nopen(f'/proc/{os.getppid()}/mem', 'r+b')", "import os\nos.listdir(f'/proc/{os.getppid()}/fd')",
    "import os\nos.readlink(f'/proc/{os.getppid()}/fd/1')"])
def test_the_driver_cannot_be_read_or_written_by_what_it_runs(session: Session, code: str) -> None:
    assert b"PermissionError" in python(session, code).output


def test_no_descriptor_of_the_driver_reaches_what_it_runs(session: Session) -> None:
    held = python(session, "import os\nlen(os.listdir('/proc/self/fd'))").output
    assert held == b"6\n"                    # three streams, its commands, its outcome, and the listing itself
    assert shell(session, "ls /proc/self/fd").output.split() == [b"0", b"1", b"2", b"3"]


def test_memory_beyond_the_limit_ends_the_python_or_the_session(session: Session) -> None:
    try:
        found = python(session, "held = []\nfor _ in range(4000):\n    held.append(bytearray(2**20))")
        assert b"MemoryError" in found.output or found.ended == "died"
    except SessionEnded as error:
        assert error.limit == "memory"


def test_links_and_too_much_are_not_exported(session: Session) -> None:
    shell(session, "ln -s /etc/passwd link; ln -s / root")
    assert session.export(limit=1000) == {"a/data.txt": b"seven\n"}
    assert session.export(limit=3) == "the files are larger than 3 bytes"


def test_texts_that_no_file_or_command_can_have_are_answered(session: Session) -> None:
    assert shell(session, "echo \0").status == 2
    assert isinstance(session.read("no\0", limit=5), str) and isinstance(session.read("none", limit=5), str)
    assert session.write({"/etc/passwd": b""}) is not None
    assert b"surrogates" in python(session, "x = '\udcff'").output or python(session, "1").output == b"1\n"
    assert python(session, "print('\\udcff')").output == b"\\udcff\n"


def test_closing_leaves_neither_processes_nor_descriptors() -> None:
    sandbox = BubblewrapSandbox(parallel=1)
    sandbox.open().close()                                 # the interpreter and what is made in advance
    before = len(os.listdir("/proc/self/fd"))
    sessions = [sandbox.open() for _ in range(5)]
    roots = [session._cell.process() for session in sessions]
    python(sessions[0], "1")
    for session in sessions[:3]:
        session.close()
    sandbox.close()                                        # ends the others
    assert sessions[4].over is not None
    assert not any(os.path.exists(f"/proc/{root}") for root in roots)
    assert len(os.listdir("/proc/self/fd")) < before


def test_packages_of_this_installation_can_be_seen_inside() -> None:
    sandbox = BubblewrapSandbox(parallel=1, readonly=shown(("pytest",)))
    try:
        session = sandbox.open({"test_one.py": b"def test_one():\n    assert True\n"})
        assert b"1 passed" in shell(session, "python -m pytest -q -p no:cacheprovider").output
        assert b"pytest" in python(session, "import pytest\npytest.__name__").output
    finally:
        sandbox.close()
