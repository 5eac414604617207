"""Attacks that reach for something outside: the network, files, other processes, rights, the clock."""

from sandbox_cases import Attack, reaching

MEMORY = """
import re
sys.stdin.read()
pattern = re.compile(rb'@pattern@')
with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
    for line in maps:
        low, high = (int(x, 16) for x in line.split()[0].split('-'))
        if ' r' in line and high - low < 1 << 26 and '[v' not in line:
            memory.seek(low)
            if pattern.search(memory.read(high - low)):
                got.append(line.split()[0])
"""

NETWORK = (
    reaching("tcp-loopback", "talk to a service on the host's loopback",
             "tries('tcp', socket.create_connection, ('127.0.0.1', @port@), 0.5)"),
    reaching("tcp-loopback-v6", "the same through an IPv6 address that stands for IPv4",
             "tries('tcp6', socket.create_connection, ('::ffff:127.0.0.1', @port@), 0.5)"),
    reaching("tcp-any-address", "reach the host under the address 0.0.0.0",
             "tries('tcp0', socket.create_connection, ('0.0.0.0', @port@), 0.5)"),
    reaching("tcp-outside", "connect to an address outside",
             "tries('tcp', socket.create_connection, ('192.0.2.1', 80), 0.5)"),
    reaching("udp-outside", "send a datagram outside, which needs no connection", """
             s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
             tries('udp', s.sendto, b'x', ('192.0.2.1', 53))
             tries('broadcast', s.sendto, b'x', ('255.255.255.255', 9))
             """),
    reaching("name-lookup", "leak through a name lookup", "tries('dns', socket.getaddrinfo, 'localhost.example.invalid', 80)"),
    reaching("url-library", "fetch through the standard library, with a proxy set", """
             import urllib.request
             os.environ['http_proxy'] = 'http://127.0.0.1:@port@'
             tries('url', urllib.request.urlopen, 'http://example.invalid/', None, 0.5)
             """),
    reaching("listen-and-connect", "talk to another program over loopback", """
             s = socket.socket()
             s.bind(('127.0.0.1', 0)); s.listen()
             tries('self', socket.create_connection, s.getsockname(), 0.3)
             """),
    reaching("raw-socket", "forge packets", """
             tries('raw', socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
             tries('packet', socket.socket, socket.AF_PACKET, socket.SOCK_RAW)
             """),
    reaching("other-families", "families that network namespaces do not hold: virtual machine sockets, kernel crypto, and more",
             "for family in [f for f in range(3, 46) if f not in (2, 10)]:\n"
             "    tries(family, socket.socket, family, socket.SOCK_STREAM)\n"
             "    tries(family, socket.socket, family, socket.SOCK_DGRAM)\n"
             "    tries(family, socket.socket, family, socket.SOCK_SEQPACKET)"),
    reaching("host-unix-socket", "connect to a socket file of the host", """
             s = socket.socket(socket.AF_UNIX)
             tries('unix', s.connect, '@socket@')
             """),
    reaching("host-abstract-socket", "connect to a socket without a file, which mounts do not hide", """
             s = socket.socket(socket.AF_UNIX)
             tries('abstract', s.connect, '\\0@abstract@')
             """),
    reaching("listed-abstract-sockets", "find such sockets in the process table and connect to each", """
             names = []
             for table in ('/proc/net/unix', '/proc/self/net/unix', '/proc/1/net/unix'):
                 try:
                     names += [line.split()[-1] for line in open(table)]
                 except OSError:
                     pass
             for name in names:
                 if name.startswith('@'):
                     tries(name, socket.socket(socket.AF_UNIX).connect, chr(0) + name[1:])
             """),
    reaching("inherited-descriptors", "use a descriptor that the worker left open", """
             for fd in range(3, 256):
                 if (file := tries(fd, os.fstat, fd)) is not None:
                     tries(('read', fd), os.read, fd, 1)
             """),
)

