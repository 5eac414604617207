"""Attacks that take more than their share: processes, memory, disk, output and time. All run under small limits."""

from __future__ import annotations

from functools import partial

from sandbox_cases import FAILS, SHORT, SMALL, TIME, Attack, reaching

attack = partial(Attack, limits=SMALL)
bounded = partial(reaching, limits=SMALL)
waiting = partial(Attack, limits=SHORT)

PROCESSES = (
    attack(name="fork-bomb", goal="as many processes as there can be", ends=(*TIME, *FAILS, "limit memory"), source="""
           import os
           while True:
               os.fork()
           """),
    attack(name="fork-bomb-that-goes-on", goal="the same, not stopped by refusals", ends=(*TIME, "limit memory"), source="""
           import os
           while True:
               try:
                   os.fork()
               except OSError:
                   pass
           """),
    bounded("counted-forks", "more processes than allowed", """
            children = 0
            try:
                while children < 200:
                    if os.fork() == 0:
                        time.sleep(30)
                        os._exit(0)
                    children += 1
            except BlockingIOError:
                pass
            if children > 24:
                got.append(children)
            """),
    bounded("thread-bomb", "more threads than allowed", """
            import threading
            stop = threading.Event()
            started = []
            try:
                while len(started) < 200:
                    started.append(threading.Thread(target=stop.wait, daemon=True))
                    started[-1].start()
            except RuntimeError:
                started.pop()
            if len(started) > 24:
                got.append(len(started))
            """),
    attack(name="own-session-survivor", goal="leave a child that a kill of the group does not reach", ends=("answered",),
           source="""
           import os, time
           if os.fork() == 0:
               os.setsid()
               if os.fork() == 0:
                   time.sleep(0.3)
                   print('late')
                   time.sleep(60)
               os._exit(0)
           print('early')
           """),
    attack(name="many-survivors", goal="children in groups of their own, each restarting the other", ends=(*TIME, "answered"),
           source="""
           import os, signal, time
           signal.signal(signal.SIGTERM, signal.SIG_IGN)
           for _ in range(6):
               if os.fork() == 0:
                   os.setsid()
                   while True:
                       try:
                           if os.fork() == 0:
                               os.setsid(); time.sleep(0.02); os._exit(0)
                       except OSError:
                           pass
                       time.sleep(0.01)
           print('left')
           """),
    attack(name="adopted-survivor", goal="adopt the orphans, so that they have no parent outside", ends=("answered",), source="""
           import ctypes, os, time
           ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
           for _ in range(3):
               if os.fork() == 0:
                   if os.fork() == 0:
                       os.setsid(); time.sleep(60)
                   os._exit(0)
           print('left')
           """),
    attack(name="output-after-the-end", goal="keep the pipe open and write when the program is over",
           ends=("answered", "limit output"),
           source="""
           import os, sys
           print('early', flush=True)
           if os.fork() == 0:
               os.setsid()
               while True:
                   os.write(1, b'late' * 1000)
           os._exit(0)
           """),
    attack(name="shell-children", goal="start programs of the system that stay", ends=("answered", *TIME), source="""
           import subprocess
           for _ in range(4):
               subprocess.Popen(['/bin/sh', '-c', 'trap "" TERM HUP; while :; do sleep 1; done'], start_new_session=True)
           print('left')
           """),
)

