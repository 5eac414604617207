"""One isolated sandbox for all tests that only run programs in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from patience import PATIENT

from rollbook.environments.sandbox import BubblewrapSandbox, SubprocessSandbox
from rollbook.records.sandbox import Execution, Program, Sandbox


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
