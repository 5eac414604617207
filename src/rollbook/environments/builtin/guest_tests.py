"""Runs in the sandbox: pytest over the test files named, each outcome signed with a key that is read before any other code runs.

Standard input is JSON: the key, the files, and the name of the canary that stands in each of them and must fail. Code under test
shares the process; what it prints goes to standard error, what it signs it would have to sign with the key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import sys


def main() -> None:
    asked = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    os.dup2(2, 1)
    root = os.path.join(os.getcwd(), "work")
    os.chdir(root)
    sys.path[:] = [root, os.path.join(root, "src"), *sys.path[1:], "/packages"]
    sys.dont_write_bytecode = True
    import pytest

    write, digest = os.write, hmac.digest
    key = bytes.fromhex(asked["key"])

    class Recorder:
        """Tells each test's outcome: failed where any of its three phases is."""

        def __init__(self) -> None:
            self.bad: set[str] = set()
            self.passed: set[str] = set()

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.outcome != "passed":
                self.bad.add(report.nodeid)
            elif report.when == "call":
                self.passed.add(report.nodeid)
            if report.when == "teardown":
                outcome = "passed" if report.nodeid in self.passed - self.bad else "failed"
                signed = digest(key, f"{report.nodeid}\0{outcome}".encode(), hashlib.sha256).hex()
                write(out, (json.dumps([report.nodeid, outcome, signed]) + "\n").encode())

    pytest.main(["-q", "-p", "no:cacheprovider", "-x" if asked["first"] else "-q", *asked["files"]], plugins=[Recorder()])
    os._exit(0)


main()
