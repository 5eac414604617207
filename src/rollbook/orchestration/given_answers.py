"""Answers of a finished evaluation before another judge: they are taken as they stand on its record, nothing is sampled again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollbook.evaluation.protocols import Bundle, ProtocolRefused, differing
from rollbook.ledger import Ledger
from rollbook.orchestration.answering import Asks
from rollbook.records import (
    Dispatch,
    EvaluationProtocol,
    EvaluationResult,
    LedgerError,
    SamplingEnvelope,
    Task,
    Trace,
    canonical,
    content_id,
)

AFTERWARDS = ("reward", "judges", "verifier", "environment", "extraction", "aggregation")     # decided when all is answered
OF_ANSWERS = ("policy", "model", "endpoint", "tokenizer", "template", "dtype", "engine", "code", "packages")


def same_answers(one: EvaluationProtocol, other: EvaluationProtocol) -> bool:
    """Whether two protocols ask alike, so that only what is made of the answers differs."""
    return one.name == other.name and all(name.partition(".")[0] in AFTERWARDS for name in differing(one, other))


class GivenAnswers:
    """Attempts at tasks as another evaluation holds them; refuses one that is not finished, or in which they were made otherwise.

    `source` is its genesis hash."""

    def __init__(self, folder: Path, bundle: Bundle, manifest: Mapping[str, Any]):
        self.ledger = Ledger.open(folder, write=False)
        protocol = next(iter(self.ledger.records(EvaluationProtocol)), None)
        if protocol is None or next(iter(self.ledger.records(EvaluationResult)), None) is None:
            raise LedgerError("there are no answers to take", got=f"{folder.name} is no finished evaluation",
                              why="a part of them would make another result", fix="go on with the command that began it")
        if not same_answers(protocol, bundle.protocol):
            apart = [name for name in differing(protocol, bundle.protocol) if name.partition(".")[0] not in AFTERWARDS]
            raise ProtocolRefused("these answers were given under another protocol",
                                  got=", ".join(apart) or f"attempts named after {protocol.name}",
                                  why="only the judge, its reward and the aggregation may differ",
                                  fix="evaluate without them; `rollbook protocol vary --name` keeps the name")
        held = self.ledger.manifest
        if apart := [name for name in OF_ANSWERS if canonical(held.get(name)) != canonical(manifest.get(name))]:
            raise LedgerError("these answers are another policy's, or were made in another way", got=f"{', '.join(apart)} differ",
                              why="the result would be called this policy's", fix="evaluate without them")
        self.folder, self.source = folder, self.ledger.genesis

    def behind(self, asks: Asks) -> Asks:
        """What says how they were asked, with answers that are there."""
        return _Taken(self, asks)

    def attempts(self, scope: str) -> list[Trace]:
        """Those of a part, in order."""
        return [trace for trace, _, _ in self.ledger.read_traces(scope)]


class _Taken:
    """`Asks` whose answers are there already."""

    def __init__(self, given: GivenAnswers, asks: Asks):
        self.given, self.asks = given, asks

    def envelope(self, weights: Any) -> SamplingEnvelope:
        return self.asks.envelope(weights)

    def dispatch(self, tasks: Sequence[Task], per_task: int, *, scope: str, envelope: SamplingEnvelope) -> Dispatch:
        return self.asks.dispatch(tasks, per_task, scope=scope, envelope=envelope)

    def solve(self, tasks: Sequence[Task], per_task: int, *, scope: str, envelope: SamplingEnvelope) -> list[Trace]:
        """The attempts of this part; refuses others than those that were issued."""
        held = self.given.attempts(scope)
        wanted = [name for name, _ in self.dispatch(tasks, per_task, scope=scope, envelope=envelope).attempts()]
        if [trace.attempt for trace in held] != wanted or {trace.envelope for trace in held} != {content_id(envelope)}:
            raise LedgerError("these answers were asked for in another way", got=f"{scope} of {self.given.folder.name}",
                              why="attempts or what they were allowed differ", fix="evaluate without them")
        return held
