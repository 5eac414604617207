"""A server in a thread of this process, on this machine only; and the file that holds every call."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from rollbook.records import ModelError
from rollbook.serve.app import App
from rollbook.serve.gateway import Gateway

LOOPBACK = "127.0.0.1"
STARTING_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Where the policy answers.

    Example: Serving(address="http://127.0.0.1:41233", token="s3..", gateway=Gateway(...))
    """

    address: str
    token: str
    gateway: Gateway

    def base_url(self, attempt: str) -> str:
        """What an agent is given as OpenAI's base address, so that its calls belong to this attempt."""
        return f"{self.address}/attempts/{attempt}/v1"

    def tools_url(self, attempt: str) -> str:
        """Where the tools of the attempt's environment are called."""
        return f"{self.address}/attempts/{attempt}/tools"


@contextlib.contextmanager
def serving(gateway: Gateway, *, port: int = 0, token: str | None = None, model: str = "policy") -> Iterator[Serving]:
    """The gateway behind HTTP while it is used; port 0 takes a free one."""
    listening = listen(port)
    key = token or secrets.token_urlsafe(24)
    config = uvicorn.Config(App(gateway, token=key, model=model).starlette(), log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="serve", daemon=True)
    thread.start()
    began = time.monotonic()
    while not server.started:
        if not thread.is_alive() or time.monotonic() - began > STARTING_S:
            raise ModelError("the server did not start", got=f"port {listening.getsockname()[1]}")
        time.sleep(0.01)
    try:
        yield Serving(address=f"http://{LOOPBACK}:{listening.getsockname()[1]}", token=key, gateway=gateway)
    finally:
        server.should_exit = True
        thread.join(STARTING_S)
        listening.close()
        gateway.close()


def listen(port: int) -> socket.socket:
    """A listening socket on the loopback address; nothing else can be asked for."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
    except OSError as error:
        listening.close()
        raise ModelError(f"port {port} cannot be used", got=error.strerror or str(error),
                         fix="choose another with --port") from error
    return listening


class CallLog:
    """One JSON line a call, durable before it is answered: exact ids, log-probs, versions. A torn last line is cut on opening."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+")
        self._file.seek(0)
        whole = self._file.read()
        self._file.truncate(whole.rfind(b"\n") + 1)
        self._lock = threading.Lock()

    def __call__(self, document: dict[str, object]) -> None:
        line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
