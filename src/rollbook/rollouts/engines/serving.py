"""A vLLM server of a run's own: started in vLLM's environment, waited for, ended with the run."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import rollbook
from rollbook.records import ModelError, Unserved
from rollbook.records.recipe import Vllm
from rollbook.rollouts.engines.wire import Unanswered, Wire

LOOK_S = 0.5
END_S = 20.0        # how long a server has to end before it is killed
LAST_WORDS = 3000   # characters of its log that an error shows
WORKER = "rollbook.rollouts.engines.vllm.Taking"
BACKEND = "rollbook_file"
ENTRY = "vllm.entrypoints.launchers.api_server.entry"       # the CPU build has no `vllm serve`: it looks for its own version
SOURCE = Path(rollbook.__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The model that a server begins with: its folder, precision and context in tokens."""

    folder: Path
    dtype: torch.dtype
    context: int


def command(settings: Vllm, model: Offered, port: int) -> list[str]:
    """What starts a server that this package can sample from; the same line serves a server that is started by hand."""
    if settings.python is None:
        raise ModelError("no python to start a vLLM server with", got="run.engine.python is not set")
    return [settings.python, "-m", ENTRY, "--model", str(model.folder), "--host", "127.0.0.1",
            "--port", str(port), "--dtype", str(model.dtype).removeprefix("torch."), "--max-model-len", str(model.context),
            "--logprobs-mode", "processed_logprobs", "--max-logprobs", str(max(settings.shown, 1)),
            "--return-tokens-as-token-ids", "--enable-scale-out", "--worker-extension-cls", WORKER,
            "--weight-transfer-config", f'{{"backend": "{BACKEND}"}}', *settings.arguments]


def surroundings(inherited: dict[str, str]) -> dict[str, str]:
    """The environment of such a server: its endpoints for training are behind its developer mode; it binds no core to itself, for
    the learner computes on the same ones."""
    path = os.pathsep.join([str(SOURCE), *filter(None, [inherited.get("PYTHONPATH")])])
    return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", **inherited, "VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": path,
            "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


@contextlib.contextmanager
def started(settings: Vllm, model: Offered) -> Iterator[str]:
    """The address of a server of this model, while it is used. Raises `Unserved` where it does not come up in time."""
    port = free_port()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command(settings, model, port), env=surroundings(dict(os.environ)), stdout=log,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, Wire(url), settings.start_s, log.fileno())
            yield url
        finally:
            _end(process)


def _wait(process: subprocess.Popen[bytes], wire: Wire, seconds: float, log: int) -> None:
    deadline = time.monotonic() + seconds
    while True:
        ended = process.poll()
        if ended is not None or time.monotonic() > deadline:
            raise Unserved("the vLLM server of this run did not come up", code="unreachable" if ended is not None else "timeout",
                           got=f"exit status {ended}" if ended is not None else f"no answer within {seconds:g} s",
                           why=f"its last words: {_tail(log)}", fix="mend what they say; is run.engine.python that of "
                           "an environment with vllm (make .venv-vllm/.installed)?")
        try:
            wire.get("/health", seconds=LOOK_S * 4)
            return
        except Unanswered:
            time.sleep(LOOK_S)


def _tail(log: int) -> str:
    size = os.fstat(log).st_size
    return os.pread(log, LAST_WORDS, max(0, size - LAST_WORDS)).decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """The server and the processes that it started."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])
