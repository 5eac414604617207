"""Environments of one answer: what the policy says is the final state, and something else's rule grades it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollbook.records import Action, Budget, FinalState, Message, Observation, RawTask, Task, ToolSchema, content_id

TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
STATED = re.compile(r"^\W*(?:final\s+)?answer\W*?[:=]\s*(.*\S)\s*$", re.IGNORECASE | re.MULTILINE)
LONGEST = 20_000


@dataclass(slots=True)
class TextEpisode:
    """One answer; a call of a tool is impossible because there is none."""

    said: str | None = None

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return ()

    async def reset(self, task: Task) -> Observation:
        return Observation()

    async def act(self, action: Action) -> Observation:
        self.said = action.text[:LONGEST]
        return Observation(ended="answered")

    def state(self) -> FinalState:
        return FinalState(facts={"said": self.said, "answer": None if self.said is None else stated(self.said)})

    async def close(self) -> None:
        pass

    def snapshot(self) -> bytes:
        return b"-" if self.said is None else b"+" + self.said.encode("utf-8", "surrogatepass")

    def restore(self, snapshot: bytes) -> None:
        self.said = None if snapshot == b"-" else snapshot[1:].decode("utf-8", "surrogatepass")


def stated(text: str) -> str:
    """The answer in a text: between the last <answer> tags, else behind the last `answer:`, else the whole text.

    Example: stated("Let me see.\\n<answer>4</answer>") == "4"
    """
    found = TAGGED.findall(text) or STATED.findall(text)
    return (found[-1] if found else text).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Posed:
    """A question before it has its records. `start` is what its first state is built from, `unit` the split unit, `tools` what it
    permits."""

    family: str
    messages: tuple[Message, ...]
    reference: str
    unit: str
    start: str
    source: str
    licence: str
    lineage: Mapping[str, str]
    tools: tuple[str, ...] = ()

    def records(self) -> tuple[RawTask, Task]:
        """The raw task and the contract."""
        text = "\n".join(message.content for message in self.messages if message.role == "user")
        raw = RawTask(source=self.source, licence=self.licence, acquired_at="2026-11-30", content=text, language="und",
                      domain=self.family, sensitive=(), lineage=self.lineage)
        return raw, Task(raw=content_id(raw), family=self.family, prompt=self.messages, reference=self.reference,
                         canonical=self.unit, predicate=f"{self.family}.grade", initial_state=self.start, tools=self.tools,
                         budget=Budget(max_tokens=100_000, max_turns=1), termination=("answered", "length"))


def texts(value: Any) -> str:
    """A value as the text that stands for it."""
    return value if isinstance(value, str) else "" if value is None else str(value)
