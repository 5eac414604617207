"""Generators as processes of this machine: each may be killed at any time."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from rollbook.orchestration.runtimes.fleet import Told
from rollbook.orchestration.runtimes.host import Host, HostSpec
from rollbook.records import AttemptId, Dispatch, Task

LOOK_S = 0.05       # how long an idle generator sleeps at most
END_S = 5.0         # how long it has to end before it is killed
KEPT = 2            # publications whose files stay: one may still be read while the next is written


class Processes:
    """Builds generators of this description. Weights pass through files in memory, one a version."""

    name = "process"

    def __init__(self, spec: HostSpec):
        self.spec = spec
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._folder = Path(tempfile.mkdtemp(prefix="rollbook-weights-", dir=memory))
        self._remover = weakref.finalize(self, shutil.rmtree, str(self._folder), True)

    def share(self, weights: Mapping[str, Tensor], version: int) -> object:
        """A file of these weights, whose name appears whole or not at all."""
        target = self._folder / f"{version:08d}.safetensors"
        part = target.with_suffix(".part")
        save_file({name: value.cpu().contiguous() for name, value in weights.items()}, str(part))
        os.replace(part, target)
        for old in sorted(self._folder.glob("*.safetensors"))[:-KEPT]:
            old.unlink()
        return str(target)

    def build(self, say: Callable[[Told], None], die: Callable[[str], None]) -> ProcessRemote:
        return ProcessRemote(self.spec, say, die)


class ProcessRemote:
    """A generator in a process of its own; a thread here hears what it says and notices when it is gone."""

    def __init__(self, spec: HostSpec, say: Callable[[Told], None], die: Callable[[str], None]):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(spec, theirs), daemon=True, name="rollbook-generator")
        self.process.start()
        theirs.close()
        self._sending = threading.Lock()
        threading.Thread(target=self._listen, args=(say, die), daemon=True, name="rollbook-listener").start()

    def load(self, weights: object, version: int) -> None:
        self._send(("load", weights, version))

    def start(self, dispatch: Dispatch, task: Task, attempts: Sequence[AttemptId]) -> None:
        self._send(("start", dispatch, task, tuple(attempts)))

    def cancel(self, scope: str) -> None:
        self._send(("cancel", scope))

    def close(self) -> None:
        self._send(("close",))
        self.process.join(END_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _send(self, message: tuple[object, ...]) -> None:
        try:
            with self._sending:
                self._pipe.send(message)
        except OSError:
            pass                    # it is gone; whoever listens says so, and what it had is given to the next

    def _listen(self, say: Callable[[Told], None], die: Callable[[str], None]) -> None:
        try:
            while True:
                say(self._pipe.recv())
        except (EOFError, OSError):
            self.process.join(END_S)
            die(f"exit status {self.process.exitcode}")


def serve(spec: HostSpec, pipe: Connection) -> None:
    """The life of a generator's process: it ends when it is told to, or when its parent is gone."""
    host = Host(spec)
    try:
        while True:
            while pipe.poll(0 if host.busy else LOOK_S):
                match pipe.recv():
                    case ("load", path, version):
                        pipe.send(Told(loaded=(version, host.load(load_file(path), version))))
                    case ("start", dispatch, task, attempts):
                        host.start(dispatch, task, attempts)
                    case ("cancel", scope):
                        pipe.send(Told(ended=tuple(host.cancel(scope))))
                    case _:
                        return
            if host.busy and (ended := host.advance()):
                pipe.send(Told(ended=tuple(ended)))
    except (EOFError, OSError):
        return
    finally:
        host.close()
