"""Judging files of rows as they come: what is broken is counted by its reason, the rest is judged, nothing becomes a zero."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.rewards.pool import Failure
from rollbook.rewards.verifiers.base import Judged, Judgement, Verifier

BATCH = 256
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A response with its reference, as one line of a file says it. `number` counts from one."""

    number: int
    response: str
    reference: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsReport:
    """The judgement of every row, in order, and how many there are of each kind: passed, refused, and every failure's code.

    Example: RowsReport(judgements=(...), counts={"passed": 7, "refused": 2, "malformed": 1}, reasons={"malformed: no JSON": 1})
    """

    judgements: Sequence[Judgement]
    counts: Mapping[str, int]
    reasons: Mapping[str, int]

    @property
    def pass_rate(self) -> float | None:
        """Share of the judged rows that passed; None where none could be judged."""
        judged = self.counts.get("passed", 0) + self.counts.get("refused", 0)
        return self.counts.get("passed", 0) / judged if judged else None


def read_rows(file: Path, *, response: str = "response", reference: str = "reference") -> list[Row | Failure]:
    """The rows of a JSON-lines file, each decoded on its own: a line in another encoding spoils no other line."""
    found: list[Row | Failure] = []
    for number, line in enumerate(file.read_bytes().removeprefix(BOM).split(b"\n"), 1):
        if line.strip():
            found.append(_row(number, line, response, reference))
    return found


def _row(number: int, line: bytes, response: str, reference: str) -> Row | Failure:
    try:
        document = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Failure(code="malformed", detail=f"not UTF-8: {error.reason}")
    except (ValueError, RecursionError):
        return Failure(code="malformed", detail="no JSON")
    if not isinstance(document, dict):
        return Failure(code="malformed", detail=f"a row is an object, not {type(document).__name__}")
    if not isinstance(document.get(response), str):
        return Failure(code="malformed", detail=f"{response} is missing or no text")
    if document.get(reference) is None:
        return Failure(code="no_reference", detail=f"{reference} is missing")
    return Row(number=number, response=document[response], reference=document[reference])


def judge_rows(verifier: Verifier, rows: Iterable[Row | Failure]) -> RowsReport:
    """Judges what can be judged, in batches; a failure of one row is that row's."""
    judgements: list[Judgement] = []
    batch: list[Row | Failure] = []
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH:
            judgements += _judge(verifier, batch)
            batch = []
    judgements += _judge(verifier, batch)
    failures = [found for found in judgements if isinstance(found, Failure)]
    counts = Counter("passed" if found.passed else "refused" for found in judgements if isinstance(found, Judged))
    counts.update(str(found.code) for found in failures)
    return RowsReport(judgements=tuple(judgements), counts=dict(counts),
                      reasons=dict(Counter(f"{found.code}: {found.detail}" for found in failures)))


def _judge(verifier: Verifier, batch: Sequence[Row | Failure]) -> list[Judgement]:
    judged = iter(verifier.judge([(row.response, row.reference) for row in batch if isinstance(row, Row)]))
    return [row if isinstance(row, Failure) else next(judged) for row in batch]
