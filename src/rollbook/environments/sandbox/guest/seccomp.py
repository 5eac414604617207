"""The filter on system calls that a program runs under: everything it does not need to compute and print is refused.

Refused with EPERM, so that an honest program that tries one by habit goes on: other namespaces and mounts, other processes'
memory and settings, keys, kernel tracing, clocks, and the kinds of memory that belong to no process and could not be counted.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER, ARCH, ARGUMENTS = 0, 4, 16                       # offsets in struct seccomp_data
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}       # column of the table, AUDIT_ARCH
X32_BIT = 0x40000000
NEW_NAMESPACES = 0x7E020000
SHARED_ANONYMOUS = (0x21, 0x23)                         # MAP_SHARED or MAP_SHARED_VALIDATE with MAP_ANONYMOUS
FAMILIES = (1, 2, 10)                                   # AF_UNIX, AF_INET, AF_INET6; others reach past a network namespace
TERMINAL_INJECTION = (0x5412, 0x541C)                   # TIOCSTI, TIOCLINUX

DENIED = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196), "semget": (64, 190),
    "msgget": (68, 186), "mq_open": (240, 180), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "syslog": (103, 116),
    "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161),
    "setdomainname": (171, 162), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "lookup_dcookie": (212, 18),
    "fanotify_init": (300, 262), "vhangup": (153, 58), "migrate_pages": (256, 238), "move_pages": (279, 239),
}
OWN_ONLY = {  # the argument that must be 0, "this process": another one could be slowed down or starved
    "prlimit64": ((302, 261), 0), "setpriority": ((141, 140), 1), "ioprio_set": ((251, 30), 1),
    "sched_setscheduler": ((144, 119), 0), "sched_setparam": ((142, 118), 0), "sched_setattr": ((314, 274), 0),
}
CLONE, CLONE3, MMAP, SOCKET, IOCTL = (56, 220), (435, 435), (9, 222), (41, 198), (16, 29)
Instruction = tuple[int, int, int, int]


def _refuse(code: int) -> Instruction:
    return (RETURN, 0, 0, ERRNO | code)


def _argument(index: int) -> Instruction:
    """Loads the lower half of an argument: flags and small numbers have no upper half that counts."""
    return (LOAD, 0, 0, ARGUMENTS + 8 * index)


def _of_call(number: int, body: Sequence[Instruction]) -> list[Instruction]:
    """The body for this system call only; after it the number is loaded again."""
    inner = [*body, (LOAD, 0, 0, NUMBER)]
    return [(EQUAL, 0, len(inner), number), *inner]


def instructions(machine: str) -> list[Instruction]:
    """The filter's program for a machine of the table; KeyError for another."""
    column, architecture = MACHINES[machine]
    program: list[Instruction] = [(LOAD, 0, 0, ARCH), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER),
                                  (AT_LEAST, 0, 1, X32_BIT), _refuse(errno.ENOSYS)]
    for numbers in DENIED.values():
        program += [(EQUAL, 0, 1, numbers[column]), _refuse(errno.EPERM)]
    program += [(EQUAL, 0, 1, CLONE3[column]), _refuse(errno.ENOSYS)]       # its flags are out of reach; clone is tried next
    for own, index in OWN_ONLY.values():
        program += _of_call(own[column], [_argument(index), (EQUAL, 1, 0, 0), _refuse(errno.EPERM)])
    program += _of_call(CLONE[column], [_argument(0), (ANY_BIT, 0, 1, NEW_NAMESPACES), _refuse(errno.EPERM)])
    program += _of_call(MMAP[column], [
        _argument(3), (AND, 0, 0, 0x23), *((EQUAL, 0, 1, flags) if step == 0 else _refuse(errno.EPERM)
                                           for flags in SHARED_ANONYMOUS for step in (0, 1))])
    program += _of_call(SOCKET[column], [
        _argument(0), *((EQUAL, len(FAMILIES) - place, 0, family) for place, family in enumerate(FAMILIES)),
        _refuse(errno.EAFNOSUPPORT)])
    program += _of_call(IOCTL[column], [
        _argument(1), *((EQUAL, 0, 1, request) if step == 0 else _refuse(errno.EPERM)
                        for request in TERMINAL_INJECTION for step in (0, 1))])
    return [*program, (RETURN, 0, 0, ALLOW)]


def assembled(machine: str) -> bytes:
    """The program as an array of struct sock_filter."""
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions(machine))