MEMORY = (
    attack(name="growing-list", goal="all memory of the machine", ends=("limit memory", "exit_status"), source="""
           keep = []
           while True:
               keep.append(b'x' * 1_000_000)
           """),
    attack(name="one-allocation", goal="all memory at once", ends=("limit memory", "exit_status"), source="""
           keep = b'x' * (1 << 40)
           """),
    attack(name="touched-slowly", goal="touch what was reserved", ends=("limit memory",), source="""
           keep = bytearray(400_000_000)
           for place in range(0, len(keep), 4096):
               keep[place] = 1
           print(len(keep))
           """),
    attack(name="spread-over-children", goal="share it out, so that no process is above the limit", ends=("limit memory",),
           source="""
           import os, time
           for _ in range(5):
               if os.fork() == 0:
                   keep = bytearray(60_000_000)
                   for place in range(0, len(keep), 4096):
                       keep[place] = 1
                   time.sleep(30)
           time.sleep(30)
           """),
    bounded("memory-of-nobody", "memory that belongs to no process: shared mappings, memory files, segments, queues", """
            import mmap
            tries('shared', mmap.mmap, -1, 1 << 20)
            tries('memory file', os.memfd_create, 'x')
            calls('segment', libc.shmget(0, 1 << 20, 0o1600))
            calls('messages', libc.msgget(0, 0o1600))
            calls('semaphores', libc.semget(0, 8, 0o1600))
            tries('zero', open, '/dev/zero', 'rb')
            """),
    attack(name="unpacked-bomb", goal="a kilobyte that becomes gigabytes", ends=("limit memory", "exit_status", *TIME), source="""
           import zlib
           text = b'0' * 100_000_000
           packed = zlib.compress(text, 9)
           while True:
               text += zlib.decompress(packed)
           """),
    attack(name="locked-pages", goal="memory that cannot be taken back", ends=("denied",), source="""
           import ctypes
           libc = ctypes.CDLL(None)
           print('ESCAPED' if libc.mlockall(3) == 0 else 'DENIED')
           """),
    bounded("kernel-buffers", "fill the kernel's buffers through as many descriptors as there are", """
            pipes, total = [], 0
            try:
                while len(pipes) < 2000:
                    pipes.append(os.pipe())
                    os.set_blocking(pipes[-1][1], False)
                    try:
                        while True:
                            total += os.write(pipes[-1][1], bytes(65536))
                    except BlockingIOError:
                        pass
            except OSError:
                pass
            if len(pipes) > 128 or total > 64 << 20:
                got.append((len(pipes), total))
            """),
)

DISK = (
    bounded("fill-the-disk", "write until nobody can write any more", """
            total = 0
            try:
                for number in range(1000):
                    with open(f'f{number}', 'wb') as file:
                        for _ in range(4):
                            total += file.write(bytes(1 << 20))
            except OSError:
                pass
            if total > 17 << 20:
                got.append(total)
            """),
    bounded("one-long-file", "one file beyond the limit", """
            total = 0
            try:
                with open('f', 'wb', 0) as file:
                    while total < 1 << 30:
                        total += file.write(bytes(1 << 20))
            except OSError:
                pass
            if total > 4 << 20:
                got.append(total)
            """),
    bounded("every-writable-place", "find a place to write that is not counted", """
            places = ['/tmp', '/dev/shm', '.', '/var/tmp', '/run', '/run/lock', '/dev', '/dev/mqueue', '/proc', '/']
            total = 0
            for name, place in enumerate(places):
                try:
                    for number in range(40):
                        with open(f'{place}/f{name}-{number}', 'wb', 0) as file:
                            total += file.write(bytes(1 << 20))
                except OSError:
                    pass
            if total > 17 << 20:
                got.append(total)
            """),
    bounded("a-million-empty-files", "use up the names, not the bytes", """
            count = 0
            try:
                while count < 100_000:
                    open(f'{count:x}', 'w').close()
                    count += 1
            except OSError:
                pass
            if count > 10_000:
                got.append(count)
            """),
    attack(name="deleted-but-open", goal="files that no listing shows", ends=("denied",), source="""
           import os
           keep, total = [], 0
           try:
               while total < 1 << 30:
                   keep.append(open('f', 'w+b', 0))
                   os.unlink('f')
                   total += keep[-1].write(bytes(1 << 20))
           except OSError:
               pass
           print('ESCAPED' if total > 17 << 20 else 'DENIED')
           """),
)

OUTPUT = (
    attack(name="endless-lines", goal="more output than can be kept", ends=("limit output",), source="""
           while True:
               print('y' * 1000)
           """),
    attack(name="endless-line", goal="one line without an end", ends=("limit output",), source="""
           import os
           while True:
               os.write(1, b'y' * 65536)
           """),
    attack(name="flood-of-errors", goal="flood standard error and give the right sum on standard output", ends=("limit output",),
           source="""
           import sys
           a, b = map(int, input().split())
           for _ in range(4096):
               sys.stderr.write('e' * 65536)
           print(a + b)
           """),
    attack(name="one-byte-too-many", goal="stop just beyond the limit", ends=("limit output",), source="""
           import os
           left = (1 << 20) + 1
           while left:
               left -= os.write(1, b'y' * min(left, 65536))
           """),
    attack(name="flood-from-children", goal="share the flood out", ends=("limit output",), source="""
           import os
           for _ in range(4):
               if os.fork() == 0:
                   while True:
                       os.write(1, b'y' * 4096)
           os.wait()
           """),
    attack(name="not-text", goal="break whoever decodes the output", ends=("not_text",), source="""
           import sys
           sys.stdout.buffer.write(bytes(range(256)) * 64)
           """),
)

