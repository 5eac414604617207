"""10,000 episodes, 500 at a time: does a descriptor, thread, process or memory stay behind?

    python benchmarks/episodes.py [--episodes 10000] [--together 500]

The policy is scripted, so that what is measured is the turn loop: a call, a tool that crashes, an answer.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fakes"))
from scripted import ScriptedSampler, do, rollouts, task

from rollbook.environments import open_services

SAID = (do("a"), do("crash"), "4")
PER_TASK = 10


def held() -> tuple[int, int, int]:
    """Descriptors, threads and child processes of this process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count(), len(psutil.Process().children(recursive=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--together", type=int, default=500)
    asked = parser.parse_args()
    began, first = time.monotonic(), None
    with open_services() as services:
        for number in range(asked.episodes // asked.together):
            sampler = ScriptedSampler(lambda name, turn: SAID[min(turn, 2)])
            made = rollouts(sampler, services)
            tasks = [task(str(place)) for place in range(asked.together // PER_TASK)]
            traces = made.solve(tasks, PER_TASK, scope=f"s{number}", envelope=made.envelope("w"))
            assert {trace.stop_reason for trace in traces} == {"end_of_turn"} and max(sampler.batches) == asked.together
            first = first or (held(), psutil.Process().memory_info().rss)
            if held() != first[0]:
                sys.exit(f"something stayed behind after {(number + 1) * asked.together} episodes: {held()}, at first {first[0]}")
    grown = (psutil.Process().memory_info().rss - first[1]) / 2**20 if first else 0.0
    print(f"{asked.episodes} episodes, {asked.together} at a time: descriptors, threads, children {held()} as at first, "
          f"memory {grown:+.0f} MiB, {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
