"""A deterministic sample of a run's trajectories, drawn in one passage and bounded memory."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rollbook.ledger import Ledger
from rollbook.records import SamplingEnvelope, Trace, TraceId, Verdict, content_id


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRow:
    """One trajectory with what was judged of it."""

    id: TraceId
    trace: Trace
    verdict: Verdict | None


@dataclass(slots=True, kw_only=True)
class Sample:
    """`judged` over all trajectories; `by_version` for each version whose weights are stored, `elsewhere` counts the others."""

    judged: list[SampledRow]
    by_version: Mapping[int, list[SampledRow]]
    envelopes: Mapping[str, SamplingEnvelope]
    elsewhere: int = 0
    total: int = 0


class _Least:
    """The rows with the smallest ids: ids are hashes, so this is a sample that any reader draws alike."""

    def __init__(self, size: int):
        self.size = size
        self.held: list[tuple[int, int, SampledRow]] = []

    def offer(self, row: SampledRow, order: int) -> None:
        key = -int(row.id.rpartition(":")[2][:16], 16)
        if len(self.held) < self.size:
            heapq.heappush(self.held, (key, order, row))
        elif key > self.held[0][0]:
            heapq.heapreplace(self.held, (key, order, row))

    def rows(self) -> list[SampledRow]:
        return [row for _, _, row in sorted(self.held, key=lambda item: item[1])]


def draw(ledger: Ledger, size: int, known: Collection[int]) -> Sample:
    """About `size` rows for each use; a version gets its share, one at least."""
    judged, share = _Least(size), max(1, size // max(1, len(known)))
    versions = {index: _Least(share) for index in known}
    elsewhere = total = 0
    for event in ledger.events("TraceTable"):
        for identity, (trace, verdict, _) in ledger.rows(event):
            row = SampledRow(id=identity, trace=trace, verdict=verdict)
            judged.offer(row, total)
            total += 1
            of = {segment.version for segment in trace.learnt_segments}
            one = next(iter(of)) if len(of) == 1 else None
            if one in versions:
                versions[one].offer(row, total)
            else:
                elsewhere += 1
    envelopes = {content_id(one): one for one in ledger.records(SamplingEnvelope)}
    return Sample(judged=judged.rows(), by_version={index: least.rows() for index, least in versions.items()},
                  envelopes=envelopes, elsewhere=elsewhere, total=total)
