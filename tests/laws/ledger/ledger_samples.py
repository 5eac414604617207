"""Small real records for the tests of the ledger."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from hypothesis import strategies as st

from rollbook.records import (
    AbsentComponent,
    Acknowledgement,
    Component,
    NotExposed,
    Outcome,
    PolicyVersion,
    RewardVector,
    Scored,
    Segment,
    Trace,
    Unscored,
    Verdict,
    VerifierStamp,
)

STAMP = VerifierStamp(name="math", version="1", digest="77" * 32)


def float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def outcome(index: int, code: str = "accepted", family: str = "chain_sum") -> Outcome:
    return Outcome(attempt=f"rl/000001/0/Task:1f/{index}", family=family, code=code, detail="a detail")


def trace(index: int, **changes: object) -> Trace:
    values = {
        "attempt": f"rl/000001/0/Task:1f/{index}", "task": "Task:1f", "group": "g", "envelope": "SamplingEnvelope:9c",
        "segments": (Segment(owner="user", token_ids=(5, 6, index)),
                     Segment(owner="policy", token_ids=(17, 2), logps=(float32(-0.1), -0.0), version=3),
                     Segment(owner="tool", token_ids=()),
                     Segment(owner="policy", token_ids=(9,), logps=(float32(-1.7),), version=4)),
        "stop_reason": "end_of_turn", "text": "7 \u2713", "observed": {"latency_s": 0.25},
    }
    return Trace(**{**values, **changes})


def scored(of: Trace, total: float = 1.0) -> Scored:
    parts = (Component(name="correctness", value=0.9, verifier=STAMP, detail="7 = 7"),
             Component(name="format", value=0.1, verifier=STAMP, confidence=0.5))
    vector = RewardVector(components=parts, absent=(AbsentComponent(name="language", reason="not configured"),),
                          composition="magistral/1", composition_digest="c0" * 32, total=total, accuracy=None)
    return Scored(trace=of.id, vector=vector, observed={"seconds": 0.01})


def rows(count: int) -> tuple[list[Trace], list[Verdict], list[Outcome]]:
    """Traces, verdicts for two thirds of them (a third of which unscored), outcomes."""
    traces = [trace(index) for index in range(count)]
    verdicts: list[Verdict] = []
    for index, item in enumerate(traces):
        if index % 3 == 0:
            verdicts.append(scored(item, total=index / 7))
        elif index % 3 == 1:
            verdicts.append(Unscored(trace=item.id, verifier=STAMP, code="timeout", detail="after 2 s"))
    return traces, verdicts, [outcome(index) for index in range(count)]


def policy(index: int, parent: str | None) -> PolicyVersion:
    return PolicyVersion(index=index, stage="rl", weights=f"{index:02d}", parent=parent, updates=index, optimizer=None, window=(),
                         healthy=True, published="ab", probe=None,
                         acknowledged=(Acknowledgement(consumer="embedded-0", weights="ab"),))


TOKENS = st.integers(-2**31, 2**31 - 1)
LOGPS = st.floats(width=32, allow_nan=False, allow_infinity=False)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
NOTES = st.dictionaries(st.text(max_size=5), NUMBERS, max_size=3)


@st.composite
def segment(draw: st.DrawFn) -> Segment:
    owner = draw(st.sampled_from(["policy", "system", "user", "tool", "environment", "user_simulator", "subagent"]))
    tokens = draw(st.lists(TOKENS, max_size=6))
    if owner != "policy":
        return Segment(owner=owner, token_ids=tuple(tokens))
    logps = draw(st.lists(LOGPS, min_size=len(tokens), max_size=len(tokens)))
    known = NotExposed() if tokens and draw(st.integers(0, 3)) == 0 else tuple(logps)
    return Segment(owner=owner, token_ids=tuple(tokens), logps=known, version=draw(st.integers(0, 2**31 - 1)))


@st.composite
def any_verdict(draw: st.DrawFn, of: Trace) -> Verdict | None:
    kind = draw(st.sampled_from(["none", "scored", "unscored"]))
    if kind == "none":
        return None
    if kind == "unscored":
        return Unscored(trace=of.id, verifier=STAMP, code=draw(st.sampled_from(["timeout", "crash"])), detail=draw(st.text()),
                        observed=draw(NOTES))
    parts = draw(st.lists(st.builds(Component, name=st.text(), value=NUMBERS, verifier=st.just(STAMP), confidence=NUMBERS,
                                    detail=st.text()), max_size=3))
    absent = draw(st.lists(st.builds(AbsentComponent, name=st.text(), reason=st.text()), max_size=2))
    vector = RewardVector(components=tuple(parts), absent=tuple(absent), composition=draw(st.text()), composition_digest="c0",
                          total=draw(NUMBERS), accuracy=draw(st.none() | NUMBERS), hidden_test_access=draw(st.booleans()))
    return Scored(trace=of.id, vector=vector, observed=draw(NOTES))


@st.composite
def any_rows(draw: st.DrawFn) -> tuple[Sequence[Trace], Sequence[Verdict], Sequence[Outcome]]:
    traces, verdicts, outcomes = [], [], []
    for index in range(draw(st.integers(0, 4))):
        item = trace(index, segments=tuple(draw(st.lists(segment(), min_size=1, max_size=4))), text=draw(st.text()),
                     observed=draw(NOTES), group=draw(st.text()))
        verdict = draw(any_verdict(item))
        traces.append(item)
        verdicts += [] if verdict is None else [verdict]
        outcomes.append(outcome(index, draw(st.sampled_from(["accepted", "uniform", "stale"])), family=draw(st.text())))
    return traces, verdicts, outcomes
