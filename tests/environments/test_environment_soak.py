"""A small run of the soak: episodes of many kinds at once, some hostile, leave nothing behind."""

from __future__ import annotations

import importlib.util
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "environments.py"
KINDS = ["world", "browser", "games", "customer", "code", "interpreter", "faulty", "guarded"]


def test_many_environments_at_once_leave_no_process_descriptor_thread_file_or_session() -> None:
    spec = importlib.util.spec_from_file_location("benchmark_of_environments", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.run(episodes=96, concurrent=64, kinds=KINDS)
    assert {name: value for name, value in found.items() if name.startswith("left: ") and value > 0} == {}
    assert sum(value for name, value in found.items() if name.startswith("outcome: ")) == 96
    assert not any(": fault " in name for name in found)