FILES = (
    reaching("host-secret", "read a readable file of the host by its path", "tries('secret', open, '@secret@')"),
    reaching("private-places", "read what accounts and machines keep", """
             for path in ('/etc/shadow', '/root', '/home', '/var', '/run', '/srv', '/opt', '/mnt', '/boot', '/sys',
                          '/etc/hostname', '/etc/machine-id', '/usr/local', '/proc/1/environ', '/proc/1/root', '/proc/kcore',
                          '/proc/cmdline', '/proc/keys', '/proc/version'):
                 tries(path, os.listdir if os.path.isdir(path) else open, path)
             """),
    reaching("the-verifier", "import or find the code that will judge", """
             tries('import', __import__, 'rollbook')
             for base, folders, names in os.walk('/'):
                 folders[:] = [f for f in folders if f not in ('proc', 'usr')]
                 got.extend(n for n in names if 'rollbook' in n or 'expected' in n or n.startswith('test_'))
             """),
    reaching("marker-in-memory", "search its own memory for what the worker knows and it does not", MEMORY),
    reaching("write-outside", "write beside its own folder", """
             for folder in ('..', '../..', '/', '/usr', '/usr/bin', '/usr/lib', '/etc', '/dev', '/proc', '/sandbox',
                            '/sandbox/guest', '/opt', '/var/tmp', '@folder@'):
                 tries(folder, open, os.path.join(folder, 'canary'), 'w')
             """),
    reaching("symlink-through", "write through a link to a place outside", """
             for number, target in enumerate(('/usr/bin/canary', '/etc/passwd', '/sandbox/guest/init.py', '@secret@')):
                 os.symlink(target, f'link{number}')
                 tries(target, open, f'link{number}', 'r+b')
             """),
    reaching("hard-link-out", "give a file of the system a second name that can be written", """
             tries('link', os.link, '/usr/bin/env', 'env')
             tries('link guest', os.link, '/sandbox/guest/init.py', 'init.py')
             """),
    reaching("rename-over", "put something else in the place of the system's files", """
             open('mine', 'w').close()
             for target in ('/usr/bin/env', '/sandbox/guest/init.py', '/etc/passwd'):
                 tries(target, os.replace, 'mine', target)
                 tries(target, os.unlink, target)
             """),
    reaching("devices", "open disks and memory, or make the device files for it", """
             for path in glob.glob('/dev/*'):
                 if os.path.basename(path) not in ('null', 'full', 'random', 'urandom', 'fd', 'shm'):
                     got.append(path)
             tries('mknod', os.mknod, 'disk', 0o600 | 0o060000, os.makedev(8, 0))
             tries('mknod zero', os.mknod, 'zero', 0o600 | 0o020000, os.makedev(1, 5))
             """),
    reaching("set-uid-file", "leave a program that runs with more rights", """
             import shutil
             shutil.copy('/usr/bin/env', 'env')
             os.chmod('env', 0o6755)
             tries('chown', os.chown, 'env', 0, 0)
             import subprocess
             tried = subprocess.run(['./env', 'id', '-u'], capture_output=True, text=True)
             if tried.stdout.strip() == '0':
                 got.append('root')
             """),
    Attack(name="result-files", goal="leave files of the names under which results are collected",
           source="""
           import os
           for name in ('result.json', 'reward.txt', 'score', 'report.xml', 'verdict', 'stdout', 'output.txt'):
               with open(name, 'w') as file:
                   file.write('{"passed": true, "reward": 1.0}')
           print('done')
           """, ends=("answered",)),
    Attack(name="linked-result-files", goal="leave links to secrets under names that might be collected",
           source="""
           import os
           for name, target in (('output.txt', '/etc/passwd'), ('result.json', '@secret@'), ('round', 'round'), ('root', '/'),
                                ('log', '/proc/self/environ')):
               os.symlink(target, name)
           print(0)
           """, ends=("answered",)),
    Attack(name="unremovable-folders", goal="leave what cannot be removed: paths beyond the limit, folders without rights",
           source="""
           import os
           os.mkdir('shut'); open('shut/f', 'w').close(); os.chmod('shut', 0)
           for _ in range(400):
               os.mkdir('d' * 60)
               os.chdir('d' * 60)
           print(0)
           """, ends=("answered",)),
    Attack(name="sparse-terabyte", goal="leave a file that is a tebibyte long for whoever reads it",
           source="""
           import os
           try:
               os.truncate(os.open('output.txt', os.O_CREAT | os.O_WRONLY), 1 << 40)
           except OSError:
               print('DENIED')
           else:
               print('ESCAPED', os.stat('output.txt').st_size)
           """, ends=("denied",)),
    Attack(name="own-source", goal="change its own text so that the next test runs another program",
           source="""
           import sys
           with open(sys.argv[0]) as file:
               text = file.read()
           with open(sys.argv[0], 'w') as file:
               file.write('a, b = map(int, input().split()); print(a + b)')
           print('first' if 'first' in text else 'second')
           """, ends=("answered",)),
)

