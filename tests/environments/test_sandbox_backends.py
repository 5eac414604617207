"""What every backend promises, what only the isolated one does, and what is left when everything is over: nothing."""

from __future__ import annotations

import glob
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from patience import PATIENT
from sandbox_processes import programs

from rollbook.environments.sandbox import BubblewrapSandbox, SubprocessSandbox, bubblewrap, missing_tools
from rollbook.environments.sandbox.supervise import ending
from rollbook.environments.sandbox.usage import tree, usage
from rollbook.records.sandbox import Exceeded, Exited, MissingTool, Program, SandboxError, Signalled

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed: "
                                      "apt-get install bubblewrap")
pytestmark = needs_bubblewrap


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(processes: list[int], seconds: float = 5.0) -> bool:
    until = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < until:
        time.sleep(0.01)
    return not any(map(alive, processes))


def all_of(sandbox: BubblewrapSandbox) -> list[int]:
    return [process for zygote in sandbox._zygotes for process in tree(zygote.process.pid)]


def test_output_error_status_and_stamp_come_back(run, sandbox) -> None:
    done = run("import sys\nprint(input() + '!')\nprint('no', file=sys.stderr)\nsys.exit(3)", stdin=b"yes")
    assert (done.stdout.data, done.stderr.data, done.ending) == (b"yes!\n", b"no\n", Exited(status=3))
    assert done.sandbox == sandbox.stamp and not done.stdout.truncated
    assert 0 < done.cpu_s < 2 and 0 < done.wall_s < 120


def test_an_argv_runs_with_its_files_in_a_folder_of_its_own(sandbox) -> None:
    files = {"a/b": b"inner\n", "c": b""}
    done = sandbox.run(Program(argv=("/bin/sh", "-c", "ls; cat a/b; echo $0"), files=files, limits=PATIENT))
    assert done.stdout.data == b"a\nc\ninner\n/bin/sh\n"


def test_a_command_that_does_not_exist_is_the_programs_own_failure(sandbox) -> None:
    done = sandbox.run(Program(argv=("/no/such",), limits=PATIENT))
    assert done.ending == Exited(status=127) and b"No such file" in done.stderr.data


