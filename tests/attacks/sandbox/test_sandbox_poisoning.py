"""A program cannot change what the next one finds, nor meet one that runs at the same time."""

from __future__ import annotations

import shutil
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
from sandbox_cases import PATIENT

from rollbook.records.sandbox import Exited, Program

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt-get install bubblewrap")

# Everything of a fresh program that an earlier one might have changed, as one line.
FINGERPRINT = b"""
import builtins, gc, hashlib, os, resource, signal, socket, sys, threading, warnings
import collections, json, math, random
parts = {
    'modules': sorted(sys.modules), 'builtins': sorted(vars(builtins)), 'path': sys.path, 'hooks': str(sys.meta_path),
    'environment': sorted(os.environ.items()), 'folder': os.getcwd(), 'files': sorted([*os.walk('/tmp'), *os.walk('/box')]),
    'shm': os.listdir('/dev/shm'), 'score': open('/proc/self/oom_score_adj').read(),
    'limits': [resource.getrlimit(n) for n in range(16)], 'nice': os.nice(0), 'umask': os.umask(0o22),
    'signals': [str(signal.getsignal(n)) for n in range(1, 32)], 'mask': str(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    'timer': signal.getitimer(signal.ITIMER_REAL), 'threads': threading.active_count(), 'recursion': sys.getrecursionlimit(),
    'processes': [n for n in os.listdir('/proc') if n.isdigit()], 'host': socket.gethostname(), 'hash': hash('text'),
    'affinity': sorted(os.sched_getaffinity(0)), 'json': json.dumps([1]), 'pi': math.pi, 'sorted': str(sorted),
    'gc': gc.isenabled(),
    'descriptors': os.listdir('/proc/self/fd'), 'ids': (os.getpid(), os.getppid(), os.getuid(), os.getgid(), os.getgroups()),
    'warnings': str(warnings.filters), 'digits': sys.get_int_max_str_digits(), 'deque': str(collections.deque([1])),
    'sockets': len(open('/proc/self/net/unix').readlines()), 'trace': str(sys.gettrace()),
}
print(hashlib.sha256(repr(parts).encode()).hexdigest(), parts)
"""

POISONS = {
    "modules and builtins": """
        import builtins, sys, json, math, collections
        json.dumps = lambda *a, **k: 'poison'; math.pi = 3; builtins.sorted = lambda *a: []; builtins.evil = 1
        collections.deque = list; sys.modules['random'] = None; sys.path.insert(0, '/tmp/evil'); sys.setrecursionlimit(50_000)
        sys.meta_path.clear()
        """,
    "files everywhere": """
        import os
        library = os.path.dirname(os.__file__)
        for folder in ('/tmp', '/box', '/dev/shm', '.', '/', '/sandbox', '/sandbox/guest', library, '/etc', '/dev'):
            for name in ('sitecustomize.py', 'json.py', 'left', 'program.py'):
                try:
                    open(os.path.join(folder, name), 'w').write('raise SystemExit("poison")')
                except OSError:
                    pass
        """,
    "settings of the process": """
        import gc, os, resource, signal, sys
        os.environ['LD_PRELOAD'] = '/tmp/evil.so'; os.umask(0); os.chdir('/'); os.nice(10); gc.disable()
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8)); signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 60)); signal.setitimer(signal.ITIMER_REAL, 2)
        os.sched_setaffinity(0, {0})
        try:
            os.sched_setaffinity(1, {0})
        except OSError:
            pass
        """,
    "survivors and sockets": """
        import os, socket, time
        names = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for number, name in enumerate(names):
            name.bind(chr(0) + f'poison{number}'); name.listen()
        for _ in range(4):
            if os.fork() == 0:
                os.setsid(); time.sleep(60)
        """,
    "signals to everybody": """
        import os, signal
        if os.getpid() < 100:
            for number in range(1, 65):
                for process in (1, 0, -1):
                    try:
                        if (number, process) not in ((9, 0), (19, 0)):
                            signal.signal(number, signal.SIG_IGN)
                        os.kill(process, number)
                    except (OSError, ValueError):
                        pass
        """,
    "memory of the interpreter": """
        import ctypes, gc, sys
        for thing in gc.get_objects():
            if type(thing) is dict and thing is not globals() and len(thing) < 50:
                try:
                    thing['poison'] = 1
                except TypeError:
                    pass
        ctypes.memset(id(256) + 24, 7, 4)
        """,
    "a crash": "import ctypes\nctypes.string_at(0)",
    "everything it may use": """
        import os
        keep = []
        while True:
            try:
                if os.fork() == 0:
                    keep.append(bytearray(30_000_000))
                    open(f'{os.getpid()}', 'wb').write(bytes(8 << 20))
            except OSError:
                pass
        """,
}


def fingerprint(runner) -> bytes:
    done = runner.sandbox.run(Program(source=FINGERPRINT, limits=PATIENT))
    assert done.ending == Exited(status=0), done
    return done.stdout.data


@pytest.mark.parametrize("name", POISONS)
def test_a_program_cannot_poison_the_interpreter_for_the_next_one(name: str, python) -> None:
    before = fingerprint(python)
    [zygote] = python.sandbox._zygotes
    python.sandbox.run(Program(source=textwrap.dedent(POISONS[name]).encode(), limits=PATIENT))
    for _ in range(python.sandbox.parallel + 2):             # namespaces made before it, and then such made after it
        assert fingerprint(python) == before
    assert python.sandbox._zygotes == [zygote], "a new interpreter would prove nothing about the old one"


def test_a_fingerprint_sees_a_change_within_one_program(python) -> None:
    changes = (b"import builtins; builtins.evil = 1", b"import sys; sys.modules['evil'] = None", b"open('/tmp/evil', 'w')",
               b"import os; os.environ['evil'] = '1'", b"import os; os.umask(0)",
               b"import os, signal\nif os.fork() == 0: signal.pause()")
    before = fingerprint(python)
    for change in changes:
        changed = python.sandbox.run(Program(source=change + b"\n" + FINGERPRINT, limits=PATIENT)).stdout.data
        assert changed and changed != before, change


LISTENER = b"""
import socket
s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + 'meeting'); s.listen(); s.settimeout(1.0)
open('/tmp/here', 'w').close(); open('/dev/shm/here', 'w').close()
try:
    s.accept(); print('MET')
except OSError:
    print('ALONE')
"""
CALLER = b"""
import os, socket, time
until = time.monotonic() + 0.9
while time.monotonic() < until:
    if os.path.exists('/tmp/here') or os.path.exists('/dev/shm/here') or len([n for n in os.listdir('/proc') if n.isdigit()]) > 2:
        print('MET'); break
    try:
        socket.socket(socket.AF_UNIX).connect(chr(0) + 'meeting'); print('MET'); break
    except OSError:
        time.sleep(0.01)
else:
    print('ALONE')
"""


def test_two_programs_at_the_same_time_do_not_meet(python) -> None:
    with ThreadPoolExecutor(2) as threads:
        ends = list(threads.map(lambda source: python.sandbox.run(Program(source=source, limits=PATIENT)), (LISTENER, CALLER)))
    assert [done.stdout.data for done in ends] == [b"ALONE\n", b"ALONE\n"]


def test_a_program_and_its_own_child_do_meet(python) -> None:
    """The control of the test above: in one sandbox the same two find each other."""
    source = f"import os\nexec({CALLER!r} if os.fork() == 0 else {LISTENER!r})".encode()
    done = python.sandbox.run(Program(source=source, limits=PATIENT))
    assert b"MET" in done.stdout.data, done