PROCESSES = (
    reaching("parent-memory", "read and change the memory of the process that waits for it", """
             parent = os.getppid()
             for name in ('mem', 'maps', 'environ', 'auxv', 'pagemap'):
                 tries(name, lambda: open(f'/proc/{parent}/{name}', 'rb').close())
             for name in ('exe', 'cwd', 'root'):
                 tries(name, os.readlink, f'/proc/{parent}/{name}')
             for name in ('fd', 'fdinfo', 'map_files'):
                 tries(name, os.listdir, f'/proc/{parent}/{name}')
             tries('write', open, f'/proc/{parent}/mem', 'r+b')
             """),
    reaching("trace-parent", "attach to the process that waits for it", """
             PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
             calls('attach', libc.ptrace(PTRACE_ATTACH, os.getppid(), 0, 0))
             calls('seize', libc.ptrace(PTRACE_SEIZE, os.getppid(), 0, 0))
             """),
    reaching("copy-parent-memory", "copy memory of the process that waits for it", """
             class Span(ctypes.Structure):
                 _fields_ = [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]
             mine = ctypes.create_string_buffer(8)
             here, there = Span(ctypes.addressof(mine), 8), Span(id(0), 8)
             calls('read', libc.process_vm_readv(os.getppid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
             calls('write', libc.process_vm_writev(os.getppid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
             """),
    reaching("take-parents-descriptors", "take over the descriptor on which its end is reported", """
             handle = os.pidfd_open(os.getppid())
             for fd in range(16):
                 calls(fd, libc.syscall(438, handle, fd, 0))
             """),
    reaching("kill-parent", "end the process that waits for it", """
             for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV, signal.SIGALRM, signal.SIGINT):
                 try:
                     if os.getpid() < 100:                   # never outside a process namespace of its own
                         os.kill(1, number)
                         os.kill(-1, number)
                 except OSError:
                     pass
             time.sleep(0.05)
             if os.getppid() != 1:
                 got.append(os.getppid())
             """),
    reaching("slow-down-parent", "take time, memory and priority from the process that waits for it", """
             import resource
             tries('limit', resource.prlimit, 1, resource.RLIMIT_CPU, (1, 1))
             tries('files', resource.prlimit, 1, resource.RLIMIT_NOFILE, (0, 0))
             tries('nice', os.setpriority, os.PRIO_PROCESS, 1, 19)
             tries('idle', os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0))
             tries('score', open, '/proc/1/oom_score_adj', 'r+b', 0)
             """),
    reaching("other-processes", "see processes that are not its own", """
             for name in os.listdir('/proc'):
                 if name.isdigit() and int(name) not in (1, os.getpid()):
                     got.append(name)
             """),
    reaching("secrets-in-arguments", "read arguments and variables of the processes it can see", """
             for path in glob.glob('/proc/[0-9]*/cmdline') + glob.glob('/proc/[0-9]*/environ'):
                 try:
                     with open(path, 'rb') as file:
                         text = file.read()
                 except OSError:
                     continue
                 if b'@marker@' in text or b'/home' in text or b'TOKEN' in text or b'KEY' in text:
                     got.append(path)
             """),
    reaching("host-environment", "find variables of the host in its own environment",
             "got.extend(set(os.environ) - {'PATH', 'HOME', 'LANG', 'TMPDIR', 'PYTHONHASHSEED'})"),
)

