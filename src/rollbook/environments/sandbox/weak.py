"""The weak backend: a child process with the kernel's per-process limits. It keeps honest programs in bounds, no others."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from rollbook.environments.sandbox.payload import BASE_ENVIRONMENT, laid_files, sealed
from rollbook.environments.sandbox.supervise import attend, ending, pipe
from rollbook.environments.sandbox.usage import Watcher
from rollbook.records.codec import canonical, digest
from rollbook.records.sandbox import SOURCE_NAME, Exceeded, Execution, Program, SandboxError, SandboxStamp

NAME = "subprocess"
UNENFORCED = ("network", "files outside", "other processes", "number of processes", "disk", "processes that leave the group")
LAUNCH = """
import json, os, resource, sys
limits = json.loads(sys.argv[1])
for name, value in limits.items():
    resource.setrlimit(getattr(resource, name), (value, value))
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(f"sandbox: {error}", file=sys.stderr)
    os._exit(127)
"""


class SubprocessSandbox:
    """Runs programs as children of this process, with this process's rights: only for programs that are trusted anyway.

    `accept_weak` must be true: nothing falls back to this backend, and every execution says that it was a weak one.
    """

    def __init__(self, *, accept_weak: bool = False):
        if not accept_weak:
            raise SandboxError("the subprocess backend does not isolate", got="accept_weak = False",
                               why=f"it does not hold back: {', '.join(UNENFORCED)}",
                               fix="use the bubblewrap or the container backend, or say accept_weak=True")
        self.stamp = SandboxStamp(name=NAME, strength="weak", unenforced=UNENFORCED, digest=digest(canonical(
            {"code": digest(Path(__file__).read_bytes()), "python": sys.version, "machine": os.uname().machine})))

    def run(self, program: Program) -> Execution:
        """What came of the program."""
        with tempfile.TemporaryDirectory(prefix="rollbook-weak-", ignore_cleanup_errors=True) as folder:
            for name, data in laid_files(program).items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                path.chmod(0o755)
            return self._run(program, folder)

    def close(self) -> None:
        """Nothing stays between programs."""

    def _run(self, program: Program, folder: str) -> Execution:
        limits = program.limits
        with contextlib.ExitStack() as closing:
            stdout, out = pipe(limits.output_bytes)
            stderr, err = pipe(limits.output_bytes)
            given = sealed(program.stdin, "stdin")
            for descriptor in (stdout.descriptor, stderr.descriptor):
                closing.callback(os.close, descriptor)
            began = time.monotonic()
            try:
                process = subprocess.Popen(_command(program), stdin=given, stdout=out, stderr=err, cwd=folder,
                                           start_new_session=True, env={**BASE_ENVIRONMENT, "HOME": folder, "TMPDIR": folder,
                                                                        **program.environment})
            finally:
                for descriptor in (out, err, given):
                    os.close(descriptor)
            watcher, handle = Watcher(process.pid, limits), os.pidfd_open(process.pid)
            closing.callback(os.close, handle)
            exceeded = attend([stdout, stderr], done=handle, deadline=began + limits.wall_s, look=watcher)
            wall = time.monotonic() - began
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            for stream in (stdout, stderr):
                stream.read()
        if exceeded is None and (stdout.over or stderr.over):
            exceeded = "output"
        peak, cpu = watcher.memory_bytes, used.ru_utime + used.ru_stime   # ru_maxrss would begin with this process's own size
        report = {"status": status, "wall_s": wall, "cpu_s": cpu, "peak_bytes": peak}
        return Execution(ending=Exceeded(limit=exceeded) if exceeded else ending(report, limits), stdout=stdout.captured(),
                         stderr=stderr.captured(), wall_s=wall, cpu_s=cpu, peak_bytes=peak or None, sandbox=self.stamp)


def _command(program: Program) -> list[str]:
    limits = asdict(program.limits)
    kernel = {"RLIMIT_CPU": int(limits["cpu_s"]) + 1, "RLIMIT_FSIZE": limits["file_bytes"], "RLIMIT_CORE": 0,
              "RLIMIT_AS": limits["memory_bytes"] + 2**30}
    own = [sys.executable, "-s", "-B", SOURCE_NAME] if program.source is not None else []
    return [sys.executable, "-I", "-S", "-c", LAUNCH, json.dumps(kernel), *own, *program.argv]
