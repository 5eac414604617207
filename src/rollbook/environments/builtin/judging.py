"""Hidden tests on what a policy left of a repository: in a fresh sandbox, with the project's own test settings, beside canaries.

Tests and the code they test share a process, so that code could change the tests' framework. Three things stand against it:
outcomes are signed with a key that the framework's plugin got first; a test that must fail stands in every file, under a drawn
name; and files that configure tests are the project's, whatever the policy wrote. What passes its canary is tampered with and
worth nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rollbook.environments.guard.events import is_test
from rollbook.records.sandbox import Limits, Program, Sandbox

RUNNER = Path(__file__).parent / "guest_tests.py"
TESTING = Limits(wall_s=120.0, cpu_s=120.0, memory_bytes=600_000_000, processes=64, file_bytes=32 * 2**20, disk_bytes=128 * 2**20,
                 output_bytes=8 * 2**20)
SETTINGS = frozenset({"conftest.py", "pytest.ini", "pytest.toml", ".pytest.ini", "tox.ini", "setup.cfg", "sitecustomize.py",
                      "usercustomize.py"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Which tests passed and which failed, by id; `tampered` where a canary passed or did not run although its file did.

    Example: Outcomes(passed=frozenset({"tests/test_a.py::test_one"}), failed=frozenset(), tampered=False, ended="exit 0")
    """

    passed: frozenset[str]
    failed: frozenset[str]
    tampered: bool
    ended: str


def is_setting(path: str) -> bool:
    """Whether a file configures tests."""
    return PurePosixPath(path).name in SETTINGS or path == "pyproject.toml" or path.endswith(".pth")


def judged_files(base: Mapping[str, bytes], left: Mapping[str, bytes], hidden: Mapping[str, bytes]) -> dict[str, bytes]:
    """What is tested: the policy's files, but tests and their settings as the project has them, and the hidden tests over all."""
    own = {path: data for path, data in left.items() if not is_setting(path) and not is_test(path)}
    kept = {path: data for path, data in base.items() if is_setting(path) or is_test(path)}
    return {**own, **kept, **hidden}


def run_tests(sandbox: Sandbox, files: Mapping[str, bytes], tests: Sequence[str], *, key: str, first: bool = False) -> Outcomes:
    """The outcomes of these test files. `key` is a secret of this run: hexadecimal, drawn by who judges."""
    canary = f"test_{hashlib.sha256(f'{key}/canary'.encode()).hexdigest()[:12]}"
    laid = {f"work/{path}": data for path, data in files.items()}
    for path in tests:
        body = f"\n\ndef {canary}():\n    assert {int(key[:8], 16)} == {int(key[:8], 16) + 1}\n"
        laid[f"work/{path}"] = files[path].rstrip() + body.encode()
    asked = json.dumps({"key": key, "files": list(tests), "first": first}).encode()
    done = sandbox.run(Program(source=RUNNER.read_bytes(), files=laid, stdin=asked, limits=TESTING))
    found = dict(_signed(done.stdout.data, bytes.fromhex(key)))
    canaries = {name: outcome for name, outcome in found.items() if name.endswith(f"::{canary}")}
    reached = {name.partition("::")[0] for name in found}
    tampered = any(outcome != "failed" for outcome in canaries.values()) or any(
        f"{path}::{canary}" not in canaries for path in reached if not first)
    return Outcomes(passed=frozenset(name for name, outcome in found.items() if outcome == "passed"),
                    failed=frozenset(name for name, outcome in found.items() if outcome == "failed" and name not in canaries),
                    tampered=tampered, ended=re.sub(r"\(.*?=(.*)\)", r" \1", str(done.ending)).lower())


def _signed(data: bytes, key: bytes) -> list[tuple[str, str]]:
    """The outcomes whose signature is right; a later one for the same test replaces no earlier failure."""
    found: dict[str, str] = {}
    for line in data.splitlines():
        try:
            name, outcome, signature = json.loads(line)
            wanted = hmac.digest(key, f"{name}\0{outcome}".encode(), hashlib.sha256).hex()
        except (ValueError, TypeError, RecursionError):
            continue
        if isinstance(signature, str) and hmac.compare_digest(wanted.encode(), signature.encode("utf-8", "replace")):
            found[name] = outcome if found.get(name) in (None, "passed") else "failed"
    return list(found.items())
