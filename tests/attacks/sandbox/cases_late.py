"""Attacks found later: ways round the system-call filter, file handles, new mount calls, values that only look like data."""

from sandbox_cases import Attack, reaching

# Machine code is put into memory of its own: a call by another convention than the filter was written for.
CODE = """
import mmap
def ran(code):
    own, may = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    area = mmap.mmap(-1, 4096, flags=own, prot=may)
    area.write(code)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    return ctypes.CFUNCTYPE(ctypes.c_long)(start)()
"""
# unshare(CLONE_NEWUSER), by int 0x80 and by an x32 call
UNSHARE_32 = r"b'\x53\xb8\x36\x01\x00\x00\xbb\x00\x00\x00\x10\xcd\x80\x5b\x48\x98\xc3'"
UNSHARE_X32 = r"b'\xb8\x10\x01\x00\x40\xbf\x00\x00\x00\x10\x0f\x05\xc3'"

CALLS = (
    Attack(name="32-bit-calls", goal="make a namespace by the 32-bit convention, which numbers calls otherwise",
           source="import ctypes, sys\n" + CODE + f"print('ESCAPED' if ran({UNSHARE_32}) == 0 else 'DENIED')",
           ends=("signal", "denied")),
    Attack(name="x32-calls", goal="make a namespace by the x32 convention",
           source="import ctypes, sys\n" + CODE + f"print('ESCAPED' if ran({UNSHARE_X32}) == 0 else 'DENIED')",
           ends=("signal", "denied")),
    reaching("kernel-rings", "have the kernel make calls on its own behalf, past the filter", """
             import ctypes
             libc = ctypes.CDLL(None, use_errno=True)
             room = ctypes.create_string_buffer(256)
             if libc.syscall(425, 8, room) >= 0: got.append('io_uring')
             """),
    reaching("kernel-programs", "load a program into the kernel, count its events, or take over its page faults", """
             import ctypes
             libc = ctypes.CDLL(None, use_errno=True)
             room = ctypes.create_string_buffer(256)
             for number, words in ((321, (0, room, 120)), (298, (room, 0, -1, -1, 0)), (323, (0,)), (323, (1,))):
                 if libc.syscall(number, *words) >= 0 and number != 323: got.append(number)
             """),
    reaching("file-handles", "open a file of the host by its handle instead of its path", """
             import ctypes, struct
             libc = ctypes.CDLL(None, use_errno=True)
             handle, mount = ctypes.create_string_buffer(struct.pack('II', 128, 0) + bytes(128)), ctypes.c_int()
             libc.syscall(303, -100, b'/usr', handle, ctypes.byref(mount), 0)
             for number in range(2, 6):
                 made = ctypes.create_string_buffer(struct.pack('IIII', 8, 1, number, 0) + bytes(128))
                 if libc.syscall(304, os.open('/usr', os.O_RDONLY), made, os.O_RDONLY) >= 0: got.append(number)
             """),
    reaching("new-mount-calls", "mount with the newer calls", """
             import ctypes
             libc = ctypes.CDLL(None, use_errno=True)
             for number, words in ((428, (-100, b'/', 1)), (430, (b'tmpfs', 0)), (429, (-100, b'/usr', -100, b'/tmp', 0)),
                                   (442, (-100, b'/', 0, bytes(32), 32)), (155, (b'/', b'/tmp')), (161, (b'/tmp',))):
                 if libc.syscall(number, *words) >= 0: got.append(number)
             """),
    reaching("roots-of-others", "walk out through the root or folder of another process", """
             for name in [n for n in os.listdir('/proc') if n.isdigit()] + ['self/task/1']:
                 for part in ('root/etc/shadow', 'cwd/../../../etc/shadow', 'root/root/.ssh', 'root/work'):
                     path = f'/proc/{name}/{part}'
                     if os.path.exists(path): tries(path, os.listdir if os.path.isdir(path) else open, path)
             """),
    reaching("passed-descriptors", "be given a descriptor of the host over a socket", """
             here, there = socket.socketpair()
             for number in range(256):
                 try:
                     place = os.readlink(f'/proc/self/fd/{number}')
                 except OSError:
                     continue
                 if place.startswith(('/work', '/root', '/home', 'socket:')) and number not in (here.fileno(), there.fileno()):
                     got.append(place)
             """),
    reaching("clocks-set", "set the clock of the host", """
             import ctypes, time
             libc = ctypes.CDLL(None, use_errno=True)
             tries('clock', time.clock_settime, time.CLOCK_REALTIME, 0)
             if libc.syscall(159, ctypes.create_string_buffer(b'\\x01' + bytes(255))) >= 0: got.append('adjtimex')
             """),
    reaching("left-for-the-next", "leave something that the next program finds: queues, shared memory, semaphores, locks", """
             import ctypes
             libc = ctypes.CDLL(None, use_errno=True)
             if libc.shmget(0x7a71, 64, 0o600) >= 0: got.append('shm')
             if libc.msgget(0x7a71, 0o600) >= 0: got.append('queue')
             if libc.semget(0x7a71, 1, 0o600) >= 0: got.append('semaphore')
             libc.shmget(0x7a71, 64, 0o1600); libc.msgget(0x7a71, 0o1600); libc.semget(0x7a71, 1, 0o1600)
             folders = ('/dev/shm', '/dev/mqueue', '/tmp', '/var/tmp', '/run')
             got += [folder for folder in folders if os.path.exists(f'{folder}/zq-left')]
             for folder in folders:
                 try:
                     open(f'{folder}/zq-left', 'w').close()
                 except OSError:
                     pass
             """),
)

VALUES = (
    Attack(name="longest-number", goal="break the reader with more digits than it converts", function="f",
           source="def f(a, b):\n    return 10 ** 5000\n", ends=("answered", "not_plain_data", "no_result")),
    Attack(name="text-that-is-none", goal="break the reader with text that is none", function="f",
           source="def f(a, b):\n    return '\\ud800' * 3\n", ends=("answered", "not_plain_data", "no_result")),
    Attack(name="infinite-by-overflow", goal="be a number that equals any other", function="f",
           source="def f(a, b):\n    return float('1e999')\n", ends=("not_plain_data", "answered", "no_result")),
    Attack(name="equal-to-everything", goal="pass a truth value for a number", function="f",
           source="class N(int):\n    __eq__ = lambda s, o: True\n    __hash__ = int.__hash__\ndef f(a, b):\n    return N(7)\n",
           ends=("not_plain_data", "answered", "no_result")),
    Attack(name="shared-and-endless", goal="hold the reader with a list that holds itself a billion times", function="f",
           source="def f(a, b):\n    held = [0]\n    for _ in range(40):\n        held = [held, held]\n    return held\n",
           ends=("not_plain_data", "no_result", "limit cpu", "limit memory", "limit output", "exit_status", "signal")),
    Attack(name="own-encoder", goal="write the result by an encoder of one's own", function="f",
           source="import json, json.encoder\njson.dumps = json.encoder.JSONEncoder.encode = lambda *a, **k: '7'\n"
                  "json.JSONEncoder.iterencode = lambda *a, **k: iter(['7'])\ndef f(a, b):\n    return 0\n",
           ends=("answered", "not_plain_data", "no_result")),
)
