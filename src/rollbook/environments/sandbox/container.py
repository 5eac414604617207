"""The container backend: Docker's or Podman's command line behind the same protocol, one container for each program."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rollbook.environments.sandbox.payload import BASE_ENVIRONMENT, packed, sealed
from rollbook.environments.sandbox.supervise import Stream, attend, pipe
from rollbook.records.codec import canonical, digest
from rollbook.records.sandbox import (
    Ending,
    Exceeded,
    Execution,
    Exited,
    Limit,
    Limits,
    MissingTool,
    Program,
    SandboxError,
    SandboxStamp,
    Signalled,
)

Engine = Literal["docker", "podman"]
ANSWER_S = 120.0                         # for the engine's own answers
START_S = 30.0                           # what starting a container may take beyond the program's wall time
NOT_STARTED = (125, 126)                 # the engine's own exit codes: it could not run the container, or the command in it
INSTALL = {"docker": "install Docker and start its daemon", "podman": "apt-get install podman (Debian, Ubuntu)"}
INSIDE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp/box"}
# Reads the payload from its standard input to the byte, so that what follows is the program's input, and becomes the program.
BOOT = """
import json, os, sys
def exactly(count):
    parts = []
    while count:
        part = os.read(0, min(count, 65536))
        if not part:
            sys.exit(125)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
header = json.loads(exactly(int.from_bytes(exactly(8), "big")))
os.makedirs("/tmp/box")
os.chdir("/tmp/box")
for name, size in header["files"]:
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    with open(name, "xb") as file:
        file.write(exactly(size))
    os.chmod(name, 0o755)
os.environ.clear()
os.environ.update(header["environment"])
own = [sys.executable, "-s", "-B", header["source"]] if header["source"] is not None else []
argv = [*own, *header["argv"]]
try:
    os.execvp(argv[0], argv)
except OSError as error:
    print(f"sandbox: {error}", file=sys.stderr)
    os._exit(127)
"""


class ContainerSandbox:
    """Runs each program in a fresh container of an image that has Python >= 3.11 as `python3`, and g++ for C++.

    Limit: `cpu_s` is held by the kernel for each process, not for their sum, and wall time includes the container's start.
    `cpu_s` and `peak_bytes` of an execution are None: the engine's command line does not tell.
    """

    def __init__(self, *, image: str, engine: Engine = "docker"):
        path = shutil.which(engine)
        if path is None:
            raise MissingTool(f"{engine} is not installed", tool=engine, why="the container backend is its command line",
                              fix=INSTALL[engine])
        self._path, self.image = path, image
        identity = self._ask("image", "inspect", "--format", "{{.Id}}", image)
        version = self._ask("version", "--format", "{{.Server.Version}}")
        self.stamp = SandboxStamp(name=engine, strength="isolated", unenforced=(), digest=digest(canonical(
            {"engine": engine, "version": version, "image": identity, "code": digest(Path(__file__).read_bytes())})))

    def run(self, program: Program) -> Execution:
        """What came of the program; SandboxError when the engine failed."""
        name = f"rollbook-{uuid.uuid4().hex}"
        streams: list[Stream] = []
        ends = [sealed(packed(program, {**BASE_ENVIRONMENT, **INSIDE}) + program.stdin, "payload")]
        try:
            for _ in range(2):
                stream, end = pipe(program.limits.output_bytes)
                streams.append(stream)
                ends.append(end)
            began = time.monotonic()
            client = subprocess.Popen(command(self._path, self.image, name, program.limits), stdin=ends[0], stdout=ends[1],
                                      stderr=ends[2])
            while ends:
                os.close(ends.pop())
            exceeded = self._watch(client, streams, began + program.limits.wall_s)
            wall = time.monotonic() - began
            ending = self._ending(name, client, exceeded, wall, program.limits)
            for stream in streams:
                stream.read()
            if not isinstance(ending, Exceeded) and any(stream.over for stream in streams):
                ending = Exceeded(limit="output")
            stdout, stderr = (stream.captured() for stream in streams)
            return Execution(ending=ending, stdout=stdout, stderr=stderr, wall_s=wall, cpu_s=None, peak_bytes=None,
                             sandbox=self.stamp)
        finally:
            for descriptor in (*ends, *(stream.descriptor for stream in streams)):
                os.close(descriptor)
            self._engine("rm", "--force", name)

    def close(self) -> None:
        """Nothing stays between programs."""

    def _watch(self, client: subprocess.Popen[bytes], streams: Sequence[Stream], deadline: float) -> Limit | None:
        handle = os.pidfd_open(client.pid)
        try:
            return attend(streams, done=handle, deadline=deadline, look=lambda: (None, 3600.0))
        finally:
            os.close(handle)

    def _ending(self, name: str, client: subprocess.Popen[bytes], exceeded: Limit | None, wall: float, limits: Limits) -> Ending:
        """Ends the container where it still runs; how it ended is what the engine says, which asks the kernel."""
        if exceeded is not None:
            self._engine("kill", name)
            try:
                client.wait(START_S)
            except subprocess.TimeoutExpired:
                client.kill()
                client.wait()
            return Exceeded(limit=exceeded)
        status = client.wait()
        if status in NOT_STARTED or status < 0:
            raise SandboxError("the container did not start", got=f"exit status {status} of {self._path} run",
                               fix=f"run {self._path} run --rm {self.image} python3 -V by hand")
        out_of_memory, *_ = self._ask("inspect", "--format", "{{.State.OOMKilled}}", name).split()
        if out_of_memory == "true":
            return Exceeded(limit="memory")
        if wall > limits.wall_s:
            return Exceeded(limit="wall")
        number = status - 128
        by_limit: dict[int, Limit] = {signal.SIGXCPU: "cpu", signal.SIGXFSZ: "file_size"}
        if number in by_limit:
            return Exceeded(limit=by_limit[number])
        return Signalled(signal=number) if number in {each.value for each in signal.Signals} else Exited(status=status)

    def _engine(self, *words: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run([self._path, *words], capture_output=True, text=True, timeout=ANSWER_S, check=False,
                                  stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired as error:
            raise SandboxError(f"{Path(self._path).name} {words[0]} did not answer", got=f"nothing within {ANSWER_S} s",
                               why="its daemon hangs or the machine is overloaded", fix="restart the daemon") from error

    def _ask(self, *words: str) -> str:
        done = self._engine(*words)
        if done.returncode != 0 or not done.stdout.strip():
            raise SandboxError(f"{Path(self._path).name} {words[0]} failed", got=done.stderr.strip()[:400] or "no answer",
                               why="the container backend asks the engine", fix="start its daemon, and pull or build the image")
        return done.stdout.strip()


def command(engine: str, image: str, name: str, limits: Limits) -> list[str]:
    """No network, nothing writable but a bounded memory disk, no rights, an unprivileged user, and the engine's own limits."""
    cpu = int(limits.cpu_s) + 1
    return [engine, "run", "--interactive", "--init", "--name", name, "--network", "none", "--read-only",
            "--tmpfs", f"/tmp:rw,exec,nosuid,nodev,size={limits.disk_bytes},mode=1777", "--shm-size", "1m", "--ipc", "private",
            "--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes),
            "--pids-limit", str(limits.processes + 2), "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
            "--user", "65534:65534", "--ulimit", "core=0", "--ulimit", f"cpu={cpu}:{cpu + 1}", "--ulimit", "nofile=128",
            "--ulimit", f"fsize={limits.file_bytes}", "--log-driver", "none", "--workdir", "/tmp", "--entrypoint", "python3",
            image, "-s", "-B", "-c", BOOT]