TIME_CASES = (
    waiting(name="sleeps", goal="hold the worker for ever", ends=("limit wall",), source="import time\ntime.sleep(60)"),
    attack(name="spins", goal="compute for ever", ends=TIME, source="while True: pass"),
    attack(name="spins-in-children", goal="use more processors than one", ends=("limit cpu",), source="""
           import os
           for _ in range(6):
               if os.fork() == 0:
                   while True: pass
           os.wait()
           """),
    attack(name="deaf", goal="ignore every signal that can be ignored, then spin", ends=TIME, source="""
           import signal
           for number in range(1, 65):
               try:
                   signal.signal(number, signal.SIG_IGN)
               except (OSError, ValueError):
                   pass
           while True: pass
           """),
    waiting(name="stops-itself", goal="be neither running nor over", ends=("limit wall",), source="""
           import os, signal
           os.kill(os.getpid(), signal.SIGSTOP)
           """),
    attack(name="one-huge-operation", goal="never come back to the interpreter", ends=(*TIME, "limit memory"), source="""
           import sys
           sys.set_int_max_str_digits(0)
           print(len(str(7 ** (10 ** 8))))
           """),
    attack(name="slow-pattern", goal="a regular expression that takes for ever", ends=TIME, source="""
           import re
           print(re.match(r'(a|aa)+$', 'a' * 80 + 'b'))
           """),
    waiting(name="deadlock", goal="wait for itself", ends=("limit wall",), source="""
           import threading
           lock = threading.Lock()
           lock.acquire()
           lock.acquire()
           """),
    waiting(name="thread-that-stays", goal="end in one thread and print later in another", ends=("limit wall",), source="""
           import threading, time
           threading.Thread(target=lambda: (time.sleep(30), print('late'))).start()
           """),
    waiting(name="exit-handler-that-stays", goal="never finish finishing", ends=("limit wall",), source="""
           import atexit, time
           atexit.register(time.sleep, 60)
           print(0)
           """),
    waiting(name="waits-for-a-pipe", goal="open what nobody will open at the other end", ends=("limit wall",), source="""
           import os
           os.mkfifo('f')
           open('f').read()
           """),
    attack(name="clock-games", goal="turn back every clock of its own process and cancel alarms", ends=TIME, source="""
           import signal, time
           time.time = time.monotonic = time.perf_counter = time.process_time = lambda: 0.0
           time.sleep = lambda seconds: None
           signal.setitimer(signal.ITIMER_REAL, 0)
           signal.setitimer(signal.ITIMER_PROF, 0)
           signal.alarm(0)
           while True: pass
           """),
    waiting(name="ignores-its-input", goal="leave a large input unread", ends=("limit wall",),
           source="import time\ntime.sleep(60)"),
    attack(name="endless-iterator", goal="return what never ends", function="solve", ends=("not_plain_data",), source="""
           import itertools
           def solve(a, b):
               return itertools.repeat(a + b)
           """),
    attack(name="endless-import", goal="never reach the function", function="solve", ends=TIME, source="""
           while True: pass
           def solve(a, b):
               return a + b
           """),
)

CRASHES = (
    attack(name="null-pointer", goal="crash the interpreter", ends=("signal",), source="import ctypes\nctypes.string_at(0)"),
    attack(name="aborts", goal="crash on purpose", ends=("signal",), source="import os\nos.abort()"),
    attack(name="kills-itself", goal="end by the signal that limits use", ends=("signal",), source="""
           import os, signal
           os.kill(os.getpid(), signal.SIGKILL)
           """),
    attack(name="endless-recursion", goal="overflow the stack", ends=(*FAILS, "limit memory"), source="""
           import sys
           sys.setrecursionlimit(10 ** 9)
           def f(x): return f([x])
           f(0)
           """),
    attack(name="deep-parentheses", goal="break the compiler of the language", ends=FAILS,
           source="print(" + "(" * 500 + "1" + ")" * 500 + ")"),
    attack(name="deep-expression", goal="the same by evaluation", ends=(*FAILS, "limit memory"), source="""
           print(eval('-' * 200_000 + '1'))
           """),
    attack(name="no-memory-for-the-error", goal="fail while failing", ends=("limit memory", *FAILS, *TIME), source="""
           class Bad(Exception):
               def __str__(self): return 'x' * (1 << 33)
           raise Bad()
           """),
    attack(name="odd-source-bytes", goal="text that is no text", ends=FAILS, source="print('\\ud800')\n\0"),
    attack(name="odd-encoding", goal="a declared encoding that does not exist", ends=FAILS,
           source="# -*- coding: undefined -*-\nprint(1)"),
)