def test_nothing_of_the_environment_is_inherited(run, monkeypatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    done = run("import os\nprint(sorted(set(os.environ) - {'HOME', 'LANG', 'PATH', 'TMPDIR', 'PYTHONHASHSEED', 'LC_CTYPE'}))",
               environment={"GIVEN": "1"})
    assert done.stdout.data == b"['GIVEN']\n"


@pytest.mark.parametrize(("source", "limits", "ending"), [
    ("import time; time.sleep(60)", {"wall_s": 0.5}, Exceeded(limit="wall")),
    ("while True: pass", {"cpu_s": 0.3}, Exceeded(limit="cpu")),
    ("x = bytearray(10 ** 9)\nfor i in range(0, 10 ** 9, 4096): x[i] = 1", {}, Exceeded(limit="memory")),
    ("while True: print('x' * 999)", {"output_bytes": 1000}, Exceeded(limit="output")),
    ("import sys\nwhile True: sys.stderr.write('x' * 999)", {"output_bytes": 1000}, Exceeded(limit="output")),
    ("import signal\nsignal.signal(25, signal.SIG_DFL)\nopen('f', 'wb').write(bytes(9999))", {"file_bytes": 1000},
     Exceeded(limit="file_size")),
    ("import os; os.abort()", {}, Signalled(signal=signal.SIGABRT)),
    ("raise SystemExit(300)", {}, Exited(status=44)),
    ("raise SystemExit('text')", {}, Exited(status=1)),
    ("raise SystemExit", {}, Exited(status=0)),
    ("1 / 0", {}, Exited(status=1)),
    ("(", {}, Exited(status=1)),
], ids=lambda value: str(value)[:24])
def test_an_end_has_one_type(run, source: str, limits, ending) -> None:
    assert run(source, limits=replace(PATIENT, **limits)).ending == ending


def test_output_at_the_limit_is_whole_and_beyond_it_cut(run) -> None:
    exact = run("print('x' * 999)", limits=replace(PATIENT, output_bytes=1000))
    assert exact.ending == Exited(status=0) and not exact.stdout.truncated and len(exact.stdout.data) == 1000
    over = run("print('x' * 1000)", limits=replace(PATIENT, output_bytes=1000))
    assert over.ending == Exceeded(limit="output") and over.stdout.truncated and len(over.stdout.data) == 1000


@pytest.mark.parametrize("source", ["print(1)\nraise ValueError('own')", "def f(): raise ValueError('own')\nf()", "x ="])
def test_an_error_is_told_as_an_interpreter_tells_it(isolated, source: str) -> None:
    told = isolated.run(Program(source=source.encode(), limits=PATIENT)).stderr.data.decode()
    assert 'File "/box/program.py", line ' in told and "/sandbox" not in told
    assert told.splitlines()[-1].startswith(("ValueError: own", "SyntaxError"))


def test_a_script_is_the_main_module_and_leaves_as_one(isolated) -> None:
    source = (b"import atexit, threading, time, sys\natexit.register(print, 'last')\n"
              b"threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n"
              b"assert sys.modules['__main__'].atexit is atexit\nprint(__name__, sys.argv, __file__)\n"
              b"sys.stdout.write('no newline ')\n")
    done = isolated.run(Program(source=source, limits=PATIENT))
    assert done.stdout.data == b"__main__ ['program.py'] /box/program.py\nno newline thread\nlast\n"


def test_memory_of_a_killed_program_is_told(isolated) -> None:
    source = b"x = bytearray(10 ** 9)\nfor i in range(0, 10 ** 9, 4096): x[i] = 1"
    done = isolated.run(Program(source=source, limits=PATIENT))
    assert done.peak_bytes > PATIENT.memory_bytes and done.cpu_s > 0


@pytest.mark.parametrize(("change", "expected"), [
    ({}, Exited(status=0)),
    ({"status": 7 << 8}, Exited(status=7)),
    ({"status": signal.SIGSEGV}, Signalled(signal=signal.SIGSEGV)),
    ({"status": signal.SIGXCPU}, Exceeded(limit="cpu")),
    ({"status": signal.SIGXFSZ}, Exceeded(limit="file_size")),
    ({"status": None}, Exceeded(limit="wall")),
    ({"wall_s": PATIENT.wall_s + 0.1}, Exceeded(limit="wall")),
    ({"cpu_s": PATIENT.cpu_s + 0.1}, Exceeded(limit="cpu")),
    ({"peak_bytes": PATIENT.memory_bytes + 1}, Exceeded(limit="memory")),
    ({"peak_bytes": PATIENT.memory_bytes + 1, "status": signal.SIGKILL}, Exceeded(limit="memory")),
], ids=str)
def test_what_a_program_used_decides_even_if_no_look_saw_it(change, expected) -> None:
    report = {"status": 0, "wall_s": 0.1, "cpu_s": 0.1, "peak_bytes": 1000, **change}
    assert ending(report, PATIENT) == expected


def test_the_largest_memory_of_a_short_program_is_known(isolated) -> None:
    source = b"x = bytes(60_000_000)\ny = bytearray(b'x') * 60_000_000\ndel x, y"
    assert 60_000_000 < isolated.run(Program(source=source, limits=PATIENT)).peak_bytes < 200_000_000


def test_shared_pages_are_counted_once(isolated) -> None:
    """Twelve children share 40 MB with their parent: the plain sum is above the limit, what is really used is not."""
    source = b"import os, time\nx = b'x' * 40_000_000\n" \
             b"for _ in range(12):\n    if os.fork() == 0:\n        time.sleep(0.6); os._exit(0)\ntime.sleep(0.6)"
    assert isolated.run(Program(source=source, limits=PATIENT)).ending == Exited(status=0)


def test_the_weak_backend_must_be_asked_for_and_says_that_it_is_weak(weak, isolated) -> None:
    with pytest.raises(SandboxError, match="does not isolate"):
        SubprocessSandbox()
    done = weak.run(Program(source=b"", limits=PATIENT))
    assert done.sandbox.strength == "weak" and "network" in done.sandbox.unenforced
    assert isolated.run(Program(source=b"", limits=PATIENT)).sandbox.strength == "isolated"


def test_the_digest_covers_what_is_in_the_sandbox(isolated, tmp_path) -> None:
    with_folder = BubblewrapSandbox(readonly={"/data": tmp_path})
    again = BubblewrapSandbox(parallel=7)
    assert with_folder.stamp.digest != isolated.stamp.digest == again.stamp.digest


def test_programs_of_many_threads_get_their_own_answers(isolated) -> None:
    def ask(number: int) -> bytes:
        source = f"import time\ntime.sleep({number % 3} / 100)\nprint({number}, input())"
        return isolated.run(Program(source=source.encode(), stdin=str(number).encode(), limits=PATIENT)).stdout.data
    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(ask, range(48))) == [f"{number} {number}\n".encode() for number in range(48)]


