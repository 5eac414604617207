"""One isolated sandbox for all tests that only run programs in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from patience import PATIENT

from rollbook.environments.sandbox import BubblewrapSandbox, SubprocessSandbox
from rollbook.records.sandbox import Execution, Program, Sandbox

SANDBOXED = ("test_builtin_laws", "test_builtin_turns", "test_code_environment", "test_environment_soak",
             "test_repository_environment", "test_sandbox_session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Built-in environments run what the policy writes in a sandbox; where there is none, they refuse, and so do their tests."""
    if shutil.which("bwrap") is None:
        missing = pytest.mark.skip(reason="bubblewrap is not installed: apt-get install bubblewrap")
        for item in items:
            if item.path.stem in SANDBOXED:
                item.add_marker(missing)


@pytest.fixture(scope="package")
def isolated() -> Iterator[BubblewrapSandbox]:
    sandbox = BubblewrapSandbox(parallel=2)
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="package")
def weak() -> SubprocessSandbox:
    return SubprocessSandbox(accept_weak=True)


@pytest.fixture(params=["isolated", "weak"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Each backend that runs here, for what both promise."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def run(sandbox: Sandbox):
    """Runs a Python source with the limits of a test."""
    def run(source: str, **fields: object) -> Execution:
        return sandbox.run(Program(source=source.encode(), **{"limits": PATIENT, **fields}))      # type: ignore[arg-type]
    return run