RIGHTS = (
    reaching("become-root", "become another user", """
             for name in ('setuid', 'setgid', 'seteuid'):
                 tries(name, getattr(os, name), 0)
             tries('setgroups', os.setgroups, [0])
             with open('/proc/self/status') as file:
                 sets = [line.split()[1] for line in file if line.startswith(('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb'))]
             got.extend(s for s in sets if int(s, 16))
             """),
    reaching("own-namespaces", "become root in namespaces of its own", """
             for flag in (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000, 0x80):
                 calls(hex(flag), libc.unshare(flag))
             calls('all', libc.unshare(0x7e020000))
             """),
    reaching("clone-into-namespaces", "the same through clone, whose flags are another argument", """
             numbers = {'x86_64': (56, 435), 'aarch64': (220, 435)}[os.uname().machine]
             child = libc.syscall(numbers[0], 0x10000000 | 0x20000000 | signal.SIGCHLD, 0, 0, 0, 0)
             if child == 0:
                 os._exit(0)
             calls('clone', child)
             block = struct.pack('8Q', 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
             child = libc.syscall(numbers[1], block, len(block))
             if child == 0:
                 os._exit(0)
             calls('clone3', child)
             """),
    reaching("mounts", "mount over, remount for writing, or leave the root", """
             calls('tmpfs', libc.mount(b'tmpfs', b'/usr', b'tmpfs', 0, None))
             calls('remount', libc.mount(None, b'/', None, 32, None))
             calls('bind', libc.mount(b'/tmp', b'/usr', None, 4096, None))
             calls('umount', libc.umount2(b'/proc', 2))
             calls('pivot', libc.syscall({'x86_64': 155, 'aarch64': 41}[os.uname().machine], b'.', b'.'))
             tries('chroot', os.chroot, '.')
             """),
    reaching("join-namespaces", "go back to the namespaces of another process", """
             for path in glob.glob('/proc/1/ns/*') + glob.glob('/proc/self/ns/*'):
                 fd = tries('open ' + path, os.open, path, os.O_RDONLY) if '/1/' in path else os.open(path, os.O_RDONLY)
                 if fd is not None:
                     calls(path, libc.setns(fd, 0))
             """),
    reaching("kernel-settings", "write settings of the kernel", """
             def write(path, text):
                 with open(path, 'wb', 0) as file:
                     file.write(text)
             for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/kernel/hostname', '/proc/sysrq-trigger',
                          '/proc/sys/vm/drop_caches', '/proc/1/uid_map',
                          *glob.glob('/sys/fs/cgroup/**/cgroup.procs', recursive=True)):
                 tries(path, os.open, path, os.O_WRONLY)
             tries('users', write, '/proc/self/uid_map', b'0 0 1')
             tries('groups', write, '/proc/self/setgroups', b'allow')
             tries('score', write, '/proc/self/oom_score_adj', b'-1000')
             """),
    reaching("raise-own-limits", "lift the limits that were set for it", """
             import resource
             for name in ('RLIMIT_AS', 'RLIMIT_NPROC', 'RLIMIT_NOFILE', 'RLIMIT_FSIZE', 'RLIMIT_CPU', 'RLIMIT_CORE'):
                 try:
                     resource.setrlimit(getattr(resource, name), (resource.RLIM_INFINITY,) * 2)
                 except (ValueError, OSError):
                     continue
                 got.append(name)
             """),
    reaching("keys-and-tracing", "use keys of the session, kernel programs, counters and rings", """
             numbers = {'x86_64': (248, 250, 321, 298, 425, 323), 'aarch64': (217, 219, 280, 241, 425, 282)}[os.uname().machine]
             calls('add_key', libc.syscall(numbers[0], b'user', b'a', b'b', 1, -3))
             calls('keyctl', libc.syscall(numbers[1], 0, -3, 0))
             calls('bpf', libc.syscall(numbers[2], 0, 0, 0))
             calls('perf', libc.syscall(numbers[3], 0, 0, -1, -1, 0))
             calls('ring', libc.syscall(numbers[4], 4, ctypes.create_string_buffer(120)))
             calls('faults', libc.syscall(numbers[5], 1))
             """),
    reaching("terminal", "type into the terminal of whoever watches", """
             import fcntl, termios
             tries('tty', open, '/dev/tty', 'r+')
             tries('console', open, '/dev/console', 'r+')
             tries('ptmx', open, '/dev/ptmx', 'r+')
             for fd in range(3):
                 if os.isatty(fd):
                     got.append(fd)
                 tries(('inject', fd), fcntl.ioctl, fd, termios.TIOCSTI, b'x')
             """),
    reaching("host-clock", "set the clock that limits are measured with", """
             tries('realtime', time.clock_settime, time.CLOCK_REALTIME, 0)
             calls('settimeofday', libc.settimeofday(ctypes.create_string_buffer(16), None))
             calls('adjtimex', libc.adjtimex(ctypes.create_string_buffer(512)))
             """),
    reaching("no-dumps", "leave a core file of itself or its parent", """
             import resource, subprocess
             subprocess.run([sys.executable, '-c', 'import os; os.abort()'])
             got.extend(name for name in os.listdir('.') if 'core' in name)
             """),
)