def test_no_more_programs_run_at_a_time_than_agreed() -> None:
    sandbox = BubblewrapSandbox(parallel=2)
    try:
        stop, most = threading.Event(), [0]
        sandbox.run(Program(source=b"", limits=PATIENT))

        def watch() -> None:
            while not stop.is_set():
                most[0] = max(most[0], len(programs(sandbox._zygotes[0].process.pid)))
                time.sleep(0.005)
        watcher = threading.Thread(target=watch)
        watcher.start()
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: sandbox.run(Program(source=b"import time; time.sleep(0.1)", limits=PATIENT)), range(8)))
        stop.set()
        watcher.join()
        assert most[0] == 2
    finally:
        sandbox.close()


def test_a_closed_sandbox_has_no_process_and_refuses_work() -> None:
    sandbox = BubblewrapSandbox()
    sandbox.run(Program(source=b"", limits=PATIENT))
    processes = all_of(sandbox)
    assert len(list(filter(alive, processes))) >= 2          # those of the program that ran may be ending
    sandbox.close()
    assert gone(processes)
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run(Program(source=b"", limits=PATIENT))


def test_a_forgotten_sandbox_leaves_no_process() -> None:
    sandbox = BubblewrapSandbox()
    sandbox.run(Program(source=b"", limits=PATIENT))
    processes = all_of(sandbox)
    del sandbox
    assert gone(processes)


def test_an_interpreter_that_the_machine_ended_is_replaced(isolated) -> None:
    isolated.run(Program(source=b"", limits=PATIENT))
    bubblewrap, interpreter, *_ = all_of(isolated)
    os.kill(interpreter, signal.SIGKILL)
    assert gone([bubblewrap, interpreter])
    assert isolated.run(Program(source=b"print(1)", limits=PATIENT)).stdout.data == b"1\n"


