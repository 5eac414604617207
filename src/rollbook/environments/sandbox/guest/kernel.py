"""The system calls that Python has no function for, each raising OSError."""

from __future__ import annotations

import ctypes
import os

NEW_USER, NEW_MOUNTS, NEW_PIDS, NEW_NETWORK, NEW_IPC, NEW_UTS = (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000,
                                                                0x04000000)
NOSUID, NODEV, NOEXEC, BIND = 2, 4, 8, 4096
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS = 4, 22, 23, 24, 28, 38
SECCOMP_MODE_FILTER = 2
LOCKED_SECUREBITS = 0xEF                # nothing from uid 0, nothing kept over setuid, nothing ambient; all locked
CAPABILITY_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Leaves the parent's namespaces for fresh ones."""
    _check(libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(kind: str, target: str, flags: int, options: str = "") -> None:
    """A new file system of a kind at a place."""
    _check(libc.mount(kind.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode() or None),
           f"mount {kind} at {target}")


def bind(source: str, target: str) -> None:
    """A folder seen at a second place."""
    _check(libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(BIND), None), f"bind {source} to {target}")


def prctl(option: int, value: int, what: str) -> None:
    """One setting of this process."""
    zero = ctypes.c_ulong(0)
    _check(libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero), what)


def drop_capabilities() -> None:
    """No capability is left, and none comes back: not by exec, not by uid 0."""
    prctl(PR_SET_NO_NEW_PRIVS, 1, "no_new_privs")
    capability = 0
    while libc.prctl(ctypes.c_int(PR_CAPBSET_READ), ctypes.c_ulong(capability)) >= 0:        # until the kernel knows no more
        prctl(PR_CAPBSET_DROP, capability, f"bounding set {capability}")
        capability += 1
    prctl(PR_SET_SECUREBITS, LOCKED_SECUREBITS, "securebits")
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _check(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_char_p)]


def restrict_calls(program: bytes) -> None:
    """Puts this process and all it will start under a filter, for good."""
    holder = _Filter(len(program) // 8, program)
    _check(libc.prctl(ctypes.c_int(PR_SET_SECCOMP), ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.byref(holder)), "seccomp")
