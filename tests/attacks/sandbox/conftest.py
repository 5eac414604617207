"""The host that is attacked, and the runners that attacks are given to."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_cases import MARKER, PATIENT, SECRET

from rollbook.environments.sandbox import BubblewrapSandbox, CodeRunner, isolated_runner


@pytest.fixture(scope="package")
def facts() -> Iterator[dict[str, str]]:
    """Real things of the host that an attack would find if it could: services that listen, a readable secret, an open folder."""
    folder = Path(tempfile.mkdtemp(prefix="attacked-"))
    folder.chmod(0o777)
    secret = folder / "expected.txt"
    secret.write_text(SECRET)
    secret.chmod(0o666)
    unix = socket.AF_UNIX
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(unix) as file, socket.socket(unix) as name:
        file.bind(str(folder / "service"))
        os.chmod(folder / "service", 0o777)
        name.bind(f"\0attacked-{os.getpid()}")
        file.listen()
        name.listen()
        yield {"port": str(tcp.getsockname()[1]), "socket": str(folder / "service"), "abstract": f"attacked-{os.getpid()}",
               "secret": str(secret), "folder": str(folder), "marker": MARKER, "pattern": MARKER.replace("q", "[q]")}
    shutil.rmtree(folder)


@pytest.fixture(scope="package")
def python() -> Iterator[CodeRunner]:
    runner = CodeRunner(BubblewrapSandbox(parallel=2), languages=("python",), parallel=2, test=PATIENT)
    yield runner
    runner.close()


@pytest.fixture(scope="package")
def cpp() -> Iterator[CodeRunner]:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed: apt-get install g++")
    runner = isolated_runner(("python", "cpp"), parallel=2)
    runner.test = PATIENT
    yield runner
    runner.close()
