"""A program that answers JSON lines in an interpreter of its own: what it refuses, fails at, prints, and when it is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollbook.environments.elsewhere import Elsewhere, NotGiven, running
from rollbook.records import EnvironmentFault

PROGRAM = """
import json, os, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    n, op = asked["n"], asked["op"]
    if op == "gone":
        print("it fell over", file=sys.stderr, flush=True); sys.exit(3)
    if op == "hang":
        time.sleep(60)
    found = {"refused": {"refused": "no"}, "failed": {"failed": "ValueError: no"}, "noise": None,
             "env": {"found": sorted(os.environ)}}.get(op, {"found": asked})
    print("noise" if found is None else json.dumps({"n": n, **found}), flush=True)
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Elsewhere]:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    found = Elsewhere((sys.executable, "-S", str(file)), {"OWN": "1"}, isolated=False)
    yield found
    found.close()


def test_it_answers_refuses_and_fails_in_types_of_their_own(program: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    assert program.ask("echo", 20.0, text="\u00e4\n")["text"] == "\u00e4\n"
    with pytest.raises(NotGiven, match="no"):
        program.ask("refused", 20.0)
    with pytest.raises(EnvironmentFault, match="failed"):
        program.ask("failed", 20.0)
    assert "OWN" in (names := program.ask("env", 20.0)) and not [name for name in names if "KEY" in name or "TOKEN" in name]


@pytest.mark.parametrize(("op", "words"), [("gone", "it fell over"), ("hang", "no answer"), ("noise", "is gone")])
def test_one_that_is_gone_hangs_or_answers_nonsense_is_at_fault_and_is_not_asked_again(
        program: Elsewhere, op: str, words: str) -> None:
    with pytest.raises(EnvironmentFault, match=words):
        program.ask(op, 0.5 if op == "hang" else 20.0)
    assert not program.usable and program.process.poll() is not None
    with pytest.raises(EnvironmentFault, match="is gone"):
        program.ask("echo", 20.0)


def test_an_isolated_one_reads_all_writes_one_folder_and_cannot_undo_that(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("""
import ctypes, json, os, socket, sys
def tried(work):
    try:
        return work() or "done"
    except OSError as error:
        return error.strerror
def remounted():
    flags = 4096 | 32                                          # MS_BIND | MS_REMOUNT, without MS_RDONLY
    if ctypes.CDLL(None, use_errno=True).mount(b"none", b"/", None, flags, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def connected():
    socket.create_connection(("192.0.2.1", 80), 1)
for line in sys.stdin:
    if "hang" in line:
        import subprocess, time
        subprocess.Popen([sys.executable, "-S", __file__, "child"], start_new_session=True, stdin=subprocess.PIPE)
        time.sleep(600)
    here = os.path.dirname(__file__)
    found = [open(__file__).read()[:1] != "", tried(lambda: open(here + "/new", "w").close()), tried(remounted),
             tried(lambda: open(here + "/new", "w").close()), tried(lambda: open(os.environ["TMPDIR"] + "/x", "w").close()),
             tried(connected), len([one for one in os.listdir("/proc") if one.isdigit()]) < 5]
    print(json.dumps({"n": json.loads(line)["n"], "found": found}), flush=True)
""")
    one = Elsewhere((sys.executable, "-S", str(file)), {}, isolated=True)
    try:
        read, written, remounted, again, own, connected, alone = one.ask("try", 60.0)
        with pytest.raises(EnvironmentFault, match="no answer"):
            one.ask("hang", 1.0)
    finally:
        one.close()
    for _ in range(100):        # the kernel ends what is inside a moment after the outer one
        left = [place for place in Path("/proc").iterdir() if place.name.isdigit() and str(file) in _command(place)]
        if not left:
            break
        time.sleep(0.1)
    assert not left, "nothing that it started outlives it"
    assert read and alone and own == "done" and not (tmp_path / "new").exists()
    assert "done" not in (written, remounted, again, connected)


def _command(place: Path) -> str:
    try:
        return (place / "cmdline").read_text()
    except OSError:
        return ""


def test_one_that_ended_is_started_again_and_a_fork_starts_its_own(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    def asked() -> Any:
        return running((sys.executable, "-S", str(file)), {}, isolated=False)
    first = asked()
    assert asked() is first
    first.process.kill()
    first.process.wait()
    second = asked()
    assert second is not first and second.ask("echo", 20.0)["op"] == "echo"
    child = os.fork()
    if child == 0:
        own = asked()
        fine = own is not second and own.ask("echo", 20.0)["op"] == "echo"
        own.close()
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0 and second.usable
    second.close()


def test_it_ends_with_its_input(program: Elsewhere) -> None:
    assert program.process.stdin is not None
    program.process.stdin.close()
    for _ in range(200):
        if program.process.poll() is not None:
            break
        time.sleep(0.02)
    assert program.process.poll() == 0


def test_a_process_that_is_to_end_with_another_ends_when_that_is_killed() -> None:
    inner = ("import os, time; from rollbook.environments.elsewhere import end_with; end_with(os.getppid()); "
             "print(os.getpid(), flush=True)")
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner + '; time.sleep(60)'!r}])"
    parent = subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    assert parent.stdout.read() == b""      # the other end is closed: nobody holds it any more
    with pytest.raises(ProcessLookupError):
        for _ in range(200):
            os.kill(child, 0)
            time.sleep(0.05)
