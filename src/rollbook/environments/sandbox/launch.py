"""The command line of bubblewrap, and the start of the warm interpreter inside it."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollbook.environments.sandbox.payload import BASE_ENVIRONMENT, PLACE, sealed
from rollbook.records.sandbox import MissingTool, SandboxError

GUEST = Path(__file__).parent / "guest"
START_S = 120.0                          # generous: a busy machine is not a broken one
END_S = 60.0
NOBODY = 65534                           # who the sandbox is for the machine when root starts it; otherwise the user who does
INSIDE = 1000                            # who it is for itself
SYSTEM = ("/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/include")
LINKED = ("/bin", "/lib", "/lib32", "/lib64")
SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives")
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")            # no /dev/zero: it maps memory nobody owns
DATA = {"/etc/passwd": b"sandbox:x:1000:1000::/box:/bin/sh\n", "/etc/group": b"sandbox:x:1000:\n",
        "/etc/hosts": b"127.0.0.1 localhost\n"}
PROBE = "import sys; print(sys.version_info >= (3, 11), sys.base_prefix, sys.version.split()[0])"
OLDEST = "bubblewrap 0.5"                # --clearenv


def as_sandbox_user() -> dict[str, object]:
    """Arguments for Popen: root gives its rights up before anything else happens, another user has none to give up."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"} if os.geteuid() == 0 else {"cwd": "/"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python that the sandbox's user can read.

    Example: Interpreter(path="/usr/bin/python3.11", prefix="/usr", version="3.11.2")
    """

    path: str
    prefix: str
    version: str


def find_interpreter(wanted: Path | None) -> Interpreter:
    """The wanted one; by default the one this process runs on, or else the system's, whichever the sandbox's user can start."""
    own = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    candidates = [str(wanted)] if wanted is not None else [own, "/usr/bin/python3", "/usr/local/bin/python3"]
    for path in candidates:
        try:
            done = subprocess.run([path, "-I", "-c", PROBE], capture_output=True, text=True, timeout=START_S, check=False,
                                  **as_sandbox_user())  # type: ignore[call-overload]
        except (OSError, subprocess.TimeoutExpired):
            continue
        words = done.stdout.split()
        if done.returncode == 0 and words[:1] == ["True"]:
            return Interpreter(path=os.path.realpath(path), prefix=words[1], version=words[2])
    raise MissingTool("no Python that the sandbox's user can start", tool="python3",
                      why=f"tried {', '.join(candidates)}; the sandbox runs as an unprivileged user and needs Python >= 3.11",
                      fix="apt-get install python3, or name an interpreter outside /root and private homes")


def find_bubblewrap() -> str:
    path = shutil.which("bwrap")
    if path is None:
        raise MissingTool("bubblewrap is not installed", tool="bwrap", why="the isolated sandbox is made of its namespaces",
                          fix="apt-get install bubblewrap (Debian, Ubuntu) or dnf install bubblewrap (Fedora)")
    return path


def command(bubblewrap: str, interpreter: Interpreter, readonly: Mapping[str, Path]) -> list[str]:
    """The whole command but for the files that go in as data: what is on it is all that exists in the sandbox."""
    words = [bubblewrap, "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
             "--unshare-cgroup-try", "--uid", str(INSIDE), "--gid", str(INSIDE), "--hostname", "sandbox", "--as-pid-1",
             "--new-session", "--clearenv"]
    for name, value in BASE_ENVIRONMENT.items():
        words += ["--setenv", name, value]
    for path in (*SYSTEM, *SETTINGS):
        words += ["--ro-bind-try", path, path]
    for path in LINKED:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    if interpreter.prefix != "/usr":
        words += ["--ro-bind", interpreter.prefix, interpreter.prefix]
    for target, source in sorted(readonly.items()):
        words += ["--ro-bind", str(source), target]
    for path in DEVICES:
        words += ["--dev-bind", path, path]
    return [*words, "--symlink", "/proc/self/fd", "/dev/fd", "--symlink", "/tmp", "/dev/shm", "--dir", "/tmp", "--dir", PLACE,
            "--proc", "/proc"]


def inner_data() -> dict[str, bytes]:
    """Files made for the sandbox: the guest's code and the little of /etc that programs look at."""
    code = {f"/sandbox/guest/{path.name}": path.read_bytes() for path in sorted(GUEST.glob("*.py"))}
    return {**DATA, **code}


@dataclass(slots=True)
class Zygote:
    """The warm interpreter: `control` takes requests, and when its other end is closed the interpreter ends; `handle` is it."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    handle: int
    owner: int = field(default_factory=os.getpid)

    def close(self) -> None:
        """Ends it with all that runs in it, and waits. In a fork of the process that made it only descriptors are closed."""
        self.control.close()
        if os.getpid() == self.owner:
            try:
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait(END_S)
        os.close(self.handle)


def start(words: list[str], interpreter: Interpreter, packages: list[str]) -> Zygote:
    """A warm interpreter that answered; SandboxError with what bubblewrap said where there is none."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    said = os.memfd_create("said", os.MFD_CLOEXEC)
    passed = [there.fileno()]
    process = None
    try:
        words = list(words)
        for target, data in inner_data().items():
            passed.append(sealed(data, target.rpartition("/")[2]))
            words += ["--perms", "0444", "--ro-bind-data", str(passed[-1]), target]
        code = (f"import sys; sys.path.insert(0, '/sandbox'); from guest.zygote import main; "
                f"main({there.fileno()}, {packages!r})")
        words += ["--remount-ro", "/", "--", interpreter.path, "-s", "-P", "-B", "-c", code]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, pass_fds=passed,
                                   **as_sandbox_user())  # type: ignore[call-overload]
        there.close()
        here.settimeout(START_S)
        message, handles, _, _ = socket.recv_fds(here, 16, 1)
        if message != b"ready" or not handles:
            raise ConnectionError("it ended at its start")
        here.settimeout(None)
        return Zygote(process=process, control=here, handle=handles[0])
    except OSError as error:
        here.close()
        if process is not None:
            process.kill()
            process.wait(END_S)
        raise _not_started(error, os.pread(said, 2000, 0).decode("utf-8", "replace").strip()) from error
    finally:
        there.close()
        for descriptor in (said, *passed[1:]):
            os.close(descriptor)


def wait_readable(descriptor: int, seconds: float) -> bool:
    """Whether the descriptor can be read, or its process ended, within the time."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def _not_started(error: OSError, said: str) -> SandboxError:
    fix = "run `bwrap --unshare-user --unshare-net --ro-bind / / true` by hand to see more"
    if "namespace" in said or "uid map" in said or "Operation not permitted" in said:
        fix = ("allow unprivileged user namespaces: sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000, "
               "on Ubuntu also kernel.apparmor_restrict_unprivileged_userns=0; inside a container run it with its own "
               "namespaces allowed, or use the container backend")
    return SandboxError("bubblewrap did not start", got=said or f"{type(error).__name__}: {error}",
                        why="the isolated sandbox needs user, mount, process, network, IPC and host-name namespaces", fix=fix)
