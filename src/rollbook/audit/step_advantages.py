"""GiGPO's advantages computed a second time, from the episodes of a minibatch and its rewards; plain Python, no code shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rollbook.records import Trace

STEPS = "StepGroups"
SAME = 1e-12            # returns closer than this are one return


def step_axes(rule: Mapping[str, object]) -> tuple[str, str]:
    """Baseline and divisor as a Credit record must say them."""
    return "group mean and mean of the state", "group, and state" if rule.get("normalizer") == "std" else "nothing"


def step_credit(rule: Mapping[str, object], reward_S: Sequence[float], traces: Sequence[Trace]) -> NDArray[np.float64] | None:
    """One advantage per trained token: the attempt among its group, plus omega times the turn among the visits of its state.

    A state is what the environment showed last, within the group. None where turns do not say whose tokens they are.
    """
    turns = [_turns(trace) for trace in traces]
    if any(sum(count for _, count in own) != trace.learnt_count for own, trace in zip(turns, traces, strict=True)):
        return None
    gamma, omega = float(str(rule["gamma"])), float(str(rule["omega"]))
    whole: dict[str, list[float]] = {}
    visits: dict[tuple[str, object], list[float]] = {}
    returns = [[reward * gamma ** (len(own) - 1 - at) for at in range(len(own))]
               for reward, own in zip(reward_S, turns, strict=True)]
    for trace, reward, own, later in zip(traces, reward_S, turns, returns, strict=True):
        whole.setdefault(trace.group, []).append(reward)
        for (state, _), value in zip(own, later, strict=True):
            visits.setdefault((trace.group, state), []).append(value)
    found: list[float] = []
    for trace, reward, own, later in zip(traces, reward_S, turns, returns, strict=True):
        episode = _among(reward, whole[trace.group], rule)
        for (state, count), value in zip(own, later, strict=True):
            found += [episode + omega * _among(value, visits[trace.group, state], rule)] * count
    return np.array(found, dtype=np.float64)


def _among(value: float, values: Sequence[float], rule: Mapping[str, object]) -> float:
    """(value - mean) / F; 0 among equals, and for a value that stands alone."""
    if max(values) - min(values) <= SAME:
        return 0.0
    mean = sum(values) / len(values)
    if rule.get("normalizer") != "std":
        return value - mean
    squares = sum((one - mean) ** 2 for one in values)
    return (value - mean) / (float((squares / (len(values) - int(str(rule["ddof"])))) ** 0.5) + float(str(rule["eps"])))


def _turns(trace: Trace) -> list[tuple[object, int]]:
    """The state before each turn, and the turn's tokens."""
    if trace.episode is None or not trace.episode.turns:
        return [((), trace.learnt_count)]
    before = [trace.episode.opening] + [turn.observation for turn in trace.episode.turns]
    return [(tuple((reply.owner, reply.content, reply.error) for reply in seen.replies), turn.tokens)
            for seen, turn in zip(before, trace.episode.turns, strict=False)]
