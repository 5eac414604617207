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
from rollbook.tasks.errors import TaskError

Kind = Literal["math", "code", "choice", "text", "general"]
KINDS: tuple[str, ...] = get_args(Kind)
BOM = b"\xef\xbb\xbf"
TEXTS = ("problem", "reference", "family", "source", "licence", "language", "function", "side", "cluster", "unit")
LISTS = ("options", "tests", "solutions", "traces", "scores")
SIDES = ("train", "heldout")
MOST_OPTIONS = 26           # as many as there are letters
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
    """The rows of files that can be read, numbered from 1 over all files; the reasons of the others are counted.

    A file ending in .parquet is one, one ending in .json may be a list of rows; any other has one row a line.
    """
    number = 0
    for file in files:
        for line in _lines(file):
            number += 1
            found = candidate_of(line, number) if isinstance(line, bytes) else line.why
            if isinstance(found, Candidate):
                yield found
            else:
                unread[found] += 1


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a row of a file is none."""

    why: str


def _lines(file: Path) -> Iterator[bytes | Unreadable]:
    """The rows of a file, each as one JSON text."""
    if file.suffix == ".parquet":
        yield from _parquet(file)
        return
    with file.open("rb") as lines:
        if file.suffix == ".json" and lines.read(len(BOM) + 64).removeprefix(BOM).lstrip().startswith(b"["):
            yield from _listed(file)
            return
        lines.seek(0)
        for place, line in enumerate(lines):
            line = line.removeprefix(BOM) if place == 0 else line
            if line.strip():
                yield line


def _listed(file: Path) -> Iterator[bytes | Unreadable]:
    """The rows of a file that is one JSON list; TaskError where it is none as a whole."""
    try:
        rows = json.loads(file.read_bytes().removeprefix(BOM).decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{file} begins as a JSON list and is none", got=str(error)[:200],
                        why="no row of it can be told from the next", fix="mend it, or write one row a line (.jsonl)") from None
    yield from map(_line, rows)


def _parquet(file: Path) -> Iterator[bytes | Unreadable]:
    """The rows of a Parquet file, without the nulls that stand for fields which a row does not have."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(file).iter_batches(batch_size=1000):
            for place in range(batch.num_rows):
                try:
                    [row] = batch.slice(place, 1).to_pylist()
                except (UnicodeDecodeError, OverflowError, ValueError):
                    yield Unreadable("a value that has no text form")
                    continue
                yield _line(_without_nulls(row))
    except (pa.ArrowException, OSError) as error:
        raise TaskError(f"{file} is no whole Parquet file", got=str(error)[:200], fix="write it again") from None


def _line(row: Any) -> bytes | Unreadable:
    """A row as one JSON text; bytes, dates and the like have none."""
    if isinstance(row, TwoOfOneName):
        return Unreadable("a field twice")
    try:
        return json.dumps(row).encode()
    except RecursionError:
        return Unreadable("not JSON")
    except TypeError as error:
        return Unreadable(str(error).replace("Object of type ", "").replace(" serializable", ""))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


class NotFinite(ValueError):
    """A number of a row that has no finite value."""


class TwoOfOneName(dict[str, Any]):
    """An object with a name that stands in it twice: which of them is meant is not known."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return TwoOfOneName(found) if len(found) < len(pairs) or any(map(_doubtful, found.values())) else found


def _doubtful(value: Any) -> bool:
    return isinstance(value, TwoOfOneName) or (isinstance(value, list) and any(map(_doubtful, value)))


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
        row = json.loads(line.decode("utf-8"), parse_constant=_finite, parse_float=_finite,
                         object_pairs_hook=_unique)
    except UnicodeDecodeError:
        return "not UTF-8"
    except NotFinite:
        return "a number that is not finite"
    except (ValueError, RecursionError):
        return "not JSON"
    if not isinstance(row, dict):
        return "not an object"
    if isinstance(row, TwoOfOneName):
        return "a field twice"
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
    reference, lineage = row.get("reference"), row.get("lineage") or {}
    return Candidate(number=number, problem=row["problem"], reference=None if reference is None else str(reference),
                     kind=row.get("kind", "math"), family=row.get("family") or "", source=row.get("source") or "",
                     licence=row.get("licence") or "", lineage={k: str(v) for k, v in lineage.items() if v is not None},
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
    if any(not _is_grade(grade) for grade in (row.get("grades") or {}).values()):
        return "grades of another type"
    if any(isinstance(value, (dict, list, bool)) for value in (row.get("lineage") or {}).values()):
        return "lineage of another type"
    if any(not isinstance(option, (str, int, float)) for option in row.get("options") or ()):
        return "options of another type"
    if len(row.get("options") or ()) > MOST_OPTIONS:
        return f"more than {MOST_OPTIONS} options"
    if (row.get("side") or "train") not in SIDES:
        return "a side that is neither train nor heldout"
    if type(row.get("weight", 1)) is not int or not 1 <= row.get("weight", 1) <= HEAVIEST:
        return f"a weight that is no whole number from 1 to {HEAVIEST}"
    return ""


def _is_grade(grade: Any) -> bool:
    """Whether a grade is answers, passes (each, or their number of `of`), or neither yet."""
    if not isinstance(grade, dict) or not isinstance(grade.get("answers") or [], list):
        return False
    passed, of = grade.get("passed"), grade.get("of")
    if type(passed) is int:
        return type(of) is int and 0 <= passed <= of
    return passed is None or isinstance(passed, list)


def rows_hash(digests: Iterable[bytes]) -> str:
    """The hash of rows in order."""
    whole = hashlib.sha256()
    for one in digests:
        whole.update(one)
    return whole.hexdigest()
