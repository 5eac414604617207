"""Traces with a given text and length, their tasks, and scorers that say what they are told."""

from __future__ import annotations

from rollbook.records import (
    AttemptId,
    Budget,
    Message,
    Rated,
    Segment,
    Task,
    Trace,
    Unrated,
    VerifierStamp,
)


def task(reference: str = "7", prompt: str = "4 + 3 =", family: str = "sums") -> Task:
    return Task(raw="RawTask:1", family=family, prompt=(Message(role="user", content=prompt, origin="raw"),), reference=reference,
                canonical=prompt, predicate="p", initial_state="prompt", tools=(), budget=Budget(max_tokens=64),
                termination=("end_of_turn",))


def trace(text: str, of: Task, *, tokens: int = 4, sample: int = 0, group: str = "g", scope: str = "rl/000001/0",
          stop: str = "end_of_turn") -> Trace:
    spoken = Segment(owner="policy", token_ids=tuple(range(tokens)), logps=(-0.1,) * tokens, version=0)
    return Trace(attempt=AttemptId(f"{scope}/0/{group}/{sample}"), task=of.id, group=group, envelope="e",
                 segments=(Segment(owner="user", token_ids=(1,)), spoken), stop_reason=stop, text=text)


class Told:
    """A scorer that gives the number behind the text's last space, and has none where that is no number."""

    def __init__(self, name: str = "told"):
        self.stamp = VerifierStamp(name=name, version="1", digest=name)

    def score(self, traces, tasks):
        return [self._one(each.text) for each in traces]

    def close(self):
        pass

    def _one(self, text):
        try:
            return Rated(value=float(text.rpartition(" ")[2]))
        except ValueError:
            return Unrated(code="malformed", detail=f"no number in {text!r}")
