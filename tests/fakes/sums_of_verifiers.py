"""Sums as a taskset of the verifiers library (0.4): a tool with a state, two rewards, and what goes wrong in them.

Imported by an interpreter in which verifiers is installed, never by the tests themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class Counted(vf.State):
    calls: int = 0


class AdderConfig(vf.ToolsetConfig):
    pass


class Adder(vf.Toolset[AdderConfig, Counted]):
    TOOL_PREFIX = None

    @vf.tool
    async def add(self, a: int, b: int) -> str:
        """Adds two whole numbers."""
        self.state.calls += 1
        if a == 13:
            raise RuntimeError("thirteen")
        return str(a + b)


class Sum(vf.Task[Data, Counted, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        print("what a taskset prints is no answer")
        if trace.last_reply == "raise":
            raise ValueError("an unlucky reward")
        if trace.last_reply == "wild":
            return 7.0
        return float(trace.last_reply.split("=")[-1].strip() == self.data.answer)

    @vf.reward(weight=0.0)
    async def called(self, trace: vf.Trace) -> float:
        return float(trace.state.calls)

    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Adder(AdderConfig())]


class Prepared(Sum):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Wants a runtime."""


class SumsConfig(vf.TasksetConfig):
    most: int = 9
    prepared: bool = False


class Sums(vf.Taskset[Sum, SumsConfig]):
    INFINITE = True

    def load(self) -> Iterator[Sum]:
        kind = Prepared if self.config.prepared else Sum
        for a in itertools.count(1):
            yield kind(Data(prompt=f"{a}+{self.config.most}", answer=str(a + self.config.most)), self.config.task)


__all__ = ["Sums"]
