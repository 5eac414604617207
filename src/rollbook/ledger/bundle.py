"""A release of a run as a folder or an archive: its file names, its index, and reading one with every hash checked."""

from __future__ import annotations

import contextlib
import json
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbook.ledger.chain import Event
from rollbook.ledger.kinds import HOUSEKEEPING
from rollbook.ledger.ledger import Ledger
from rollbook.ledger.objects import file_digest
from rollbook.records import CodecError, LedgerError, ResolvedRecipe, decode

FORMAT = "rollbook.bundle/1"
COLLECTED = "05_mixtures/files"         # conversations that a recipe takes from files, by hash
CURATED = "01_tasks/curated"        # the curated set of a run that drew its tasks from one, as `rollbook curate` leaves it
INDEX, RECIPE, EXPECTED, LOG = "index.json", "recipe.json", "expected.json", "log.jsonl"
EXPECTS: Mapping[str, type] = {"manifest": dict, "complete": bool, "versions": list, "census": dict, "sft_loss_nats": dict,
                               "evaluations": dict}
MEMBERS, FREE_SHARE = 1_000_000, 0.5    # files of an archive at most, and the share of the free disk that it may fill
AFTERWARDS = frozenset({"AuditReport", "GateDecision", "Incident"})     # what people add to a run that is over


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """An opened bundle. `expected` holds the hashes a reproduction must end with, and the manifest of the run."""

    root: Path
    index: Mapping[str, Any]
    recipe: ResolvedRecipe
    expected: Mapping[str, Any]

    def log(self) -> Iterator[Mapping[str, str]]:
        """Kind, id and label of every standing record of the run, in order."""
        with (self.root / LOG).open() as file:
            for number, line in enumerate(file, start=1):
                try:
                    found = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise _hostile(f"line {number} of {LOG} is no JSON", "it names a record") from error
                if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in ("kind", "id", "label")):
                    raise _hostile(f"line {number} of {LOG} names no record", "it has a kind, an id and a label")
                yield found


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Bundle]:
    """The bundle in a folder or a .tar.gz; refuses one with a file missing, added or changed."""
    with contextlib.ExitStack() as stack:
        root = path
        if path.is_file():
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rollbook-bundle-")))
            _unpack(path, root)
        index = _document(root, INDEX)
        if index.get("format") != FORMAT:
            raise LedgerError("this bundle is of another format", got=repr(index.get("format")), why=f"this code reads {FORMAT}")
        _check(root, index)
        try:
            recipe = decode(ResolvedRecipe, _document(root, RECIPE))
        except CodecError as error:
            raise LedgerError(f"{RECIPE} of the bundle does not decode: {error.what}", got=error.got,
                              fix="reproduce it with the rollbook version that exported it") from error
        expected = _document(root, EXPECTED)
        if lacking := sorted(name for name, kind in EXPECTS.items() if not isinstance(expected.get(name), kind)):
            raise _hostile(f"{EXPECTED} without {', '.join(lacking)}", "a reproduction is compared with them")
        yield Bundle(root=root, index=index, recipe=recipe, expected=expected)


def _unpack(path: Path, root: Path) -> None:
    """Plain files and folders only, below `root`, and no more of them than the disk has room for."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            count, room = 0, int(FREE_SHARE * shutil.disk_usage(root).free)
            for member in archive:
                count, room = count + 1, room - member.size
                if not (member.isreg() or member.isdir()) or member.issparse():
                    raise _hostile(f"{member.name[:80]!r} is no plain file", "a bundle holds no links and no devices")
                if count > MEMBERS or room < 0:
                    raise _hostile(f"{count} members, {member.size} bytes in {member.name[:80]!r}",
                                   f"a bundle has at most {MEMBERS} files and leaves half of the disk free")
                archive.extract(member, root, filter="data")
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError) as error:
        raise LedgerError("the bundle could not be unpacked", got=f"{path.name}: {error}", fix="copy it again") from error


def _hostile(got: str, why: str) -> LedgerError:
    return LedgerError("the bundle is not one that `rollbook export` wrote", got=got, why=why,
                       fix="ask where it comes from; do not open it")


def _document(root: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((root / name).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise LedgerError("this is not a bundle", got=f"no readable {name}", why="`rollbook export` writes one",
                          fix="give the folder or .tar.gz that `rollbook export` wrote") from error
    if not isinstance(found, dict):
        raise _hostile(f"{name} holds a {type(found).__name__}", "it is a JSON object")
    return found


def _check(root: Path, index: Mapping[str, Any]) -> None:
    """Exactly the files of the index, each a plain file below the bundle with the hash and size that the index states."""
    stated, observed = index.get("files"), index.get("observed")
    if not isinstance(stated, dict) or not isinstance(observed, list) or not all(isinstance(name, str) for name in observed) or \
            not all(isinstance(about, dict) and isinstance(about.get("sha256"), str) for about in stated.values()):
        raise _hostile(f"{INDEX} without `files` and `observed`", "it lists every file with its hash")
    linked = next((path for path in root.rglob("*") if path.is_symlink() or not (path.is_file() or path.is_dir())), None)
    if linked is not None:
        raise _hostile(f"{linked.relative_to(root).as_posix()[:80]!r} is no plain file", "a bundle holds no links and no devices")
    there = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()} - {INDEX}
    if wrong := sorted((there ^ (stated.keys() | set(observed))) - set(observed)):
        raise LedgerError("the bundle does not hold the files of its index", got=", ".join(wrong[:3]), fix="export it again")
    if lacking := sorted({RECIPE, EXPECTED, LOG} - stated.keys()):
        raise _hostile(f"no hash of {', '.join(lacking)}", "what a reproduction rests on is covered by the index")
    for name, about in stated.items():
        if file_digest(root / name) != about["sha256"]:
            raise LedgerError(f"{name} of the bundle was changed", got="content with another hash than its index states",
                              fix="export it again")


def story(ledger: Ledger) -> Iterator[Event]:
    """The standing events that the run itself made: housekeeping, and what people add after its end, are left out."""
    over = False
    for event in ledger.events():
        if event.kind not in HOUSEKEEPING and not (over and event.kind in AFTERWARDS):
            yield event
        over |= event.kind == "RunEnd" and event.body.get("status") == "completed"


def label(event: Event) -> str:
    """What a record is about, in a word or two: its scope, stage, name or number."""
    body = event.body
    first = next((str(body[key]) for key in ("scope", "name", "stage", "batch") if isinstance(body.get(key), str)), "")
    number = next((f" {body[key]}" for key in ("step", "index") if isinstance(body.get(key), int)), "")
    return f"{first}{number}".strip()


__all__ = ["EXPECTED", "FORMAT", "INDEX", "LOG", "RECIPE", "Bundle", "label", "opened", "story"]
