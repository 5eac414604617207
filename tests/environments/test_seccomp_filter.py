"""The filter on system calls, run by a small machine of our own for both architectures, and once by the kernel."""

from __future__ import annotations

import errno
import os
import shutil

import pytest
from patience import PATIENT

from rollbook.environments.sandbox.guest import seccomp
from rollbook.records.sandbox import Program

MACHINES = sorted(seccomp.MACHINES)


def decided(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the filter returns for a call, by interpreting its instructions."""
    words = {seccomp.NUMBER: number, seccomp.ARCH: seccomp.MACHINES[machine][1] if architecture is None else architecture}
    words |= {seccomp.ARGUMENTS + 8 * index: value for index, value in enumerate((*arguments, *[0] * 6)[:6])}
    program, place, value = seccomp.instructions(machine), 0, 0
    while True:
        code, if_true, if_false, constant = program[place]
        place += 1
        if code == seccomp.RETURN:
            return constant
        if code == seccomp.LOAD:
            value = words[constant]
        elif code == seccomp.AND:
            value &= constant
        else:
            holds = {seccomp.EQUAL: value == constant, seccomp.AT_LEAST: value >= constant,
                     seccomp.ANY_BIT: bool(value & constant)}[code]
            place += if_true if holds else if_false


REFUSED = seccomp.ERRNO | errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", sorted(seccomp.DENIED))
def test_a_denied_call_is_refused(machine: str, name: str) -> None:
    assert decided(machine, seccomp.DENIED[name][seccomp.MACHINES[machine][0]]) == REFUSED


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", sorted(seccomp.OWN_ONLY))
def test_settings_of_other_processes_are_refused_and_its_own_allowed(machine: str, name: str) -> None:
    numbers, index = seccomp.OWN_ONLY[name]
    number = numbers[seccomp.MACHINES[machine][0]]
    other = [0] * 6
    other[index] = 1
    assert decided(machine, number) == seccomp.ALLOW and decided(machine, number, *other) == REFUSED


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_decide_where_a_call_has_good_uses(machine: str) -> None:
    column = seccomp.MACHINES[machine][0]
    clone, mmap, socket, ioctl = (numbers[column] for numbers in (seccomp.CLONE, seccomp.MMAP, seccomp.SOCKET, seccomp.IOCTL))
    assert decided(machine, clone, 0x3D0F00) == seccomp.ALLOW                    # a thread
    assert all(decided(machine, clone, 1 << bit | 17) == REFUSED for bit in (17, 25, 26, 27, 28, 29, 30))
    assert decided(machine, seccomp.CLONE3[column]) == seccomp.ERRNO | errno.ENOSYS
    assert decided(machine, mmap, 0, 4096, 3, 0x22) == seccomp.ALLOW             # private anonymous
    assert decided(machine, mmap, 0, 4096, 3, 0x01) == seccomp.ALLOW             # a shared file
    assert decided(machine, mmap, 0, 4096, 3, 0x21) == decided(machine, mmap, 0, 4096, 3, 0x8023) == REFUSED
    families = {family for family in range(64) if decided(machine, socket, family, 1) == seccomp.ALLOW}
    assert families == {1, 2, 10}
    assert decided(machine, ioctl, 0, 0x5412) == REFUSED and decided(machine, ioctl, 0, 0x5413) == seccomp.ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_another_calling_convention_is_not_a_way_around(machine: str) -> None:
    assert decided(machine, 20, architecture=0x40000003) == seccomp.KILL
    assert decided(machine, seccomp.X32_BIT | 39) == seccomp.ERRNO | errno.ENOSYS


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt-get install bubblewrap")
def test_the_kernel_refuses_every_denied_call(isolated) -> None:
    column = seccomp.MACHINES[os.uname().machine][0]
    numbers = {name: each[column] for name, each in seccomp.DENIED.items()}
    source = f"import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nfor name, number in {numbers!r}.items():\n" \
             "    if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1:\n        print(name)"
    done = isolated.run(Program(source=source.encode(), limits=PATIENT))
    assert (done.stdout.data, done.stderr.data) == (b"", b"")
