"""A request on its way into a sandbox: one header and the contents of its files, in memory that nobody can change any more."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Mapping

from rollbook.records.sandbox import SOURCE_NAME, Program

PLACE = "/box"
BASE_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": PLACE, "LANG": "C.UTF-8", "TMPDIR": "/tmp", "PYTHONHASHSEED": "0"}
SEALED = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def laid_files(program: Program) -> dict[str, bytes]:
    """All files of the working directory: the program's own and, for a Python source, the source."""
    source = {} if program.source is None else {SOURCE_NAME: program.source}
    return {**program.files, **source}


def packed(program: Program, environment: Mapping[str, str] = BASE_ENVIRONMENT) -> bytes:
    """The header's length in eight bytes, the header as JSON, and the files one after the other."""
    files = laid_files(program)
    header = {"limits": dataclasses.asdict(program.limits), "argv": list(program.argv),
              "source": None if program.source is None else SOURCE_NAME,
              "files": [[name, len(data)] for name, data in files.items()],
              "environment": {**environment, **program.environment}}
    text = json.dumps(header).encode()
    return b"".join((len(text).to_bytes(8, "big"), text, *files.values()))


def sealed(data: bytes, name: str) -> int:
    """A read-only descriptor, at its beginning, of memory with this content; sealed against every change."""
    writable = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with memoryview(data) as view:
            place = 0
            while place < len(view):
                place += os.write(writable, view[place:])
        fcntl.fcntl(writable, fcntl.F_ADD_SEALS, SEALED)
        return os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writable)