def test_a_program_whose_process_1_was_ended_is_a_program_that_was_killed(isolated) -> None:
    isolated.run(Program(source=b"", limits=PATIENT))

    def strike() -> None:
        while not (found := programs(isolated._zygotes[0].process.pid)):
            time.sleep(0.01)
        os.kill(int(Path(f"/proc/{found[0]}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    threading.Thread(target=strike).start()
    done = isolated.run(Program(source=b"import time; time.sleep(30)", limits=PATIENT))
    assert done.ending == Signalled(signal=signal.SIGKILL)


def test_a_program_in_a_sandbox_that_is_closed_is_not_to_blame() -> None:
    sandbox = BubblewrapSandbox()
    sandbox.run(Program(source=b"", limits=PATIENT))

    def close() -> None:
        while not programs(sandbox._zygotes[0].process.pid):
            time.sleep(0.01)
        sandbox.close()
    threading.Thread(target=close).start()
    with pytest.raises(SandboxError, match="ended while a program ran in it"):
        sandbox.run(Program(source=b"import time; time.sleep(60)", limits=PATIENT))


def test_a_program_that_was_killed_when_the_machine_had_no_memory_left_is_not_to_blame(isolated, monkeypatch) -> None:
    kills = itertools.count()
    monkeypatch.setattr(bubblewrap, "oom_kills", lambda: next(kills))
    with pytest.raises(SandboxError, match="ran out of memory"):
        isolated.run(Program(source=b"import os; os.kill(os.getpid(), 9)", limits=PATIENT))
    assert isolated.run(Program(source=b"raise SystemExit(9)", limits=PATIENT)).ending == Exited(status=9)


HOST = """
import signal, threading
from rollbook.environments.sandbox import TEST, BubblewrapSandbox
from rollbook.environments.sandbox.usage import tree
from rollbook.records.sandbox import Program
signal.signal(signal.SIGINT, signal.default_int_handler)
sandbox = BubblewrapSandbox(parallel=1)
sandbox.run(Program(source=b"", limits=TEST))
if {busy}:
    threading.Thread(target=sandbox.run, args=(Program(source=b"import os, time; os.fork(); time.sleep(60)", limits=TEST),),
                     daemon=True).start()
while len(found := list(tree(sandbox._zygotes[0].process.pid))) < (6 if {busy} else 3):
    pass
print(*found, flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_nothing_outlives_a_host_that_was_stopped(how: signal.Signals, busy: bool) -> None:
    host = subprocess.Popen([sys.executable, "-c", textwrap.dedent(HOST.format(busy=busy))], stdout=subprocess.PIPE, text=True,
                            stderr=subprocess.DEVNULL)
    processes = list(map(int, host.stdout.readline().split()))
    assert len(processes) >= 2
    host.send_signal(how)
    host.wait(10)
    host.stdout.close()
    assert gone(processes)


def test_three_hundred_executions_leave_no_process_descriptor_thread_or_file(isolated) -> None:
    sources = (b"print(1)", b"import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60)",
               b"while True: print('x' * 9999)",
               b"import os; os.abort()", b"open('/tmp/f', 'wb').write(bytes(10 ** 6)); import os; os.mkdir('/tmp/d')", b"(")

    def state() -> tuple[int, int, int, list[str], int]:
        return (len(all_of(isolated)), len(os.listdir("/proc/self/fd")), threading.active_count(),
                sorted(glob.glob("/tmp/rollbook*")), len(Path("/proc/self/mountinfo").read_text().splitlines()))
    def settles(until: float) -> bool:
        """Bubblewrap, its interpreter and namespaces for the next programs are there, and nothing else."""
        while len(all_of(isolated)) != 2 + isolated.parallel and time.monotonic() < until:
            time.sleep(0.02)
        return len(all_of(isolated)) == 2 + isolated.parallel
    isolated.run(Program(source=b"", limits=PATIENT))
    assert settles(time.monotonic() + 60.0)
    before = state()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: isolated.run(Program(source=sources[number % len(sources)], limits=PATIENT)), range(300)))
    assert settles(time.monotonic() + 60.0)
    after = state()
    assert (after[0], *after[3:]) == (before[0], *before[3:])
    assert after[1] <= before[1] and after[2] <= before[2]      # what the test before it left may still have been going away


def test_without_bubblewrap_the_error_says_what_to_install(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingTool, match="apt-get install bubblewrap") as missing:
        BubblewrapSandbox()
    assert missing.value.tool == "bwrap"
    assert [each.tool for each in missing_tools(("python",))] == ["bwrap"]


def test_nothing_is_missing_where_everything_is_installed() -> None:
    assert missing_tools(("python",)) == ()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that the sandbox's user can read, too."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_machine_without_namespaces_is_told_how_to_allow_them(monkeypatch, open_folder) -> None:
    path = open_folder / "bwrap"
    path.write_text('#!/bin/sh\necho "bwrap: No permissions to create new namespace" >&2\nexit 1\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{open_folder}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match="allow unprivileged user namespaces") as refusal:
        BubblewrapSandbox().run(Program(source=b"", limits=PATIENT))
    assert "No permissions to create new namespace" in str(refusal.value)
    [missing] = missing_tools(("python",))
    assert missing.tool == "namespaces" and "sysctl" in missing.fix


def test_an_interpreter_that_cannot_be_started_is_an_error_of_the_sandbox(tmp_path) -> None:
    with pytest.raises(MissingTool, match="no Python that the sandbox's user can start"):
        BubblewrapSandbox(python=tmp_path / "python")


def test_usage_counts_a_process_with_all_its_descendants() -> None:
    code = "import subprocess, sys, time\nx = bytearray(b'x' * 50_000_000)\n" \
           "own = open('/proc/self/cmdline').read().split(chr(0))[2]\n" \
           "sys.argv[1:] or subprocess.run([sys.executable, '-c', own, 'child'])\nprint('on', flush=True)\ntime.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        process.stdout.readline()
        time.sleep(0.2)
        assert len(list(tree(process.pid))) == 2
        found = usage(process.pid, 10 ** 12)
        assert 100_000_000 < found.memory_bytes < 250_000_000 and found.cpu_s > 0
        assert usage(process.pid, 0).memory_bytes < found.memory_bytes
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
