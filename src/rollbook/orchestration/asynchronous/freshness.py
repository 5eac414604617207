"""The hard bound: how old a trajectory is when it is trained on, by the version that each of its tokens recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rollbook.records import RecordError, Trace


def oldest_version(trace: Trace) -> int | None:
    """The oldest policy version among the tokens that the policy sampled; None where it sampled none."""
    known = [segment.version for segment in trace.learnt_segments if segment.version is not None]
    return min(known, default=None)


def version_span(trace: Trace) -> int:
    """Newest minus oldest version of its sampled tokens (GLM-5's w' - w_0); 0 where it sampled none."""
    known = [segment.version for segment in trace.learnt_segments if segment.version is not None]
    return max(known) - min(known) if known else 0


def age(traces: Iterable[Trace], version: int) -> int:
    """Versions between the oldest sampled token of these trajectories and `version`; 0 where none was sampled.

    RecordError for a token of a version that is not published yet.
    """
    known = [segment.version for trace in traces for segment in trace.learnt_segments if segment.version is not None]
    if known and max(known) > version:
        raise RecordError("a token was sampled from a version that does not exist yet", got=f"version {max(known)} at {version}",
                          why="the sampler and the record count versions differently")
    return version - min(known) if known else 0


def within(traces: Sequence[Trace], version: int, max_policy_age: int) -> bool:
    """Whether no token of them is older than `max_policy_age` versions when trained at `version`."""
    return age(traces, version) <= max_policy_age
