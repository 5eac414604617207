"""A session whose files and processes are made to trap whoever reads, writes or exports them: nothing hangs or leaks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import pytest

from rollbook.environments.sandbox import BubblewrapSandbox
from rollbook.environments.sandbox.session import Session

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt-get install bubblewrap")
BOUND_S = 60.0      # what the machine may need on its worst day; a trap holds for ever


@pytest.fixture(scope="module")
def sandbox() -> Iterator[BubblewrapSandbox]:
    made = BubblewrapSandbox()
    yield made
    made.close()


@pytest.fixture
def session(sandbox: BubblewrapSandbox) -> Iterator[Session]:
    opened = sandbox.open({"a.txt": b"a"})
    yield opened
    opened.close()


def did(session: Session, command: str) -> str:
    ran = session.shell(command, seconds=20.0, output_bytes=100_000)
    return bytes(ran.output).decode("utf-8", "replace") if isinstance(ran.output, bytes) else str(ran.output)


TRAPS = {
    "a pipe without a writer": "mkfifo pipe; ln -s pipe a-link",
    "links that go round": "ln -s . here; ln -s loop loop; mkdir -p d; ln -s ../d d/d",
    "folders that cannot be entered": "mkdir shut; echo x > shut/x; chmod 000 shut; echo y > y; chmod 000 y",
    "names that are no text": r"touch $'\xff\xfe' $'new\nline' '-rf' ' '; mkdir $'\x80'; touch $'\x80/\x81'",
    "a file of a terabyte that holds nothing": "truncate -s 3M sparse; ln -s /dev/zero zero; ln -s /dev/full full",
    "a socket": "python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.bind('sock')\"",
    "a path longer than any": "n=$(printf %0100d); for i in $(seq 60); do mkdir -p $n && cd $n; done; touch end",
    "links out of the folder": "ln -s /etc/passwd passwd; ln -s /proc/1/environ env; ln -s / root; ln -s ../.. up",
}


@pytest.mark.parametrize("trap", TRAPS)
def test_an_export_comes_back_with_plain_files_alone(session: Session, trap: str) -> None:
    did(session, TRAPS[trap])
    began = time.monotonic()
    found = session.export(limit=2**23, without=())
    assert time.monotonic() - began < BOUND_S
    if isinstance(found, dict):
        assert found.get("a.txt") == b"a" and not {"passwd", "env", "zero", "pipe", "a-link", "sock"} & set(found)
        assert not any(b"root:" in data for data in found.values())


@pytest.mark.parametrize("name", ["pipe", "zero", "full", "env", "loop", "shut/x", "sock"])
def test_reading_and_writing_what_is_no_file_is_answered(session: Session, name: str) -> None:
    for trap in TRAPS.values():
        did(session, f"({trap}) 2>/dev/null")
    began = time.monotonic()
    read, wrote = session.read(name, limit=1000), session.write({name: b"x"})
    assert time.monotonic() - began < BOUND_S
    assert isinstance(read, str) or len(read) <= 1000
    assert wrote is None or isinstance(wrote, str)
    assert did(session, "echo still here").strip() == "still here"


def test_what_a_command_leaves_behind_is_gone_before_the_next(session: Session) -> None:
    did(session, "(trap '' TERM HUP INT; setsid nohup sh -c 'while :; do echo x >> grows; sleep 0.01; done' >/dev/null 2>&1 &)")
    first = did(session, "wc -c < grows 2>/dev/null || echo 0")
    time.sleep(0.2)
    assert did(session, "wc -c < grows 2>/dev/null || echo 0") == first
