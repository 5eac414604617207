"""Rows as they come: each is read on its own, what is broken is counted by its reason, what is read has a hash of its content."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from rollbook.records import canonical

Kind = Literal["math", "code", "choice", "text", "general"]
KINDS: tuple[str, ...] = get_args(Kind)
BOM = b"\xef\xbb\xbf"
TEXTS = ("problem", "reference", "family", "source", "licence", "language", "function", "side", "cluster", "unit")
LISTS = ("options", "tests", "solutions", "traces", "scores")
MAPPINGS = ("lineage", "grades")
MAX_CHARACTERS = 200_000
HEAVIEST = 100              # times that one pass over a set may draw a row
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One row. `reference` None where it is missing; `lineage` names what it was made from, `grades` maps a grader to what its
    samples gave ({"answers": [..], "passed": [..]}); everything else of the row that a filter reads is in `more`.

    Example: Candidate(number=1, problem="4 + 3 =", reference="7", kind="math", family="sums")
    """

    number: int
    problem: str
    reference: str | None
    kind: Kind
    family: str = ""
    source: str = ""
    licence: str = ""
    lineage: Mapping[str, str] = field(default_factory=dict)
    grades: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The row as it is written; fields that say nothing are left out."""
        found: dict[str, Any] = {"problem": self.problem, "reference": self.reference, "kind": self.kind, "family": self.family,
                                 "source": self.source, "licence": self.licence, "lineage": dict(self.lineage),
                                 "grades": dict(self.grades), **self.more}
        return {name: value for name, value in found.items() if value not in ("", None) and value != {}}

    def digest(self) -> bytes:
        """16 bytes that name the content, wherever the row stands."""
        return hashlib.sha256(canonical(self.document())).digest()[:16]


def read_candidates(files: Sequence[Path], unread: Counter[str]) -> Iterator[Candidate]:
    """The rows of JSON-lines files that can be read, numbered from 1 over all files; the reasons of the others are counted."""
    number = 0
    for file in files:
        with file.open("rb") as lines:
            for place, line in enumerate(lines):
                line = line.removeprefix(BOM) if place == 0 else line
                if not line.strip():
                    continue
                number += 1
                found = candidate_of(line, number)
                if isinstance(found, Candidate):
                    yield found
                else:
                    unread[found] += 1


class NotFinite(ValueError):
    """A number of a row that has no finite value."""


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise NotFinite(text)
    return value


def _encodes(row: Any) -> bool:
    """Whether all texts of a row can be written again."""
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def candidate_of(line: bytes, number: int) -> Candidate | str:
    """One line as a candidate, or why it is none."""
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_finite, parse_float=_finite)
    except UnicodeDecodeError:
        return "not UTF-8"
    except NotFinite:
        return "a number that is not finite"
    except (ValueError, RecursionError):
        return "not JSON"
    if not isinstance(row, dict):
        return "not an object"
    if not isinstance(row.get("problem"), str):
        return "no problem"
    if SURROGATE.search(line) and not _encodes(row):
        return "half a surrogate pair"
    if len(line) > MAX_CHARACTERS:
        return "too long"
    misfit = _misfit(row)
    if misfit:
        return misfit
    known = {"problem", "reference", "kind", "family", "source", "licence", "lineage", "grades"}
    reference = row.get("reference")
    return Candidate(number=number, problem=row["problem"], reference=None if reference is None else str(reference),
                     kind=row.get("kind", "math"), family=row.get("family") or "", source=row.get("source") or "",
                     licence=row.get("licence") or "", lineage={str(k): str(v) for k, v in (row.get("lineage") or {}).items()},
                     grades=row.get("grades") or {}, more={name: row[name] for name in row if name not in known})


def _misfit(row: Mapping[str, Any]) -> str:
    """The first field of another type than it must have."""
    if row.get("kind", "math") not in KINDS:
        return "unknown kind"
    reference = row.get("reference")
    if not (reference is None or isinstance(reference, (str, int, float))) or isinstance(reference, bool):
        return "reference of another type"
    for name in TEXTS:
        if name not in ("problem", "reference") and not (row.get(name) is None or isinstance(row[name], str)):
            return f"{name} of another type"
    for name in LISTS:
        if not (row.get(name) is None or isinstance(row[name], list)):
            return f"{name} of another type"
    for name in MAPPINGS:
        if not (row.get(name) is None or isinstance(row[name], dict)):
            return f"{name} of another type"
    if any(not isinstance(grade, dict) for grade in (row.get("grades") or {}).values()):
        return "grades of another type"
    if type(row.get("weight", 1)) is not int or not 1 <= row.get("weight", 1) <= HEAVIEST:
        return f"a weight that is no whole number from 1 to {HEAVIEST}"
    return ""


def rows_hash(digests: Iterable[bytes]) -> str:
    """The hash of rows in order."""
    whole = hashlib.sha256()
    for one in digests:
        whole.update(one)
    return whole.hexdigest()
